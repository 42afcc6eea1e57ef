"""The kinds of states: a map from the name of a function in transformers' modules to our own function for it.

Our function gets the `States` of the forward, then the arguments of transformers' function for a packed
batch, and returns what transformers' function would return. A name may also be that of a class whose forward
computes a state by itself; then our function does the work of that forward. A new kind is a file beside this
one and a line in this file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from serve_app.engine.state.convolution import causal_conv1d
from serve_app.engine.state.gated_delta import gated_delta_rule
from serve_app.engine.state.lightning import lightning_attention
from serve_app.engine.state.mamba import mamba2_scan, mamba_scan

FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = MappingProxyType(
    {
        "MiniMaxLightningAttention": lightning_attention,
        "causal_conv1d_fn": causal_conv1d,
        "chunk_kimi_delta_attention": gated_delta_rule,
        "mamba2_chunk_scan": mamba2_scan,
        "mamba_selective_scan": mamba_scan,
        "torch_chunk_gated_delta_rule": gated_delta_rule,
    }
)
