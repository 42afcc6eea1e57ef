"""The figures of docs/models.md are what the code takes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from serve_app.engine.attention import LayerSpec
from serve_app.engine.model.memory import CPU_CACHE_CAP, CPU_SHARE, CUDA_SHARE

DOC = (Path(__file__).parents[2] / "docs" / "models.md").read_text("utf-8")
CELLS = (r"[\w.-]+", r"([\d.]+) billion", r"([\d.]+) GiB", *[r"(\d+)"] * 3, r"([\d.]+) KiB", r"([\d,]+) MiB")
ROWS = re.findall("^\\| " + r" \| ".join(CELLS) + r" \|$", DOC, re.M)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]}B")
def test_the_memory_of_a_model_is_as_the_page_says(row: tuple[str, ...]) -> None:
    parameters, weights, layers, heads, size, of_token, of_window = (
        float(cell.replace(",", "")) for cell in row
    )
    token = int(layers) * LayerSpec(int(heads), int(size), int(size)).bytes_per_token(torch.bfloat16)
    assert token / 2**10 == of_token
    assert round(token * 8192 / 2**20) == of_window
    assert round(parameters * 1e9 * torch.bfloat16.itemsize / 2**30, 1) == weights


LATENT_CELLS = (r"([\d]+)", r"(\d+) \+ (\d+)", r"([\d.]+) KiB", r"[\d,]+ KiB", r"([\d,]+) MiB")
LATENT_ROWS = re.findall(r"^\| [\w.-]+ \| " + r" \| ".join(LATENT_CELLS) + r" \|$", DOC, re.M)


@pytest.mark.parametrize("row", LATENT_ROWS)
def test_the_memory_of_latents_is_as_the_page_says(row: tuple[str, ...]) -> None:
    layers, latent, rotary, of_token, of_window = (float(cell.replace(",", "")) for cell in row)
    spec = LayerSpec(1, int(latent + rotary), int(latent), latent=True)
    token = int(layers) * spec.bytes_per_token(torch.bfloat16)
    assert (token / 2**10, token * 8192 / 2**20) == (of_token, of_window)


def test_the_shares_of_memory_are_as_the_page_says() -> None:
    assert len(ROWS) >= 5
    assert len(LATENT_ROWS) == 3
    assert f"{CUDA_SHARE * 100:g} % of the GPU's memory" in DOC.replace("\n", " ")
    assert f"{CPU_SHARE * 100:g} % of free memory, at most {CPU_CACHE_CAP // 2**30} GiB" in DOC.replace(
        "\n", " "
    )
