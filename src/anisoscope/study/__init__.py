"""Whole experiments, put together from the parts below."""
