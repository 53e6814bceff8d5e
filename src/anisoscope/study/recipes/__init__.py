"""What `reproduce` can do: one TOML file a paper."""
