"""Responses that gateways keep for later requests of the same key."""
