"""Endpoints: names in front of served entities, and how traffic is split among them. Pure logic, no I/O.

`endpoint`: the settings of one endpoint, checked by `rules`. `catalogue`: all endpoints of a gateway.
`split`: the choice of an entity for a request. `succession`: the change from one catalogue to the next.
`names`: the name of a model's Serve application.
"""
