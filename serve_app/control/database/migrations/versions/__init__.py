"""Each file is a step. Numbers increase, and a released step never changes."""
