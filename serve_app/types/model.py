"""The facts about a model that a gateway may know."""

from __future__ import annotations

from dataclasses import dataclass

from serve_app.types.sampling import NO_DEFAULTS, SamplingDefaults


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """The facts about a model that a gateway may know without loading it."""

    name: str
    version: str = ""
    weights: str = (
        ""  # fingerprint of all that decides over tokens: weights, tokenizer, templates; "": unknown
    )
    created: int  # Unix seconds, when the replica came up
    context_window: int  # prompt + output tokens
    vocab_size: int
    max_output_tokens: int | None = None  # of one sequence; None: what the window leaves
    sampling_defaults: SamplingDefaults = NO_DEFAULTS
    has_chat_template: bool
    has_fim: bool
    limits_thoughts: bool = True  # whether a budget can end them, should it think
    dtype: str
    quantization: str = "none"  # of the weights of linear layers: none, int8, int4 or fp8
    device: str
    dimensions: int | None = None  # of its vectors, if it is an embedder; None: it generates
    pad_token_id: int | None = None  # of its tokenizer, if it has one
    end_token_id: int | None = None  # its tokenizer's own, if it has one
    eos_token_ids: tuple[int, ...] = ()  # all that end an answer
    eos_tokens: tuple[str, ...] = ()  # their texts, in the same order
    adapters: tuple[str, ...] = ()  # the operator's, by name
    max_requests: int | None = None  # of an idle replica at once, running and waiting; None: unlimited

    @property
    def filler_token_id(self) -> int:
        """The token that pads rows to one length: the pad token, otherwise an end token, otherwise 0."""
        return self.end_token_id or 0 if self.pad_token_id is None else self.pad_token_id
