"""Adapters as clients send them, for tests: random matrices in rows, and a model with them merged in."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from serve_app.models.adapters import MODULE_IDS
from serve_app.types import Adapter, Tensor
from serve_app.types.adapter import TASK_PREFIX

Shapes = Mapping[tuple[int, str], tuple[int, int]]  # (layer, module) -> (N, K)
Matrices = dict[tuple[int, str], tuple[torch.Tensor, torch.Tensor]]  # A [r, K], B [N, r]

LINEARS = {
    "q_proj": "self_attn",
    "k_proj": "self_attn",
    "v_proj": "self_attn",
    "o_proj": "self_attn",
    "gate_proj": "mlp",
    "up_proj": "mlp",
    "down_proj": "mlp",
}


def linear(model: Any, layer: int, module: str) -> torch.nn.Linear:
    found: torch.nn.Linear = getattr(getattr(model.model.layers[layer], LINEARS[module]), module)
    return found


def shapes_of(model: Any) -> Shapes:
    """Of a model of transformers whose linears are called as Llama calls them."""
    shapes = {}
    for layer, module in product(range(len(model.model.layers)), LINEARS):
        rows, columns = linear(model, layer, module).weight.shape
        shapes[layer, module] = rows, columns
    return shapes


def original(folder: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def matrices(shapes: Shapes, seed: int, rank: int = 4, size: float = 0.25) -> Matrices:
    """For every place, large enough that answers change."""
    random = torch.Generator().manual_seed(seed)
    return {
        place: (torch.randn(rank, k, generator=random) * size, torch.randn(n, rank, generator=random) * size)
        for place, (n, k) in shapes.items()
    }


def merged(model: PreTrainedModel, parts: Matrices) -> PreTrainedModel:
    model = copy.deepcopy(model)
    for (layer, module), (a, b) in parts.items():
        linear(model, layer, module).weight.data += b @ a
    return model


def continuation(model: PreTrainedModel, prompt: Sequence[int], count: int) -> list[int]:
    """What transformers says greedily."""
    ids = list(prompt)
    with torch.inference_mode():
        for _ in range(count):
            ids.append(int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prompt) :]


def int32(rows: Sequence[Sequence[int]]) -> Tensor:
    flat = torch.tensor(rows, dtype=torch.int32)
    return Tensor(dtype="INT32", shape=tuple(flat.shape), data=flat.numpy().tobytes())


def floats(rows: torch.Tensor, dtype: str = "FP32") -> Tensor:
    kinds = {"FP32": torch.float32, "FP16": torch.float16, "BF16": torch.bfloat16}
    data = rows.to(kinds[dtype]).contiguous().view(torch.uint8).numpy().tobytes()
    return Tensor(dtype=dtype, shape=tuple(rows.shape), data=data)


def tensors(parts: Matrices, dtype: str = "FP32", padding: int = 3) -> tuple[Tensor, Tensor]:
    """lora_config and lora_weights: A flat, B flat, padded with NaN, which nobody may read."""
    config = [(MODULE_IDS.index(module), layer, len(a)) for (layer, module), (a, _) in parts.items()]
    flat = [torch.cat([a.flatten(), b.flatten()]) for a, b in parts.values()]
    table = torch.full((len(flat), max(map(len, flat)) + padding), torch.nan)
    for row, values in zip(table, flat, strict=True):
        row[: len(values)] = values
    return int32(config), floats(table, dtype)


def task(number: int, parts: Matrices | None = None, dtype: str = "FP32", padding: int = 0) -> Adapter:
    """A client's task, with its weights or without."""
    if parts is None:
        return Adapter(name=f"{TASK_PREFIX}{number}")
    config, weights = tensors(parts, dtype, padding)
    return Adapter(name=f"{TASK_PREFIX}{number}", config=config, weights=weights)
