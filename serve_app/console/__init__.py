"""The console: the service in a browser, at `/console`. It asks the public API and nothing else."""
