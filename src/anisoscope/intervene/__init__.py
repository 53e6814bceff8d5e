"""Interventions: removals from the residual stream, and losses that change the geometry of a training."""
