"""What observing costs in time and memory, and how it is kept within bounds."""
