"""The console: the service in a browser, at `/console`. It uses only the public API."""
