"""Rotary positions of a GGUF file, as transformers' settings."""

from __future__ import annotations

import math
from typing import Any, Final

from serve_app.models.gguf.facts import Facts

_LLAMA3: Final = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
_CLOSE: Final = 1e-5


def rope(facts: Facts, size: int, window: int) -> dict[str, Any]:
    """`rope_parameters`, for heads of `size` numbers and a context of `window` tokens.

    Raises ModelLoadError for positions that the file does not describe, or describes in an unknown way.
    """
    theta = facts.real("rope.freq_base", 10_000.0)
    rotated = facts.integer("rope.dimension_count", size)
    facts.value("rope.scaling.finetuned", False)
    found: dict[str, Any] = {"rope_type": "default", "rope_theta": theta}
    if rotated != size:
        found["partial_rotary_factor"] = rotated / size
    kind = facts.value("rope.scaling.type", "none")
    factor = facts.real("rope.scaling.factor", facts.real("rope.scale_linear", 1.0))
    original = facts.integer("rope.scaling.original_context_length", window)
    long, short = facts.floats("rope_factors_long.weight"), facts.floats("rope_factors_short.weight")
    frequencies = facts.floats("rope_freqs.weight")
    if long and short:
        found |= {
            "rope_type": "longrope",
            "long_factor": long,
            "short_factor": short,
            "original_max_position_embeddings": original,
        }
        if facts.has("rope.scaling.attn_factor"):
            found["attention_factor"] = facts.real("rope.scaling.attn_factor")
        return {"rope_parameters": found}
    if facts.real("rope.scaling.attn_factor", 1.0) != 1.0:
        raise facts.error(f"its rope.scaling.attn_factor is {facts.real('rope.scaling.attn_factor')}, not 1")
    if frequencies:
        found |= _llama3(facts, frequencies, theta)
    elif kind == "yarn":
        found |= {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
        for name in ("beta_fast", "beta_slow"):
            if facts.has(f"rope.scaling.yarn_{name}"):
                found[name] = facts.real(f"rope.scaling.yarn_{name}")
    elif kind == "linear" or (kind == "none" and factor != 1.0):
        found |= {"rope_type": "linear", "factor": factor}
    elif kind != "none":
        raise facts.error(f"its positions are scaled as {kind!r}, which is not read from GGUF files here")
    return {"rope_parameters": found}


def _llama3(facts: Facts, factors: list[float], theta: float) -> dict[str, Any]:
    """The settings of Llama 3 whose factors a file has as a tensor."""
    settings = {"rope_type": "llama3", "factor": max(factors), **_LLAMA3}
    want = llama3_factors(settings, theta, len(factors))
    if any(abs(have - each) > _CLOSE * each for have, each in zip(factors, want, strict=True)):
        raise facts.error("its rope_freqs are not those of Llama 3, and no other ones are known here")
    return settings


def llama3_factors(settings: dict[str, Any], theta: float, count: int) -> list[float]:
    """By what each of `count` frequencies is divided."""
    factor, window = settings["factor"], settings["original_max_position_embeddings"]
    low, high = settings["low_freq_factor"], settings["high_freq_factor"]
    found = []
    for number in range(count):
        turns = window / (2 * math.pi * theta ** (number / count))  # in the original window
        part = min(max((turns - low) / (high - low), 0.0), 1.0)
        found.append(1 / ((1 - part) / factor + part))
    return found
