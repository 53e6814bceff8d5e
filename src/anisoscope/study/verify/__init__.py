"""The referee's checks on finished models."""
