"""Random adapters as an engine takes them, for tests."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from serve_app.engine.model.lora import LowRank, Place


def random_updates(
    shapes: Mapping[Place, tuple[int, int]], seed: int, rank: int, scale: float = 1.0
) -> list[LowRank]:
    """An adapter of every place of `shapes`, the same in whichever order they are.

    Its products are about `scale` times as large as the inputs.
    """
    random = torch.Generator().manual_seed(seed)
    return [
        LowRank(
            layer,
            module,
            torch.randn(rank, inputs, generator=random) * inputs**-0.5,
            torch.randn(outputs, rank, generator=random) * scale * rank**-0.5,
        )
        for (layer, module), (outputs, inputs) in sorted(shapes.items())
    ]
