"""Tool calls in the text of a model: one module a format, all on the same parts."""
