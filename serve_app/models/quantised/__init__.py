"""Quantised checkpoints as they are published: one file for each format, and their conversion at load.

A reader finds the tensors of each quantised matrix by their names and headers. When the matrix is loaded, the
reader unpacks those tensors into a `QuantisedMatrix`, which gives plain numbers. Nothing outside this folder
names a format.
"""
