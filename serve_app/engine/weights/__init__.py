"""The formats of the weights of linear layers: a small file for each, and a linear that can have any of them.

Nothing outside this folder and `config/quantization.py` names a format.
"""
