"""One forward of a model: the runner, its memory, and what is checked before it serves."""
