"""One finished model, layer by layer."""
