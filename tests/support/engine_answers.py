"""Requests to a real engine over a small model, and all that it answers."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from transformers import PreTrainedModel

from serve_app.engine.engine import Engine
from serve_app.types import EngineRequest, SamplingParams
from tests.support.engines import engine_over

BLOCK: Final = 16
VOCAB: Final = 96
OUTPUT: Final = 12
GREEDY: Final = SamplingParams(temperature=0.0, max_tokens=OUTPUT, ignore_eos=True)


@dataclass
class Told:
    """All that an engine told of one choice."""

    tokens: list[int] = field(default_factory=list)
    logits: bytes = b""
    logprobs: list[float] = field(default_factory=list)
    prompt_logprobs: list[float] = field(default_factory=list)
    cached: int = 0


def engine_of(model: PreTrainedModel, quantization: str = "none", **settings: object) -> Engine:
    """A new engine over a copy of a float32 model, on the fastest paths of a CPU."""
    return engine_over(copy.deepcopy(model), attention="cpu", quantization=quantization, engine=settings)


def answers(engine: Engine, asked: Iterable[EngineRequest]) -> dict[tuple[str, int], Told]:
    """What the engine tells of each request and choice, all of them at once."""
    told: dict[tuple[str, int], Told] = {}
    for request in asked:
        engine.add(request)
    while engine.has_work():
        for output in engine.step():
            assert output.error is None
            one = told.setdefault((output.request_id, output.index), Told())
            one.tokens += output.token_ids
            one.logprobs += [each.logprob for each in output.logprobs]
            one.prompt_logprobs += [each.logprob for each in output.prompt_logprobs or ()]
            one.cached = output.cached_tokens
            if "generation_logits" in output.tensors:
                one.logits += output.tensors["generation_logits"].data
        engine.check_integrity()
    return told


def prompt(length: int, seed: int = 0) -> tuple[int, ...]:
    """Random tokens, the same ones for the same arguments."""
    rng = random.Random(f"{length} {seed}")
    return tuple(rng.randrange(3, VOCAB) for _ in range(length))


def request(name: str, tokens: tuple[int, ...], **fields: object) -> EngineRequest:
    """A greedy request for `OUTPUT` tokens with their logits."""
    fields = {"sampling": GREEDY, "generation_logits": True, **fields}
    return EngineRequest(id=name, token_ids=tokens, **fields)  # type: ignore[arg-type]
