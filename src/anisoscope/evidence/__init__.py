"""A measurement against its nulls. Knows geometry and stats."""
