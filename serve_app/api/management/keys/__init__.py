"""API keys over HTTP: this server's own routes, and Databricks' routes for tokens and for who is calling."""
