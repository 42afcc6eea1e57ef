"""Deploy files: their schema, and checks that find every mistake in a file."""
