"""The experts of one layer, in the form that native calls need."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from serve_app.engine.kernels.checks import check
from serve_app.engine.kernels.plain import Routing
from serve_app.engine.kernels.structs import (
    ChoicesStruct,
    ExpertsStruct,
    LinearStruct,
    MixtureStruct,
    RouterStruct,
)

_Linears = ctypes.Array[LinearStruct]


@dataclass(frozen=True, slots=True)
class NativeExperts:
    """An argument of `Native.run_experts`. The struct is valid as long as the weights of its linears live."""

    struct: ExpertsStruct
    linears: tuple[_Linears, _Linears]  # of gates and ups, and behind them: the struct leads here

    @property
    def features(self) -> tuple[int, int]:
        """The numbers of inputs and outputs of an expert."""
        return self.linears[0][0].inputs, self.linears[1][0].outputs

    def run(
        self, library: ctypes.CDLL, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        """As `Native.run_experts`, for contiguous tensors, those of floats in float32."""
        choices = self.choices(x, chosen, weights)
        out = torch.empty(len(x), self.features[1])
        library.run_experts(
            *(ctypes.addressof(self.struct), ctypes.addressof(choices), x.data_ptr(), out.data_ptr()),
            torch.get_num_threads(),
        )
        return out

    def choices(self, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> ChoicesStruct:
        """The experts of each row of x, with their weights; valid as long as `chosen` and `weights` live."""
        check(x, torch.float32)
        check(chosen, torch.int64)
        check(weights, torch.float32)
        if (
            x.shape[1:] != (self.features[0],)
            or chosen.shape != weights.shape
            or chosen.shape[:-1] != x.shape[:1]
        ):
            raise ValueError("the rows do not fit the experts, or their choices")
        rows, each = chosen.shape
        return ChoicesStruct(experts=chosen.data_ptr(), weights=weights.data_ptr(), rows=rows, each=each)

    @classmethod
    def of(
        cls,
        gate_up: Sequence[LinearStruct | None],
        down: Sequence[LinearStruct | None],
        *,
        gelu: bool,
        limit: float,
        alpha: float,
        added: float,
    ) -> NativeExperts | None:
        """Join the linears of experts of one shape, in order; None if native calls cannot use one of them.

        Raises ValueError if their shapes do not match. Gates are described in experts.h, at `Experts`.
        """
        firsts = [each for each in gate_up if each is not None]
        lasts = [each for each in down if each is not None]
        if len(firsts) < len(gate_up) or len(lasts) < len(down):
            return None
        shapes = {
            (up.inputs, up.outputs - 2 * last.inputs, last.inputs, last.outputs)
            for up, last in zip(firsts, lasts, strict=True)
        }
        if len(shapes) != 1 or next(iter(shapes))[1]:
            raise ValueError("experts do not fit each other")
        arrays = (LinearStruct * len(firsts))(*firsts), (LinearStruct * len(lasts))(*lasts)
        struct = ExpertsStruct(
            gate_up=ctypes.addressof(arrays[0]),
            down=ctypes.addressof(arrays[1]),
            count=len(firsts),
            gelu=gelu,
            limit=limit,
            alpha=alpha,
            added=added,
        )
        return cls(struct, arrays)


@dataclass(frozen=True, slots=True)
class NativeMixture:
    """An argument of `Native.run_mixture`: experts with their router, and what all rows share. The struct is
    valid as long as the weights of its linears live."""

    struct: MixtureStruct
    experts: NativeExperts  # the struct leads to these three
    shared: NativeExperts | None
    routing: Routing

    @property
    def address(self) -> int:
        return ctypes.addressof(self.struct)

    def run(self, library: ctypes.CDLL, x: torch.Tensor, shared: torch.Tensor | None = None) -> torch.Tensor:
        """As `Native.run_mixture`, for contiguous tensors.

        `shared` [T, M] float32: the outputs of the shared expert, if the caller has computed them.
        """
        check(x, torch.float32)
        inputs, outputs = self.experts.features
        if x.shape[1:] != (inputs,):
            raise ValueError("the rows do not fit the experts")
        out = torch.empty(len(x), outputs)
        if shared is not None:
            check(shared, torch.float32)
            if shared.shape != out.shape:
                raise ValueError("what the rows share does not fit them")
        made = None if shared is None else shared.data_ptr()
        library.run_mixture(self.address, x.data_ptr(), made, out.data_ptr(), len(x), torch.get_num_threads())
        return out

    @classmethod
    def of(
        cls,
        router: LinearStruct,
        routing: Routing,
        experts: NativeExperts,
        shared: NativeExperts | None = None,
        gate: LinearStruct | None = None,
    ) -> NativeMixture:
        """Join a router and its experts with a shared expert, if any, and the gate of that one, if any.

        Raises ValueError if they do not fit each other.
        """
        if (router.inputs, router.outputs) != (experts.features[0], experts.struct.count):
            raise ValueError("a router does not fit its experts")
        if shared is not None and (shared.features, shared.struct.count) != (experts.features, 1):
            raise ValueError("a shared expert does not fit the others")
        if gate is not None and (gate.inputs, gate.outputs) != (experts.features[0], 1):
            raise ValueError("a gate does not fit the shared expert")
        size, rest = divmod(router.outputs, routing.groups)
        if rest or not 0 < routing.kept <= routing.groups or not 0 < routing.best <= min(2, size):
            raise ValueError(f"{router.outputs} experts cannot be chosen by groups in this way")
        if not 0 < routing.each <= routing.kept * size:
            raise ValueError(f"a row cannot choose {routing.each} of {routing.kept * size} experts")
        correction = routing.correction
        if correction is not None:
            check(correction, torch.float32)
            if correction.shape != (router.outputs,):
                raise ValueError("a correction does not fit the experts")
        chooses = RouterStruct(
            linear=router,
            correction=None if correction is None else correction.data_ptr(),
            **{name: getattr(routing, name) for name in ("each", "sigmoid", "normalised", "scale")},
            **{name: getattr(routing, name) for name in ("groups", "kept", "best")},
        )
        struct = MixtureStruct(
            router=chooses,
            experts=experts.struct,
            shared=ExpertsStruct.none() if shared is None else shared.struct,
            gate=gate or LinearStruct.none(),
        )
        return cls(struct, experts, shared, routing)
