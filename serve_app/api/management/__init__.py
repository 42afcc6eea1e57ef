"""Endpoints, keys and usage at run time, in the shape of Databricks' management API."""
