"""What a scope writes: its pipeline of observations, the run, its provenance, trackers and notices."""
