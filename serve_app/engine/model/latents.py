"""Attention over latents: the cache keeps what a layer expands to keys and values, and not these.

In such a layer (DeepSeek's MLA) a token has one latent for all heads, which one matrix expands to the keys
and values of each head, and one rotary key beside it. Scores and outputs are linear in both. So queries are
multiplied by the matrix' rows for keys, and outputs by its rows for values, and attention has one KV head:
its keys are latents and rotary keys, and its values are the latents. The scores are the same numbers, so
they have the family's own scale.

The place for this is transformers' `expand_kv`. Its form is learnt from a few numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import nn

from serve_app.engine.weights.heads import HeadLinears
from serve_app.engine.weights.packed_linear import Pack, as_linear, can_be_packed

_PLACE: Final = "serve_app_latents"
_NEEDED: Final = (
    "expand_kv",
    "kv_b_proj",
    "kv_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
)
_TRIED: Final = 3  # tokens whose latents show the form

Product = Callable[[torch.Tensor], torch.Tensor]  # [H, T, K] -> [H, T, N], by a matrix for each head


class Latents:
    """The latents of one attention module of transformers."""

    def __init__(self, module: Any, attention: str) -> None:
        """`attention`: transformers' name of ours; with any other one the module expands its latents."""
        self._module = module
        self._attention = attention
        self._own = self._module.expand_kv
        self._rank, self._nope = int(self._module.kv_lora_rank), int(self._module.qk_nope_head_dim)
        self._products: tuple[Product, Product] = self._absorb, self._expand

    def keys_and_values(
        self, latents: torch.Tensor, rotary: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """[1, 1, T, R], [1, 1, T, P] -> keys [1, 1, T, R + P] and, as their part, values [1, 1, T, R]."""
        if self._module.config._attn_implementation != self._attention:
            keys, values = self._own(latents, rotary)
            return keys, values
        keys = torch.cat((latents, rotary), dim=-1)
        return keys, keys[..., : self._rank]

    def absorb(self, query: torch.Tensor) -> torch.Tensor:
        """Queries for expanded keys [1, H, T, D] -> queries for latents [1, H, T, R + P]."""
        plain, rotary = query[0, ..., : self._nope], query[0, ..., self._nope :]
        absorbed = self._products[0](plain)
        return torch.cat((absorbed, rotary.to(absorbed.dtype)), dim=-1)[None]

    def expand(self, out: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Sums of latents [T, H, R] -> sums of values [T, H, V] of `dtype`."""
        return self._products[1](out.transpose(0, 1)).transpose(0, 1).to(dtype)

    @property
    def can_be_packed(self) -> bool:
        weight = self._module.kv_b_proj._parameters.get("weight")
        return weight is not None and can_be_packed(weight)

    def pack(self, pack: Pack) -> nn.Parameter:
        """Multiply by packed weights from now on; returns the parameter that they replace."""
        keys, values = self._weight[:, : self._nope].mT, self._weight[:, self._nope :]
        self._products = (
            HeadLinears([pack(as_linear(head, None)) for head in keys]),
            HeadLinears([pack(as_linear(head, None)) for head in values]),
        )
        weight: nn.Parameter = self._module.kv_b_proj._parameters.pop("weight")
        return weight

    def unpack(self, weight: nn.Parameter) -> None:
        """Undo `pack`."""
        self._products = self._absorb, self._expand
        self._module.kv_b_proj._parameters["weight"] = weight

    def are_plain(self) -> bool:
        """Whether the module expands its latents as this class has it, tried with a few numbers."""
        linear = self._module.kv_b_proj
        features = self._nope + self._module.v_head_dim
        kept = [name for name, _ in linear.named_parameters()]  # a bias would shift keys and values
        if type(linear) is not nn.Linear or kept != ["weight"] or linear.out_features % features:
            return False
        weight = self._weight
        if weight.is_meta:
            return True
        random = torch.Generator().manual_seed(0)
        latents, rotary = (
            torch.randn(1, 1, _TRIED, size, generator=random).to(weight)
            for size in (self._rank, self._module.qk_rope_head_dim)
        )
        with torch.inference_mode():
            expanded = latents[0] @ weight.mT
            turned = rotary[0].expand(len(weight), -1, -1)
            want = torch.cat((expanded[..., : self._nope], turned), dim=-1), expanded[..., self._nope :]
            got = self._own(latents, rotary)
        error = torch.finfo(weight.dtype).eps ** 0.5 * float(expanded.abs().max())
        return all(
            one[0].shape == other.shape and torch.allclose(one[0], other, rtol=0, atol=error)
            for one, other in zip(got, want, strict=True)
        )

    def _absorb(self, plain: torch.Tensor) -> torch.Tensor:
        return plain @ self._weight[:, : self._nope]

    def _expand(self, sums: torch.Tensor) -> torch.Tensor:
        return sums @ self._weight[:, self._nope :].mT

    @property
    def _weight(self) -> torch.Tensor:
        """[H, D + V, R]: of each head, first the rows for keys."""
        features = self._nope + self._module.v_head_dim
        weight: torch.Tensor = self._module.kv_b_proj.weight
        return weight.view(-1, features, self._rank)


def connect_latents(module: nn.Module, attention: str) -> None:
    """Let the layers of `module` that have latents pass them to our attention, whose name is `attention`.

    A layer whose form is not known here expands its latents, as transformers does.
    """
    plain: dict[type[nn.Module], bool] = {}
    for part in module.modules():
        if latents_of(part) or not all(hasattr(part, name) for name in _NEEDED):
            continue
        found = Latents(part, attention)
        if type(part) not in plain:
            plain[type(part)] = found.are_plain()
        if plain[type(part)]:
            setattr(part, _PLACE, found)
            part.expand_kv = found.keys_and_values  # type: ignore[assignment]


def latents_of(attention: nn.Module) -> Latents | None:
    """The latents of an attention module, if it passes them to ours."""
    found: Latents | None = getattr(attention, _PLACE, None)
    return found
