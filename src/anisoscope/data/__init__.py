"""Where numbers and texts come from. Clouds know torch; corpora and tokens know numpy; all know errors."""
