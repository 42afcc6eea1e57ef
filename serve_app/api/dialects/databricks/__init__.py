"""Databricks Foundation Model APIs, below /serving-endpoints."""
