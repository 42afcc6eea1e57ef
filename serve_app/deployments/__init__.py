"""The gateway and the models as Serve deployments. Exactly the code that depends on Ray is here.

`gateway`, `model` and `control` run in replicas. `build` makes applications of them for deploy files;
`client` is for Python code inside the cluster; `launcher` implements `serve-app serve`.
"""
