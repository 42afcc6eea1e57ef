"""Questions to a model beside generation: tokens of a text, and whether it has a watermark."""
