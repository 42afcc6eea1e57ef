"""API keys made at run time, and the permissions on endpoints."""
