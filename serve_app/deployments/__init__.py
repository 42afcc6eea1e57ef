"""Ray, and nothing but Ray: the gateway and the models as Serve deployments.

`gateway`, `model` and `control` run in replicas, `build` makes applications of them for deploy files,
`client` is for Python code inside the cluster, `launcher` is `serve-app serve`.
"""
