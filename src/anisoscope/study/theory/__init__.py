"""The propositions about small patches, simulated."""
