"""Models made from scratch: twins that differ in mask and objective alone."""
