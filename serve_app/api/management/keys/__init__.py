"""Keys of callers over HTTP: this server's own routes, and Databricks' for tokens and for who is calling."""
