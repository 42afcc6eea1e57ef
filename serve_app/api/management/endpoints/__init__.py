"""Endpoints at run time: made, changed, described and permitted, in Databricks' shape."""
