"""Questions to a model other than generation: tokens of a text, and whether it has a watermark."""
