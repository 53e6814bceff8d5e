"""How often nulls reject and intervals miss on data where the truth is known: what docs/calibration.md is made of."""
