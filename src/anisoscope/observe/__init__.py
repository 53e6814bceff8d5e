"""What the scope does at one observation: statistics of what passed the taps, judged into rows."""
