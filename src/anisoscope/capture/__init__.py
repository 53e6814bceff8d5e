"""Modules to tensors: sites and taps. Knows torch and errors, and nothing of statistics."""
