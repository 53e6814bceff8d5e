"""Streams to mergeable sufficient statistics. Knows torch and nothing of the rest of the package."""
