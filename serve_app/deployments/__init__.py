"""The gateway and the models as Serve deployments: all the code that depends on Ray, and only that.

`gateway`, `model` and `control` run in replicas; `build` makes applications of them for deploy files;
`client` is for Python code inside the cluster; `launcher` implements `serve-app serve`.
"""
