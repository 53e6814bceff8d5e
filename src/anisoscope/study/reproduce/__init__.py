"""Published claims run again."""
