"""All measures of clouds in files."""
