"""How linear layers keep their weights: a small file for each format, and a linear that can have any of them.

Nothing outside this folder and `config/quantization.py` names a format.
"""
