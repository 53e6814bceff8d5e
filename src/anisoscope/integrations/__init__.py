"""One file for each optional library."""
