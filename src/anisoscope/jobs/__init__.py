"""Independent jobs: one after the other in this process, on Ray, or in several processes."""
