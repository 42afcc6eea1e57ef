"""`serve-app endpoints`: what a running server offers, and what it is to offer."""
