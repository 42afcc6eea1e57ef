"""Weights as codes: what a reader of a quantised checkpoint gives, and what products of a device may take.

`models` finds codes in files, and `engine` multiplies by them; both depend on this package and not on each
other.
"""
