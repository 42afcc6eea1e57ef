"""Checks of texts: personal data, forbidden words, topics. Text in, findings out.

Independent of HTTP and of models.
"""
