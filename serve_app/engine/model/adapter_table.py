"""The adapters that are loaded on one model, and the places of the model that adapters can change.

Knows the model's modules and the chunks of a step; neither files nor requests.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from serve_app.engine.linear.packed import PackedLinear
from serve_app.engine.model.forward import applied_adapters
from serve_app.engine.model.lora import (
    ATTENTION,
    MLP,
    MODULES,
    LoadedAdapter,
    LowRank,
    Place,
    Site,
    SiteAdapter,
    StepAdapters,
)
from serve_app.engine.sequence import Chunk
from serve_app.engine.transfer import send

PANEL: Final = 32  # packing may pad a rank to a multiple of this


class AdapterTable:
    """The adapters that requests may name, by key. `put` and `drop` belong to the engine's thread."""

    def __init__(self, module: PreTrainedModel, dtype: torch.dtype, device: torch.device) -> None:
        """Finds the sites of `module`, whose linears are already as they will run."""
        self._sites = tuple(find_sites(module))
        self.dtype = dtype  # that matrices are kept in
        self._device = device
        self._loaded: dict[str, LoadedAdapter] = {}

    @property
    def shapes(self) -> dict[Place, tuple[int, int]]:
        """(N, K) of every place that an adapter can change; empty if this model has none."""
        return {
            (site.layer, module): (width, site.features)
            for site in self._sites
            for module, width in site.widths.items()
        }

    @property
    def num_bytes(self) -> int:
        """The memory of the adapters that are loaded."""
        return sum(adapter.num_bytes for adapter in self._loaded.values())

    def __len__(self) -> int:
        return len(self._loaded)

    def bytes_at(self, rank: int) -> int:
        """The memory of an adapter of this rank that changes every place."""
        wide = sum(len(site.widths) * (site.features + sum(site.widths.values())) for site in self._sites)
        return -(-rank // PANEL) * PANEL * wide * self.dtype.itemsize

    def compile(self, updates: Iterable[LowRank]) -> LoadedAdapter:
        """The adapter made of `updates`, at most one a place, all of `shapes`. Callable from any thread."""
        at = {(update.layer, update.module): update for update in updates}
        pairs = {}
        with torch.no_grad():
            for site in self._sites:
                parts = [at[site.layer, module] for module in site.widths if (site.layer, module) in at]
                if parts:
                    pairs[site] = SiteAdapter(site, parts, self.dtype, self._device)
        return LoadedAdapter(pairs)

    def put(self, key: str, adapter: LoadedAdapter) -> None:
        """Let requests name the adapter. One already loaded under `key` stays: its content is the same."""
        self._loaded.setdefault(key, adapter)

    def drop(self, key: str) -> None:
        """Forget an adapter that no request names any more."""
        self._loaded.pop(key, None)

    def of_step(self, chunks: Iterable[Chunk]) -> StepAdapters | None:
        """The rows of `chunks` that have adapters; None if none has.

        Raises KeyError for an adapter that is not loaded.
        """
        spans: defaultdict[str, list[range]] = defaultdict(list)
        row = 0
        for chunk in chunks:
            key = chunk.sequence.adapter
            if key is not None:
                spans[key].append(range(row, row + chunk.length))
            row += chunk.length
        if not spans:
            return None
        return StepAdapters([(self._loaded[key], self._rows(each)) for key, each in spans.items()])

    def _rows(self, spans: list[range]) -> slice | torch.Tensor:
        rows = [row for span in spans for row in span]
        if rows[-1] - rows[0] == len(rows) - 1:
            return slice(rows[0], rows[-1] + 1)
        return send(self._device, np.array(rows, dtype=np.int64))[0]


def find_sites(module: PreTrainedModel) -> Iterator[Site]:
    """The linears of the decoder's layers that adapters can change.

    A fused layer lists its own. In any other layer, a hook is put on linears that have Llama's names
    and exist once a layer (experts do not).
    """
    config = module.config.get_text_config()
    layers = getattr(module.get_decoder(), "layers", ())
    for index, layer in enumerate(layers):
        if hasattr(layer, "sites"):
            yield from layer.sites()
            continue
        linears = [
            (path.rpartition(".")[2], child) for path, child in layer.named_modules() if _is_linear(child)
        ]
        times = Counter(name for name, _ in linears)
        for name, linear in linears:
            widths = _widths(name, linear, config)
            if widths is not None and times[name] == 1:
                site = Site(index, linear.in_features, widths)
                linear.register_forward_hook(_Hook(site))
                yield site


class _Hook:
    """Adds what the step's adapters have for one linear to its output."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        adapters = applied_adapters()
        if adapters is not None:
            x: torch.Tensor = inputs[0]
            adapters.add(self._site, x.reshape(-1, x.shape[-1]), output.view(-1, output.shape[-1]))


def _is_linear(module: nn.Module) -> bool:
    return type(module) is nn.Linear or isinstance(module, PackedLinear)


def _widths(name: str, linear: Any, config: Any) -> dict[str, int] | None:
    """The outputs of each module in a linear of this name; None for a name that adapters do not know."""
    if name in MODULES:
        return {name: linear.out_features}
    if name == "gate_up_proj":
        return dict.fromkeys(MLP, linear.out_features // 2)
    if name == "qkv_proj":
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        head = linear.out_features // (heads + 2 * kv_heads)
        return dict(zip(ATTENTION, (heads * head, kv_heads * head, kv_heads * head), strict=True))
    return None
