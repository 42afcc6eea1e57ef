"""How a model is divided among ranks: derived from transformers' plan, checked against the model's shapes.

Each rank builds the model from a configuration with a part of the heads and of the widths, so everything
after the load works as for a smaller model. Linears that read the residual keep some of their outputs, and
linears that write to it keep some of their inputs: the outputs of those layers are sums over ranks. Rows of
embedding and head are divided by vocabulary. What the plan does not split, every rank repeats.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from serve_app.models.errors import ModelLoadError
from serve_app.models.split.cut import Cut, even, joined
from serve_app.models.split.sizes import WIDTHS, indivisible

KEYS_VALUES: Final = ("k_proj", "v_proj")
SIDE_BY_SIDE: Final = ("qkv_proj", "gate_up_proj")
# Linears by what a rank keeps: some of the outputs, or some of the inputs. `sinks` are numbers of heads.
OUTPUTS: Final = ("q_proj", *KEYS_VALUES, "gate_proj", "up_proj", "w1", "w3", *SIDE_BY_SIDE, "sinks")
ATTENTION: Final = ("q_proj", *KEYS_VALUES)
MLP: Final = ("gate_proj", "up_proj")
INPUTS: Final = ("o_proj", "down_proj", "w2")
VOCABULARY: Final = ("embed_tokens.weight", "lm_head.weight", "lm_head.bias")
# The styles of transformers' plan under which a tensor may be cut. Transformers itself does not cut linears
# side by side. What it calls rows of experts' matrices are columns in some models: their shapes decide.
STYLES: Final = ("colwise", "rowwise", "packed_colwise", "packed_rowwise")
STYLES_SIDE_BY_SIDE: Final = (*STYLES, "colwise_gather_output", "rowwise_split_input")
CHOOSERS: Final = ("gate", "router", "shared_expert_gate")  # of experts: every rank has them whole
OTHER_PARTS: Final = ("vision", "visual", "audio")

_NUMBER: Final = re.compile(r"(?<=\.)\d+(?=\.|$)")


@dataclass(frozen=True, slots=True)
class Split:
    """The part of a model that one rank keeps."""

    rank: int
    ranks: int
    config: PreTrainedConfig  # of the rank's module; its vocabulary is the rank's share
    vocab_size: int  # of the model
    heads: int  # of the model
    kv_heads: int
    summed: frozenset[str]  # children of a layer whose outputs are sums over ranks, by name
    dims: Mapping[str, int]  # by the name of a tensor in a layer, with * for numbers: the dimension to cut

    @classmethod
    def of(cls, whole: PreTrainedModel, rank: int, ranks: int) -> Split:
        """`whole`: the model, on the meta device.

        Raises ModelLoadError, with the name of what cannot be divided.
        """
        name, text = type(whole).__name__, whole.config.get_text_config()
        if reason := indivisible(text.to_dict(), ranks):
            raise _refused(name, ranks, reason)
        styles = _styles(whole)
        try:
            config = _share(whole.config, styles, ranks)
            with torch.device("meta"):
                part = type(whole)._from_config(config, dtype=whole.dtype)
        except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
            raise _refused(
                name, ranks, f"a model of a part of its heads cannot be built ({error})"
            ) from error
        shapes = {path: tuple(each.shape) for path, each in part.named_parameters()}
        cuts = dict(_cuts(whole, shapes, styles, name, ranks))
        dims = {_generic(path): dim for path, dim in cuts.items() if "layers." in path}
        summed = frozenset(_child(path) for path in dims if _leaf(path) in INPUTS)
        if not summed:
            raise _refused(name, ranks, "transformers' plan splits none of its layers")
        for path, each in whole.named_parameters():
            generic = _generic(path)
            beside = "layers." in path and each.dim() > 1 and _child(generic) in summed
            if beside and generic not in dims and not set(CHOOSERS) & set(path.split(".")):
                raise _refused(name, ranks, f"{path} is not divided, and the layer around it is")
        heads = int(text.num_attention_heads)
        kv_heads = int(getattr(text, "num_key_value_heads", None) or heads)
        return cls(rank, ranks, config, int(text.vocab_size), heads, kv_heads, summed, dims)

    def cut_of(self, name: str, shape: tuple[int, ...]) -> Cut | None:
        """As `CutOf`, of the tensors of a checkpoint."""
        if any(part in name for part in OTHER_PARTS):
            return None
        if name.endswith(VOCABULARY):
            return self._of_vocabulary(shape[0])
        generic, leaf = _generic(name), _leaf(name)
        dim = self.dims.get(generic)
        if dim is None and ".experts.*." in generic and self._splits_experts and shape:
            # Of one expert; in the model all experts are one tensor.
            dim = 0 if leaf in OUTPUTS else 1 if leaf in INPUTS and len(shape) > 1 else None
        if dim is not None:
            return joined(dim, self._ranges(leaf, shape[dim]))
        if leaf in INPUTS and name.endswith(".bias") and self.rank and generic[:-4] + "weight" in self.dims:
            return Cut(0, (), shape[0])  # added once: by the first rank
        return None

    def whole(self, module: str, shape: tuple[int, int]) -> tuple[int, int]:
        """The shape (N, K) of a linear in the whole model, by that of the rank's part."""
        outputs, inputs = shape
        if not self._is_split(module):
            return shape
        if module in INPUTS:
            return outputs, inputs * self.ranks
        if module in KEYS_VALUES:
            return outputs * self.kv_heads // max(1, self.kv_heads // self.ranks), inputs
        return outputs * self.ranks, inputs

    def part(self, module: str, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The rank's parts of an adapter's matrices A [r, K] and B [N, r] at a linear of this name."""
        if not self._is_split(module):
            return a, b
        if module in INPUTS:
            return joined(1, self._ranges(module, a.shape[1])).of(a), b
        return a, joined(0, self._ranges(module, b.shape[0])).of(b)

    def _is_split(self, module: str) -> bool:
        beside = "qkv_proj" if module in ATTENTION else "gate_up_proj" if module in MLP else module
        return any(_leaf(path) in (module, beside) for path in self.dims)

    @property
    def _splits_experts(self) -> bool:
        return any(".experts." in path for path in self.dims)

    def _ranges(self, leaf: str, size: int) -> Iterator[tuple[int, int]]:
        if leaf in KEYS_VALUES:
            yield self._of_heads(size, self.kv_heads)
        elif leaf == "qkv_proj":
            head = size // (self.heads + 2 * self.kv_heads)
            q, kv = self.heads * head, self.kv_heads * head
            yield even(q, self.rank, self.ranks)
            for start in (q, q + kv):
                first, last = self._of_heads(kv, self.kv_heads)
                yield start + first, start + last
        elif leaf == "gate_up_proj":
            for start in (0, size // 2):
                first, last = even(size // 2, self.rank, self.ranks)
                yield start + first, start + last
        else:
            yield even(size, self.rank, self.ranks)

    def _of_heads(self, size: int, heads: int) -> tuple[int, int]:
        """The range of a rank's heads; if there are fewer heads than ranks, several ranks have the same."""
        head, count = size // heads, max(1, heads // self.ranks)
        first = self.rank * heads // self.ranks
        return first * head, (first + count) * head

    def _of_vocabulary(self, size: int) -> Cut:
        part = -(-size // self.ranks)
        start = min(size, self.rank * part)
        return Cut(0, ((start, min(size, start + part)),), part)


def _share(config: PreTrainedConfig, styles: Mapping[str, str], ranks: int) -> PreTrainedConfig:
    """The configuration of one rank's module."""
    made = copy.deepcopy(config)
    text: Any = made.get_text_config()
    by_leaf = {_leaf(path): style for path, style in styles.items()}
    heads = int(text.num_attention_heads)
    if getattr(text, "head_dim", None) is None:
        text.head_dim = text.hidden_size // heads
    has_latents = getattr(text, "kv_lora_rank", None)
    if not has_latents and (by_leaf.get("q_proj") == "colwise" or "qkv_proj" in by_leaf):
        text.num_attention_heads = heads // ranks
        if isinstance(getattr(text, "num_key_value_heads", None), int):
            text.num_key_value_heads = max(1, text.num_key_value_heads // ranks)
    if "down_proj" in by_leaf or "w2" in by_leaf:
        for width in WIDTHS:
            if isinstance(value := getattr(text, width, None), int):
                setattr(text, width, value // ranks)
    text.vocab_size = -(-text.vocab_size // ranks)
    for owner in (made, text):  # a token of padding must be in the vocabulary; nothing else reads it
        owner.pad_token_id = None
    return made


def _styles(whole: PreTrainedModel) -> dict[str, str]:
    """Transformers' plan: a style by the path of a module or tensor in a layer, with * for numbers."""
    plan: Mapping[str, str] = getattr(whole, "tp_plan", None) or {}
    return {path[path.index("layers.") :]: style for path, style in plan.items() if "layers." in path}


def _cuts(
    whole: PreTrainedModel,
    shapes: Mapping[str, tuple[int, ...]],
    styles: Mapping[str, str],
    name: str,
    ranks: int,
) -> Iterator[tuple[str, int]]:
    """The dimension to cut of each parameter of `whole` that differs from the rank's, of shape `shapes`.

    Raises ModelLoadError for one that the plan does not split.
    """
    for path, each in whole.named_parameters():
        here, there = tuple(each.shape), shapes.get(path)
        if there is None:
            raise _refused(name, ranks, f"a model of a part of its heads has no {path}")
        dims = [dim for dim, (a, b) in enumerate(zip(here, there, strict=True)) if a != b]
        if not dims:
            continue
        leaf, generic = _leaf(path), _generic(path)
        if "layers." not in path:
            known = path.endswith(VOCABULARY)
        else:
            style = styles.get(generic.removesuffix(".weight").removesuffix(".bias"))
            allowed = STYLES_SIDE_BY_SIDE if _is_side_by_side(generic, styles) else STYLES
            known = leaf == "sinks" or (leaf in OUTPUTS + INPUTS and style in allowed)
        if len(dims) > 1 or not known:
            raise _refused(name, ranks, f"transformers' plan does not say how {path} is divided")
        yield path, dims[0]


def _is_side_by_side(generic: str, styles: Mapping[str, str]) -> bool:
    """Whether a linear is one side by side, or the one after it."""
    parent = generic.split(f".{_leaf(generic)}")[0]
    return any(f"{parent}.{each}" in styles for each in SIDE_BY_SIDE)


def _generic(path: str) -> str:
    """`model.layers.3.mlp.experts.7.w1.weight` -> `layers.*.mlp.experts.*.w1.weight`."""
    place = path.find("layers.")
    return _NUMBER.sub("*", path[place:] if place >= 0 else path)


def _leaf(path: str) -> str:
    return path.removesuffix(".weight").removesuffix(".bias").removesuffix("_bias").rpartition(".")[2]


def _child(generic: str) -> str:
    """The child of a layer that a tensor is in: `layers.*.mlp.down_proj.weight` -> `mlp`."""
    return generic.split(".")[2]


def _refused(name: str, ranks: int, reason: str) -> ModelLoadError:
    return ModelLoadError(f"{name} cannot be divided for tensor_parallel {ranks}: {reason}")
