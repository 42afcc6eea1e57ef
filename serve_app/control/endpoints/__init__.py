"""Endpoints that are made at run time: what is wanted of them, and how it comes to run.

`registry`: what is wanted, in the database. `cluster`: what runs, as a protocol. `plan`: what to do next,
pure logic. `reconciler`: does it. `offers`, `sizing` and `configure`: whether a configuration can come up.
"""
