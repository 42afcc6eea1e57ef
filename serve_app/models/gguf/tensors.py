"""The tensors of a GGUF file with the names, shapes and order of a checkpoint in transformers' layout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from serve_app.models.gguf.changes import MINUS_ONE, PAIRED, Change
from serve_app.models.gguf.facts import ORIGIN, Facts
from serve_app.models.gguf.families import Family
from serve_app.models.gguf.header import TensorEntry
from serve_app.models.stored import StoredTensor

_TOP: Final = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_POSITIONS: Final = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
# Tensors that llama.cpp has without a dimension of one -> where that dimension is.
_SQUEEZED: Final = {"ffn_gate_inp_shexp": 0, "shortconv.conv": 1, "ssm_conv1d": 1}
_DIMENSIONS: Final = {"ffn_gate_inp_shexp": 2, "shortconv.conv": 3, "ssm_conv1d": 3}


def renamed(facts: Facts, family: Family, config: Mapping[str, Any]) -> list[StoredTensor]:
    """All tensors, of experts one for each. Raises ModelLoadError for a tensor without a rule."""
    return [
        made
        for entry in facts.tensors.values()
        if entry.name not in _POSITIONS
        for made in _tensors(entry, facts, family, config)
    ]


def _tensors(
    entry: TensorEntry, facts: Facts, family: Family, config: Mapping[str, Any]
) -> Iterator[StoredTensor]:
    leaf, _, suffix = entry.name.rpartition(".")
    if leaf.startswith("blk."):
        _, layer, leaf = leaf.split(".", 2)
        own, prefix = family.layer, f"model.layers.{layer}."
    else:
        own, prefix = {**_TOP, **family.top}, ""
    if leaf not in own or suffix not in ("weight", "bias"):
        raise facts.error(
            f"its tensor {entry.name} is not known for the architecture {facts.architecture!r}; {ORIGIN}"
        )
    shape = entry.shape
    if leaf in _SQUEEZED and suffix == "weight" and len(shape) < _DIMENSIONS[leaf]:
        shape = (*shape[: _SQUEEZED[leaf]], 1, *shape[_SQUEEZED[leaf] :])
    changes: list[Change] = []
    if family.norms_plus_one and leaf.endswith("norm"):
        changes.append((MINUS_ONE,))
    if family.paired and leaf in ("attn_q", "attn_k"):
        heads = config["num_attention_heads" if leaf == "attn_q" else "num_key_value_heads"]
        if shape[0] % (2 * heads):
            raise facts.error(f"{heads} heads do not divide the {shape[0]} rows of {entry.name}")
        changes.append((PAIRED, heads))
    name = f"{prefix}{own[leaf]}.{suffix}"
    whole = StoredTensor(
        name, entry.type.name, shape, entry.path, entry.start, entry.num_bytes, tuple(changes)
    )
    if "{}" not in name:
        yield whole
        return
    if len(shape) != 3:
        raise facts.error(f"its {entry.name} has the shape {list(shape)}, not [experts, rows, columns]")
    for number in range(shape[0]):
        yield whole.entry(number, name.format(number))
