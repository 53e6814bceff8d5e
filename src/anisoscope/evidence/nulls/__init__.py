"""One file a null: what a proxy's energy share is set against."""
