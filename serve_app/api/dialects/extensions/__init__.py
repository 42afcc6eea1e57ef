"""Routes that ask a model for the tokens of a text, or whether a text is watermarked."""
