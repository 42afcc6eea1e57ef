"""The tensors of a GGUF file with the names, shapes and order of a checkpoint in transformers' layout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
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
    """All tensors, of experts one for each unless a checkpoint has them as one. Raises ModelLoadError for a
    tensor without a rule."""
    found: list[StoredTensor] = []
    halves: dict[str, dict[str, TensorEntry]] = {}  # by the tensor that they become, by their own names
    whole_of = {half: whole for whole, names in family.joined.items() for half in names}
    for entry in facts.tensors.values():
        if entry.name in _POSITIONS:
            continue
        layer, name = _place(entry.name)
        if layer is not None and int(layer) >= config["num_hidden_layers"]:
            continue  # of layers that only draft
        if layer is not None and name in whole_of:
            halves.setdefault(f"model.layers.{layer}.{whole_of[name]}", {})[name] = entry
        else:
            found += _tensors(entry, layer, name, facts, family, config)
    for whole, entries in halves.items():
        names = family.joined[whole.split(".", 3)[3]]
        found.append(_joined(whole, [entries.get(each) for each in names], names[0], facts, family, config))
    return found


def _place(name: str) -> tuple[str | None, str]:
    """The layer of a tensor, if it is in one, and its name there."""
    if not name.startswith("blk."):
        return None, name
    _, layer, name = name.split(".", 2)
    return layer, name


def _tensors(
    entry: TensorEntry,
    layer: str | None,
    name: str,
    facts: Facts,
    family: Family,
    config: Mapping[str, Any],
) -> Iterator[StoredTensor]:
    own = family.layer if layer is not None else {**_TOP, **family.top}
    prefix = "" if layer is None else f"model.layers.{layer}."
    leaf, _, suffix = name.rpartition(".")
    if name in own:
        target = prefix + own[name]
    elif leaf in own and suffix in ("weight", "bias"):
        target = f"{prefix}{own[leaf]}.{suffix}"
    else:
        raise facts.error(
            f"its tensor {entry.name} is not known for the architecture {facts.architecture!r}; {ORIGIN}"
        )
    shape = entry.shape
    if leaf in _SQUEEZED and suffix == "weight" and len(shape) < _DIMENSIONS[leaf]:
        shape = (*shape[: _SQUEEZED[leaf]], 1, *shape[_SQUEEZED[leaf] :])
    changes: list[Change] = []
    if family.norms_plus_one and leaf.endswith("norm") and leaf != "ssm_norm":
        changes.append((MINUS_ONE,))
    if family.paired and leaf in ("attn_q", "attn_k"):
        heads = config["num_attention_heads" if leaf == "attn_q" else "num_key_value_heads"]
        if shape[0] % (2 * heads):
            raise facts.error(f"{heads} heads do not divide the {shape[0]} rows of {entry.name}")
        changes.append((PAIRED, heads))
    if layer is not None:
        changes += family.changes(name, config)
    whole = replace(_stored(target, entry), shape=shape, changes=tuple(changes))
    if "{}" not in target:
        yield whole
        return
    if len(shape) != 3:
        raise facts.error(f"its {entry.name} has the shape {list(shape)}, not [experts, rows, columns]")
    for number in range(shape[0]):
        yield whole.entry(number, target.format(number))


def _joined(
    target: str,
    entries: Sequence[TensorEntry | None],
    first: str,
    facts: Facts,
    family: Family,
    config: Mapping[str, Any],
) -> StoredTensor:
    """The entries of each expert one after the other, as one tensor."""
    there = [each for each in entries if each is not None]
    if len(there) < len(entries):
        raise facts.error(f"of {there[0].name} and what belongs to it, a part is missing")
    kinds = {(each.type.name, each.shape) for each in there}
    if len(kinds) > 1:
        described = " and ".join(f"{each.name} is {each.type.name} {list(each.shape)}" for each in there)
        raise facts.error(f"{described}, which cannot be one tensor here; {ORIGIN}")
    experts, rows, *columns = there[0].shape
    return replace(
        _stored(target, there[0]),
        shape=(experts, len(there) * rows, *columns),
        num_bytes=sum(each.num_bytes for each in there),
        changes=tuple(family.changes(first, config)),
        pieces=tuple(_stored(each.name, each) for each in there),
    )


def _stored(name: str, entry: TensorEntry) -> StoredTensor:
    return StoredTensor(name, entry.type.name, entry.shape, entry.path, entry.start, entry.num_bytes)
