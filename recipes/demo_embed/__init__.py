"""How demo-embed is made: what its sentences mean, its training and its measure.

Run in this order; each takes `--help`:

    python -m recipes.demo_embed.train
    python -m recipes.demo_embed.evaluate

Nothing here is imported by the server.
"""
