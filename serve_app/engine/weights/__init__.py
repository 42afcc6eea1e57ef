"""How linear layers keep their weights: a small file for each format, and the linear that holds any of them.

Nothing outside this folder and `config/quantization.py` names a format.
"""
