"""What can be asked of a model beside answers: tokens of a text, and whether it has a watermark."""
