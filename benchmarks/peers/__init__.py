"""This server and others, started in turn on one machine with the same model and the same load."""
