"""The documentation site: pages that are made from the code, and a check of what was built.

`make docs` runs `python -m docs.site stage build/docs`, then Zensical, then
`python -m docs.site check build/site`.
"""
