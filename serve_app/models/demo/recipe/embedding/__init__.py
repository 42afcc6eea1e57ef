"""How demo-embed is made: what its sentences mean, its training and its measure.

Run in this order; each takes `--help`:

    python -m serve_app.models.demo.recipe.embedding.train
    python -m serve_app.models.demo.recipe.embedding.evaluate

Nothing here is imported by the server.
"""
