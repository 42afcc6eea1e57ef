"""Ray, and nothing but Ray: the gateway and the models as Serve deployments.

`gateway` and `model` are what runs in replicas, `route` and `quarantine` how a
gateway finds a model, `build` makes applications of them for deploy files,
`client` is for Python code inside the cluster, `serve` is `make serve`.
"""
