"""An MLP with experts whose router is native too: one call computes it, or a part of the call for all layers.

Whether a block chooses its experts in a way that the native router knows is found by trying a few rows, not
by names of classes. Any other block stays transformers' own, around packed weights.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import nn

from serve_app.engine.experts.packed import PLACE, PackedExperts
from serve_app.engine.experts.router import ROWS, Choices
from serve_app.engine.experts.shared import SharedExpert
from serve_app.engine.kernels.experts import NativeMixture
from serve_app.engine.kernels.native import Native
from serve_app.engine.kernels.plain import Routing
from serve_app.engine.model.forward import applied_adapters
from serve_app.engine.weights.packed_linear import PackedLinear
from serve_app.engine.weights.stand_ins import LinearWeight

FEW: Final = 3  # rows that the whole block computes as it is, and natively
TOLERANCE: Final = 1e-5  # of what the block makes of them, relative and by norm


class NativeBlock(nn.Module):
    """Computes the same as a block of transformers with packed weights."""

    def __init__(
        self,
        block: nn.Module,
        shared: SharedExpert | None,
        native: NativeMixture,
        kernels: Native,
        *,
        alone: bool,
    ) -> None:
        """`native`: over the weights of `block`. `shared`: that of `block`.

        `alone`: the block returns its outputs alone, not as the first of a pair.
        """
        super().__init__()
        self._block, self._shared, self._alone = block, shared, alone
        self.native, self._kernels = native, kernels

    def forward(self, x: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, None]:
        """[..., N] -> [..., N] of the type of x, alone or in a pair as the block returns it."""
        rows = self._kernels.widen(x.reshape(-1, x.shape[-1]))
        shared = []
        if self._shared is not None and applied_adapters() is not None:
            shared.append(self._shared(rows))
        made = self._kernels.run_mixture(self.native, rows, *shared).view(x.shape).to(x.dtype)
        return made if self._alone else (made, None)

    @classmethod
    def of(cls, block: nn.Module, config: Any, kernels: Native) -> NativeBlock | None:
        """The native form of `block`, which has packed weights. `config`: of the model's text.

        None if the block chooses its experts in another way, or if it has more than experts, a router and a
        shared expert.
        """
        parts = _Parts.of(block)
        if parts is None:
            return None
        random = torch.Generator().manual_seed(0)
        x = torch.randn(ROWS, parts.router.in_features, generator=random)
        with torch.inference_mode(), parts.wide_outputs():
            choices = parts.choices_of(block, x)
            routing = None if choices is None else choices.routing(block, config)
            native = None if routing is None else parts.mixture(routing)
            if native is None:
                return None
            want: Any = block(x[None, :FEW])
            rows = (want[0] if isinstance(want, tuple) else want).view(FEW, -1)
            error = kernels.run_mixture(native, x[:FEW]) - rows
            if not float(error.norm()) <= TOLERANCE * float(rows.norm()):
                return None
        return cls(block, parts.shared, native, kernels, alone=torch.is_tensor(want))


@dataclass(frozen=True, slots=True)
class _Parts:
    """All that a block with packed weights consists of, and that is native."""

    router: PackedLinear
    place: nn.Module  # that has the experts
    experts: PackedExperts
    shared: SharedExpert | None
    gate: PackedLinear | None  # of the shared expert

    @classmethod
    def of(cls, block: nn.Module) -> _Parts | None:
        """None if the block has other parts, or if a part is not native."""
        modules = list(block.modules())
        places = [part for part in modules if hasattr(part, PLACE)]
        shared = [part for part in modules if isinstance(part, SharedExpert)]
        if len(places) != 1 or len(shared) > 1 or any(map(_is_hooked, modules)):
            return None
        experts: PackedExperts = getattr(places[0], PLACE)
        if experts.native is None or any(part.native is None for part in shared):
            return None
        (inputs, _), count = experts.native.features, experts.native.struct.count
        inner = {linear for part in shared for linear in part.modules()}
        linears = [part for part in modules if isinstance(part, PackedLinear) and part not in inner]
        stand_ins = [
            each for part in modules for each in vars(part).values() if isinstance(each, LinearWeight)
        ]
        linears += [each.linear for each in stand_ins]
        routers = [each for each in linears if each.out_features == count]
        gates = [each for each in linears if each.out_features == 1 and shared]
        if len(routers) != 1 or len(gates) > 1 or len(linears) != len(routers) + len(gates):
            return None
        if routers[0].in_features != inputs or any(part.numel() != count for part in block.parameters()):
            return None
        return cls(routers[0], places[0], experts, next(iter(shared), None), next(iter(gates), None))

    def choices_of(self, block: nn.Module, x: torch.Tensor) -> Choices | None:
        """What `block` chooses for rows x [T, N]; None if it needs more than rows, or makes no choice."""
        found: list[tuple[torch.Tensor, torch.Tensor]] = []

        def record(rows: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
            found.append((chosen.long(), weights.float()))
            return torch.zeros_like(rows)

        try:
            inspect.signature(block.forward).bind(x)
        except TypeError:
            return None
        setattr(self.place, PLACE, record)
        try:
            block(x[None])
        finally:
            setattr(self.place, PLACE, self.experts)
        if len(found) != 1 or found[0][0].shape != found[0][1].shape or len(found[0][0]) != len(x):
            return None
        return Choices(self.router.project(x), *found[0])

    def mixture(self, routing: Routing) -> NativeMixture | None:
        router, experts = self.router.describe(), self.experts.native
        gate = None if self.gate is None else self.gate.describe()
        if router is None or experts is None or (gate is None) != (self.gate is None):
            return None
        shared = None if self.shared is None else self.shared.native
        return NativeMixture.of(router, routing, experts, shared, gate)

    @contextmanager
    def wide_outputs(self) -> Iterator[None]:
        """In the context, the block rounds no output of the router or the gate."""
        linears = [each for each in (self.router, self.gate) if each is not None]
        before = [each.wide_output for each in linears]
        for each in linears:
            each.wide_output = True
        try:
            yield
        finally:
            for each, wide in zip(linears, before, strict=True):
                each.wide_output = wide


def _is_hooked(module: nn.Module) -> bool:
    """Whether more happens in a call than the module's own forward: ranks add up what it makes."""
    return bool(module._forward_hooks or module._forward_pre_hooks)
