"""Grammars over a model's tokens: the tokenizer of the parser, and the state of one sequence."""
