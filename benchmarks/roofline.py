"""The least time that a decoder's work can take on a machine. Pure: it counts, and runs nothing.

A step takes at least as long as its floating-point operations at the machine's rate of matrix products,
and at least as long as reading what it must read at the machine's bandwidth. Of attention only the causal
half counts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

CACHE_BYTES: Final = 2  # of one value in the KV cache
BF16_BYTES: Final = 2.0  # of one weight


@dataclass(frozen=True)
class Shape:
    """A decoder of the Llama family: grouped attention and a gated MLP."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int

    @classmethod
    def of(cls, model: Path) -> Shape:
        """Out of the `config.json` of a model's folder."""
        return cls.of_config(json.loads((model / "config.json").read_text("utf-8")))

    @classmethod
    def of_config(cls, config: Mapping[str, Any]) -> Shape:
        """Out of what a `config.json` says."""
        heads = config["num_attention_heads"]
        return cls(
            layers=config["num_hidden_layers"],
            hidden=config["hidden_size"],
            intermediate=config["intermediate_size"],
            heads=heads,
            kv_heads=config.get("num_key_value_heads") or heads,
            head_dim=config.get("head_dim") or config["hidden_size"] // heads,
            vocabulary=config["vocab_size"],
        )

    @property
    def qkv_weights(self) -> int:
        """Weights of one layer's first product."""
        return self.hidden * (self.heads + 2 * self.kv_heads) * self.head_dim

    @property
    def output_weights(self) -> int:
        """Weights of one layer's product after attention."""
        return self.heads * self.head_dim * self.hidden

    @property
    def mlp_weights(self) -> int:
        """Weights of one of the three products of one layer's MLP."""
        return self.hidden * self.intermediate

    @property
    def layer_weights(self) -> int:
        return self.qkv_weights + self.output_weights + 3 * self.mlp_weights

    @property
    def head_weights(self) -> int:
        return self.hidden * self.vocabulary

    def attention_flops(self, tokens: int, start: int = 0) -> int:
        """Scores and sums of `tokens` queries in all layers; the first sees `start` tokens and itself."""
        seen = tokens * start + tokens * (tokens + 1) // 2
        return 4 * self.layers * self.heads * self.head_dim * seen

    def prefill_flops(self, tokens: int, start: int = 0) -> int:
        """Of `tokens` prompt tokens after `start` cached ones, with the head for the last one alone."""
        products = 2 * self.layers * self.layer_weights * tokens
        return products + self.attention_flops(tokens, start) + 2 * self.head_weights

    def decode_flops(self, batch: int, context: int) -> int:
        """Of one step of `batch` sequences with `context` tokens each."""
        products = 2 * (self.layers * self.layer_weights + self.head_weights)
        return batch * (products + self.attention_flops(1, context))

    def decode_bytes(self, batch: int, context: int, weight_bytes: float = BF16_BYTES) -> float:
        """Read by one step: every weight once, and the keys and values of every sequence."""
        weights = (self.layers * self.layer_weights + self.head_weights) * weight_bytes
        return weights + batch * context * self.layers * 2 * self.kv_heads * self.head_dim * CACHE_BYTES


class Work(Protocol):
    """What a machine's least time is computed from."""

    def prefill_flops(self, tokens: int, start: int = 0) -> int: ...

    def decode_flops(self, batch: int, context: int) -> int: ...

    def decode_bytes(self, batch: int, context: int, weight_bytes: float = BF16_BYTES) -> float: ...


@dataclass(frozen=True)
class Machine:
    """Limits of a machine, measured by `limits.py`."""

    flops: float  # floating-point operations a second
    bandwidth: float  # bytes a second

    def prefill_s(self, shape: Work, tokens: int, start: int = 0) -> float:
        return shape.prefill_flops(tokens, start) / self.flops

    def decode_s(self, shape: Work, batch: int, context: int, weight_bytes: float = BF16_BYTES) -> float:
        """Least time of one step."""
        reading = shape.decode_bytes(batch, context, weight_bytes) / self.bandwidth
        return max(reading, shape.decode_flops(batch, context) / self.flops)

    def load_s(
        self,
        shape: Work,
        requests: int,
        concurrency: int,
        *,
        input_len: int,
        output_len: int,
        prefix_len: int = 0,
        weight_bytes: float = BF16_BYTES,
    ) -> float:
        """Least time of `requests` requests: all prompts, then all decoding steps of full batches.

        A shared prefix is computed once. The first token of an answer comes out of its prompt.
        """
        prompts = requests * self.prefill_s(shape, input_len - prefix_len, prefix_len)
        if prefix_len:
            prompts += self.prefill_s(shape, prefix_len)
        context = input_len + output_len // 2
        steps = requests * (output_len - 1) / concurrency
        return prompts + steps * self.decode_s(shape, concurrency, context, weight_bytes)
