"""Query temperatures, which grow with the position, as in those layers of Llama 4 that lack rotary positions.

Transformers takes the position from the row's place in the batch, which is right for one sequence alone. So
the module's own temperatures are switched off, and temperatures by each row's position in its sequence are
applied here.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

_PLACE = "query_temperature"


@dataclass(frozen=True, slots=True)
class QueryTemperature:
    """The factor of a query at position p: log(1 + floor((p + 1) / floor_scale)) x scale + 1."""

    floor_scale: float
    scale: float

    def apply(self, query: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """query [1, H, T, D] of rows at `positions` [T], with each row multiplied by its factor."""
        factors = torch.log1p(torch.floor((positions.float() + 1.0) / self.floor_scale)) * self.scale + 1.0
        return (query * factors[:, None]).to(query.dtype)


def take_over(module: nn.Module) -> None:
    """Switch off the temperatures of `module`'s layers; `temperature_of` finds them."""
    for part in module.modules():
        if getattr(part, "attn_temperature_tuning", False) and not getattr(part, "use_rope", True):
            temperature = QueryTemperature(float(part.floor_scale), float(part.attn_scale))  # type: ignore[arg-type]
            part.attn_temperature_tuning = False  # type: ignore[assignment]
            setattr(part, _PLACE, temperature)


def temperature_of(attention: nn.Module) -> QueryTemperature | None:
    """The temperature of one attention module, if it has one."""
    found: QueryTemperature | None = getattr(attention, _PLACE, None)
    return found
