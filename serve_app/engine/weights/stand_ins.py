"""Stand-ins for weights that a model's own code multiplies by: those of routers, and of experts in a loop.

Such code passes a parameter, or one matrix of a parameter, to `functional.linear`. A stand-in takes the place
of the parameter and multiplies by a packed weight. A watched forward first shows which parameters the code
uses only for multiplying. Parameters whose names differ only in numbers (layers, experts) count as one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, cast

import torch
from torch import nn
from torch.nn import functional

from serve_app.engine.weights.packed_linear import PackedLinear, apart

_NUMBER: Final = re.compile(r"(?<=\.)\d+(?=\.|$)")

Place = tuple[nn.Module, str]  # a module, and the name of a parameter that it has itself


class LinearWeight:
    """Stands in for a weight [N, K]."""

    def __init__(self, linear: PackedLinear) -> None:
        self.linear = linear
        self.dtype, self.device = linear.dtype, torch.device("cpu")
        self.shape = torch.Size((linear.out_features, linear.in_features))

    def to(self, *_: Any, **__: Any) -> LinearWeight:
        """Returns itself: the product is in float32, whichever type is requested."""
        return self

    def type(self, *_: Any) -> LinearWeight:
        return self

    def float(self) -> LinearWeight:
        return self

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, given: Sequence[Any] = (), more: dict[str, Any] | None = None
    ) -> Any:
        """The product of `functional.linear`, the only function that takes a stand-in."""
        if function is not functional.linear:
            return NotImplemented
        x, weight, bias = _arguments(*given, **(more or {}))
        out = apart(cast(LinearWeight, weight).linear.project(x.reshape(-1, x.shape[-1])))
        out = out.view(*x.shape[:-1], out.shape[-1])
        return out if bias is None else apart(out + bias)


class LinearWeights:
    """Stands in for weights [E, N, K], for code that multiplies by one of the E matrices at a time."""

    def __init__(self, linears: Iterable[PackedLinear]) -> None:
        self._weights = [LinearWeight(linear) for linear in linears]

    def __getitem__(self, index: int | torch.Tensor) -> LinearWeight:
        return self._weights[int(index)]


class _Watched:
    """Stands in for a parameter in a watched forward, and records whether the code uses it for anything but
    multiplying."""

    def __init__(self, weight: torch.Tensor, note: Callable[[bool], None]) -> None:
        self._weight, self._note = weight, note

    def __getattr__(self, name: str) -> Any:
        if name in ("dtype", "device", "shape"):
            return getattr(self._weight, name)
        if name in ("to", "type", "float"):
            return lambda *given, **more: _Watched(getattr(self._weight, name)(*given, **more), self._note)
        self._note(False)
        return getattr(self._weight, name)

    def __getitem__(self, index: Any) -> Any:
        if self._weight.dim() == 3 and (
            isinstance(index, int) or (torch.is_tensor(index) and index.dim() == 0)
        ):
            return _Watched(self._weight[index], self._note)
        self._note(False)
        return self._weight[index]

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, given: Sequence[Any] = (), more: dict[str, Any] | None = None
    ) -> Any:
        if function is functional.linear:
            x, weight, bias = _arguments(*given, **(more or {}))
            if isinstance(weight, _Watched) and weight._weight.dim() == 2 and not isinstance(bias, _Watched):
                weight._note(not isinstance(x, _Watched))
        else:
            for each in (*given, *(more or {}).values()):
                if isinstance(each, _Watched):
                    each._note(False)
        plain = [each._weight if isinstance(each, _Watched) else each for each in given]
        named = {k: v._weight if isinstance(v, _Watched) else v for k, v in (more or {}).items()}
        return function(*plain, **named)


def multiplied_weights(
    candidates: Sequence[tuple[str, Place]], run: Callable[[], object]
) -> frozenset[Place]:
    """The `candidates` (places with their names) that `run` only multiplies by; `run` has to make one
    forward."""
    used: dict[str, bool] = {}

    def note_for(kind: str) -> Callable[[bool], None]:
        def note(multiplied: bool) -> None:
            used[kind] = used.get(kind, True) and multiplied

        return note

    kept = []
    for name, (module, parameter) in candidates:
        weight = module._parameters.pop(parameter)
        kept.append((module, parameter, weight))
        module.__dict__[parameter] = _Watched(cast(torch.Tensor, weight), note_for(_kind(name)))
    try:
        run()
    finally:
        for module, parameter, weight in kept:
            del module.__dict__[parameter]
            module._parameters[parameter] = weight
    return frozenset(place for name, place in candidates if used.get(_kind(name), False))


def stand_in(place: Place, make: Callable[[torch.Tensor], PackedLinear]) -> nn.Parameter:
    """Put a stand-in at `place`, with linears that `make` builds from matrices; returns the parameter that it
    replaces."""
    module, name = place
    weight = cast(nn.Parameter, module._parameters.pop(name))
    found = LinearWeight(make(weight)) if weight.dim() == 2 else LinearWeights(map(make, weight))
    module.__dict__[name] = found
    return weight


def put_back(place: Place, weight: nn.Parameter) -> None:
    """Undo `stand_in`."""
    module, name = place
    del module.__dict__[name]
    module._parameters[name] = weight


def _arguments(input: Any, weight: Any, bias: Any = None) -> tuple[Any, Any, Any]:
    return input, weight, bias


def _kind(name: str) -> str:
    return _NUMBER.sub("*", name)
