"""A training history studied after the fact."""
