"""Checks of texts: personal data, forbidden words, topics. Text in, findings out.

Knows no HTTP and no model.
"""
