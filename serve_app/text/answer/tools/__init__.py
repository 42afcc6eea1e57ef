"""Tool calls in the text of a model: one module per format, all built from the same parts."""
