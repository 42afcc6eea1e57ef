"""Each file is a step. Numbers grow, and a step that was released never changes."""
