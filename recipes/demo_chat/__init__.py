"""How demo-chat is made: its corpus, its tokenizer, its training and its measure.

Run in this order; each takes `--help`:

    python -m recipes.demo_chat.tokenizer
    python -m recipes.demo_chat.train
    python -m recipes.demo_chat.evaluate

Nothing here is imported by the server.
"""
