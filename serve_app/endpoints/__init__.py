"""Endpoints: names in front of served entities, and how traffic is split among them. Pure logic, no I/O.

`endpoint` is what an operator may say of one, `catalogue` all of them as a whole, `split`
the choice of an entity for a request, `names` the Serve application of a model.
"""
