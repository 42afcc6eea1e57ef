"""One server on one machine, from its start to its end: who starts it, watches it, stops it and cleans up."""
