"""The part of the self-check that is about routers and shared experts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

from serve_app.engine.kernels.experts import NativeMixture
from serve_app.engine.kernels.native import Native
from serve_app.engine.kernels.plain import Routing, route
from serve_app.engine.kernels.samples import SampleExperts, linear_of
from serve_app.engine.kernels.structs import Product


def mixture_results(
    native: Native, random: torch.Generator, kinds: Iterable[tuple[torch.dtype, Product]]
) -> Iterator[tuple[torch.Tensor, torch.Tensor, bool]]:
    """Results, what they should be, and whether they are exact.

    A router chooses two of twelve experts in several ways, with and without a shared expert.
    """
    x, weight, gate = (torch.randn(*shape, generator=random) for shape in ((5, 38), (12, 38), (1, 38)))
    packed = [native.pack_weight(each, lasting=False) for each in (weight, gate)]
    router, gated = (linear_of(*pair, Product.FLOATS) for pair in zip(packed, (weight, gate), strict=True))
    outputs, factor = x.double() @ weight.double().T, (x.double() @ gate.double().T).sigmoid()
    correction = torch.rand(12, generator=random)
    ways = [
        Routing(each=2, sigmoid=False, normalised=True),
        Routing(each=2, sigmoid=False, normalised=False, groups=3, kept=1),
        Routing(each=2, sigmoid=True, normalised=True, correction=correction, scale=2.5),
        Routing(each=2, sigmoid=True, normalised=False, correction=correction, groups=4, kept=2, best=2),
    ]
    for kind in kinds:
        sample = SampleExperts(native, random, *kind, count=12)
        shared = SampleExperts(native, random, *kind, count=1, inner=40)
        only = torch.zeros(5, 1, dtype=torch.long)
        made, more = native.run_experts(shared.native, x, only, torch.ones(5, 1)), shared.of(x, only, factor)
        for way in ways:
            want = sample.of(x, *route(outputs, way))
            got = native.run_mixture(NativeMixture.of(router, way, sample.native), x)
            yield got, want, sample.exact
            mixture = NativeMixture.of(router, way, sample.native, shared.native, gated)
            yield native.run_mixture(mixture, x), want + more, sample.exact
            yield native.run_mixture(mixture, x, made), want + more, sample.exact
