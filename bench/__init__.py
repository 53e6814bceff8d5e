"""Benchmarks against peers, measured side by side in one run. Not part of the package."""
