"""Grammars of clients, tried out in a process of their own before the engine sees them."""
