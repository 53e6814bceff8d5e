"""Proxies removed from finished models."""
