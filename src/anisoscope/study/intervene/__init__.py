"""Arms × doses × seeds against a control."""
