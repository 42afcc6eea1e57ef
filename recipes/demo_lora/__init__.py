"""How demo-lora is made: the speech it teaches, its training and its measure.

Run in this order; each takes `--help`:

    python -m recipes.demo_lora.train
    python -m recipes.demo_lora.evaluate

Nothing here is imported by the server.
"""
