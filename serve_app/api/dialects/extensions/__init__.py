"""Questions to a model other than generation: a text's tokens, and whether the text is watermarked."""
