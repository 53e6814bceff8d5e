"""Where numbers and texts come from. Knows torch and errors."""
