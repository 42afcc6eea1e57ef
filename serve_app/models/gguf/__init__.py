"""Models in the format of llama.cpp: one file with weights, settings and tokenizer.

A file is described by a folder in transformers' layout, which is written to a cache: `config.json`, the
tokenizer's files, and an index of where each tensor's bytes lie in the file. Everything else reads that
folder as it reads any other.
"""
