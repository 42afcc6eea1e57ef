"""API keys that are made at run time, and who may do what with which endpoint."""
