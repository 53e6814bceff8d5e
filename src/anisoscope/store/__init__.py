"""Runs on disk: rows in Parquet parts, subspaces in safetensors, one manifest. Knows nothing of torch or of models."""
