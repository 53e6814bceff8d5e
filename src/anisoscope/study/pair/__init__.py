"""A decoder and its encoder twin trained from scratch."""
