"""The question of a trial: whether the kernels give plain torch's results for one model.

It is passed to the trial's process as JSON.
"""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import torch
from torch import nn
from transformers import PreTrainedModel

from serve_app.engine.attention.recorder import RecordedCall, Recorder
from serve_app.engine.cuda.trial.steps import DECODES
from serve_app.engine.experts.gate import Gate, gate_of, is_experts
from serve_app.engine.fused.checks import FirstLayers, run_model
from serve_app.engine.fused.families import family_of
from serve_app.engine.model.forward import check_codes
from serve_app.engine.model.stateful import stateful_functions
from serve_app.engine.weights.packable import COUNTS

LAYERS: Final = 2  # of the small model, or as many as there are kinds of layers
EXPERTS: Final = 8  # of a layer of the small model, at most
VOCABULARY: Final = 512  # of the small model: embedding and head are products of torch
LONGEST: Final = 4400  # tokens: parts of a decode are joined sixteen at a time, and these are eighteen


@dataclass(frozen=True, slots=True)
class AttentionUse:
    """One way in which a model's layers call attention."""

    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    scale: float
    window: int | None
    softcap: float | None
    sinks: bool
    latent: bool = False

    @classmethod
    def of(cls, call: RecordedCall) -> AttentionUse:
        spec = call.spec
        shape = call.heads, spec.num_kv_heads, spec.key_dim, spec.value_dim
        return cls(*shape, call.scale, call.window, call.softcap, call.sinks is not None, spec.latent)


@dataclass(frozen=True, slots=True)
class ExpertsUse:
    """One kind of layers with experts."""

    experts: int
    chosen: int  # of them by a row
    width: int  # of a row
    inner: int  # between the two products
    gate: Gate | None
    has_gate: bool
    biased: bool
    in_turn: bool  # gates and ups
    transposed: bool

    @classmethod
    def of(cls, module: nn.Module, config: Any) -> ExpertsUse:
        """`config`: the configuration of the model's text part."""
        part: Any = module
        matrix = part.down_proj
        inner, width = matrix.shape[1:] if part.is_transposed else matrix.shape[:0:-1]
        chosen = min(int(getattr(config, "num_experts_per_tok", None) or 1), len(matrix))
        form = gate_of(module), part.has_gate, part.has_bias, not part.is_concatenated, part.is_transposed
        return cls(len(matrix), chosen, width, inner, *form)


@dataclass(frozen=True, slots=True)
class Question:
    """Everything that decides which kernels run for a model, and how."""

    device: str
    dtype: str  # by torch's name
    uses: tuple[AttentionUse, ...]
    block_size: int
    codes: str  # of the cache, as the setting `kv_cache_dtype` has it
    model: str | None  # class of a model whose layers can be fused, by transformers' name
    config: str | None  # JSON of a small model of that class, with layers of the same shape
    rank: int = 0  # the largest of adapters on that model; 0: none are tried
    longest: int = LONGEST
    experts: tuple[ExpertsUse, ...] = ()  # of layers that are not fused
    states: bool = False  # whether layers have states
    quantization: str = "none"  # of the weights, as the setting has it

    def to_json(self) -> bytes:
        """Equal questions have equal bytes."""
        return msgspec.json.encode(self)

    @classmethod
    def from_json(cls, text: bytes) -> Question:
        return msgspec.json.decode(text, type=cls)


def ask_about(
    module: PreTrainedModel,
    *,
    dtype: torch.dtype,
    device: torch.device,
    block_size: int,
    codes: str,
    rank: int = 0,
    quantization: str = "none",
    longest: int = LONGEST,
) -> Question:
    """The question for a loaded model whose layers are transformers' own.

    A forward of a few tokens is run to find out. `rank`: the largest rank of the model's adapters, 0 if it
    has none.
    `longest`: tokens of the longest sequence. Raises UnsupportedModel if the cache cannot hold codes.
    """
    recorder = Recorder()
    with FirstLayers(module).alone():  # which are of all kinds
        run_model(module, recorder)
    check_codes((call.spec for call in recorder.calls), codes=codes != "auto")
    fusable = family_of(module) is not None
    text: Any = module.config.get_text_config()
    experts = [ExpertsUse.of(part, text) for part in module.modules() if is_experts(part)]
    positions = int(getattr(text, "max_position_embeddings", None) or longest + DECODES + 1)
    return Question(
        device=str(device),
        dtype=str(dtype).removeprefix("torch."),
        uses=tuple(dict.fromkeys(map(AttentionUse.of, recorder.calls))),
        block_size=block_size,
        codes=codes,
        model=type(module).__name__ if fusable else None,
        config=_small_config(module) if fusable else None,
        rank=rank if fusable else 0,
        longest=min(longest, positions - DECODES - 1),
        experts=tuple(dict.fromkeys(experts)),
        states=any(stateful_functions(type(part)) for part in module.modules()),
        quantization=quantization,
    )


def _small_config(module: PreTrainedModel) -> str:
    """The configuration of a model with few layers, each of which is built like one of `module`'s."""
    config: Any = copy.deepcopy(module.config)
    count = config.num_hidden_layers
    kinds = getattr(config, "layer_types", None)
    if kinds is not None:
        distinct = list(dict.fromkeys(kinds))
        config.layer_types = distinct if len(distinct) >= LAYERS else distinct * LAYERS
    config.num_hidden_layers = min(count, LAYERS) if kinds is None else len(config.layer_types)
    for name in COUNTS:
        if hasattr(config, name):
            setattr(config, name, min(getattr(config, name), EXPERTS))
    if hasattr(config, "num_experts_per_tok"):
        config.num_experts_per_tok = min(config.num_experts_per_tok, EXPERTS)
    config.vocab_size = VOCABULARY
    config.pad_token_id = None
    chosen = json.loads(config.to_json_string(use_diff=False))
    # Of the checkpoint, and not of its layers.
    for name in ("_name_or_path", "architectures", "transformers_version", "quantization_config"):
        chosen.pop(name, None)
    return json.dumps(chosen, sort_keys=True)
