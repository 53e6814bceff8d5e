"""Pure functions of clouds and statistics. Knows stats."""
