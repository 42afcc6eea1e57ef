"""Which parts of a decoder's layers are divided: each kind is known by the names of its tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from torch import nn

from serve_app.models.split.attention import attention, is_attention
from serve_app.models.split.feed_forward import experts, is_experts, is_mlp, mlp
from serve_app.models.split.recurrent import (
    gated_delta,
    kimi_delta,
    lightning,
    mamba,
    mamba2,
    short_convolution,
)
from serve_app.models.split.share import WHOLE, NotDivided, Part

Divide = Callable[[Part], None]

# Linears after experts: a bias of theirs would be added by every rank.
AFTER: Final = frozenset({"fc2_latent_proj", "post_expert_proj"})
# The first kind of which a module has all names.
RECURRENT: Final[tuple[tuple[tuple[str, ...], Divide], ...]] = (
    (("in_proj", "conv1d", "x_proj", "dt_proj", "out_proj"), mamba),
    (("in_proj", "conv1d", "A_log", "D", "dt_bias", "out_proj"), mamba2),
    (("in_proj", "conv", "out_proj"), short_convolution),
    (("conv1d", "forget_gate", "o_proj"), kimi_delta),
    (("conv1d", "A_log", "dt_bias"), gated_delta),
    (("qkv_proj", "output_gate", "norm", "out_proj"), lightning),
)


def divided(decoder: nn.Module, ranks: int, *, whole_experts: bool) -> tuple[dict[str, Part], dict[str, str]]:
    """The divided parts of all layers, by their paths in the decoder, and why others are not.

    The children of a layer whose outputs are added to the residual are divided as a whole or not at all, and
    so are those of the same name and class in other layers.
    """
    found: dict[str, Part] = {}
    failed: dict[tuple[str, type], str] = {}
    for at, layer in layers_of(decoder):
        for path, part, divide in _parts(layer, ranks, whole_experts=whole_experts):
            try:
                divide(part)
                if path:
                    _check_all(part, divide)
            except NotDivided as error:
                failed.setdefault(_kind(layer, path), str(error))
            else:
                found[f"{at}.{path}" if path else at] = part
    for at, layer in layers_of(decoder):
        for name in {
            _unit(layer, path.removeprefix(f"{at}.")) for path in found if path.startswith(f"{at}.")
        }:
            if rest := _undivided(layer, at, name, found):
                failed.setdefault(_kind(layer, name), f"{rest} is not divided, and what is beside it is")
    for at, layer in layers_of(decoder):
        for path in [path for path in found if path.startswith(f"{at}.")]:
            if _kind(layer, path.removeprefix(f"{at}.")) in failed:
                del found[path]
    return found, {f"{name} ({kind.__name__})": reason for (name, kind), reason in failed.items()}


def sums_of(decoder: nn.Module, path: str, part: Part) -> Iterator[str]:
    """The paths of modules in the decoder whose outputs are sums over ranks, because of one part."""
    yield from (f"{path}.{name}" for name in part.sums)
    for at, layer in layers_of(decoder):
        if path == at:
            yield from (f"{path}.{name}" for name in part.writes)
        elif path.startswith(f"{at}.") and part.writes:
            yield f"{at}.{_unit(layer, path.removeprefix(f'{at}.'))}"


def layers_of(decoder: nn.Module) -> list[tuple[str, nn.Module]]:
    """The layers of a decoder: the longest list that is in no other one."""
    lists: dict[str, nn.ModuleList] = {}
    for path, module in decoder.named_modules():
        if isinstance(module, nn.ModuleList) and not any(path.startswith(f"{each}.") for each in lists):
            lists[path] = module
    if not lists:
        return []
    at, layers = max(lists.items(), key=lambda each: len(each[1]))
    return [(f"{at}.{index}", layer) for index, layer in enumerate(layers)]


def _parts(layer: nn.Module, ranks: int, *, whole_experts: bool) -> Iterator[tuple[str, Part, Divide]]:
    """The parts of a layer of known kinds, with their paths. A layer may be one itself: an MLP."""
    for path, module in layer.named_modules():
        if not WHOLE.isdisjoint(path.split(".")):
            continue
        part = Part(module, ranks)
        if not path:
            if is_mlp(part):
                yield path, part, mlp
            continue
        recurrent = next((kind for names, kind in RECURRENT if all(each in part for each in names)), None)
        if recurrent is not None:
            yield path, part, recurrent
        elif is_attention(part):
            yield path, part, attention
        elif is_experts(part):
            yield path, part, partial(experts, whole=whole_experts)
        elif is_mlp(part):
            yield path, part, mlp


def _check_all(part: Part, divide: Divide) -> None:
    """Raise NotDivided if a part has a tensor that is neither divided nor known to be the same in every rank.

    Norms of a layer with a state are for one head each, and `attention` has looked at those of its own.
    """
    by_heads = divide is attention or any(divide is kind for _, kind in RECURRENT)
    for path, parameter in part.module.named_parameters():
        names = path.split(".")
        known = path in part.shares or parameter.numel() == 1 or not WHOLE.isdisjoint(names)
        if not known and not (by_heads and "norm" in names[0]):
            raise NotDivided(f"{path} of {type(part.module).__name__} is for all of its width")


def _unit(layer: nn.Module, path: str) -> str:
    """The child of a layer that adds to the residual, and that the part at `path` is in."""
    first, _, rest = path.partition(".")
    child = layer._modules.get(first)
    return f"{first}.{rest.partition('.')[0]}" if isinstance(child, nn.ModuleList) else first


def _kind(layer: nn.Module, path: str) -> tuple[str, type]:
    if not path:
        return "", type(layer)
    unit = _unit(layer, path)
    return unit, type(layer.get_submodule(unit))


def _undivided(layer: nn.Module, at: str, unit: str, found: dict[str, Part]) -> str | None:
    """A tensor of a unit that every rank would have whole, beside parts that are sums only after the unit: a
    norm, say, or a matrix whose products would be added several times."""
    for path, _ in layer.get_submodule(unit).named_parameters(unit):
        names = path.split(".")
        of_part = any(f"{at}.{'.'.join(names[:end])}" in found for end in range(1, len(names)))
        if not of_part and (WHOLE.isdisjoint(names) or (names[-1] == "bias" and names[-2] in AFTER)):
            return path
    return None
