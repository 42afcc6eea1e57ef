"""Grammars over a model's tokens: the parser's tokenizer, and the state of one sequence."""
