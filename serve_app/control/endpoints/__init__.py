"""Endpoints made at run time: the wanted state, and how the cluster gets there.

`registry`: what is wanted, in the database. `cluster`: what runs, as a protocol. `plan`: what to do next,
pure logic. `reconciler`: carries it out. `offers`, `sizing` and `configure`: whether a configuration can run.
"""
