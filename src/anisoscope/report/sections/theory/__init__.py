"""The page of a theory run."""
