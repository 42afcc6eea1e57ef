"""The routes that make, change, show and permit endpoints at run time, in Databricks' shape."""
