"""How demo-chat is made: its corpus, its tokenizer, its training and its measure.

Run in this order; each takes `--help`:

    python -m serve_app.models.demo.recipe.tokenizer
    python -m serve_app.models.demo.recipe.train
    python -m serve_app.models.demo.recipe.evaluate

Nothing here is imported by the server.
"""
