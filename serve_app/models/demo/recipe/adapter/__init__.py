"""How demo-lora is made: the speech it teaches, its training and its measure.

Run in this order; each takes `--help`:

    python -m serve_app.models.demo.recipe.adapter.train
    python -m serve_app.models.demo.recipe.adapter.evaluate

Nothing here is imported by the server.
"""
