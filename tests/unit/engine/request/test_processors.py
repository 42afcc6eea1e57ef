"""Logits processors of the operator: loaded by path, asked for by name, and contained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from serve_app.config import EngineConfig
from serve_app.engine.engine import Engine
from serve_app.engine.request.processors import LogitsProcessor, ProcessorRegistry
from serve_app.errors import InvalidField, UnsupportedField
from serve_app.limits import MAX_PROCESSOR_ARGUMENT_CHARS, MAX_PROCESSORS
from serve_app.types import Beam, EngineRequest, FinishReason, ProcessorCall, SamplingParams
from tests.support.fakes import HashRunner, greedy_tokens

HERE = __name__


def only(token: int) -> LogitsProcessor:
    """Leaves one token."""

    def process(prompt: Sequence[int], output: Sequence[int], logits: torch.Tensor) -> None:
        kept = logits[token].clone()
        logits.fill_(-torch.inf)
        logits[token] = kept

    return process


def count() -> LogitsProcessor:
    """The next token is the number of tokens before it; raises at the 9th."""

    def process(prompt: Sequence[int], output: Sequence[int], logits: torch.Tensor) -> None:
        length = len(prompt) + len(output)
        if length == 9:
            raise RuntimeError("scripted fault")
        logits[length] = 1_000.0

    return process


def poison(value: float) -> LogitsProcessor:
    def process(prompt: Sequence[int], output: Sequence[int], logits: torch.Tensor) -> None:
        logits[3] = value

    return process


PATHS = {name: f"{HERE}:{name}" for name in ("only", "count", "poison")}


def new_engine(**paths: str) -> Engine:
    config = EngineConfig(logits_processors=paths or PATHS)
    return Engine(HashRunner(), config, eos_token_ids=frozenset(), max_model_len=64)


def request(name: str, *calls: ProcessorCall, **fields: Any) -> EngineRequest:
    sampling = SamplingParams(temperature=0.0, max_tokens=4, processors=calls)
    return EngineRequest(id=name, token_ids=(1, 2, 3), sampling=sampling, **fields)


def run(engine: Engine, *requests: EngineRequest) -> dict[tuple[str, int], tuple[list[int], Any]]:
    for each in requests:
        engine.add(each)
    told: dict[tuple[str, int], tuple[list[int], Any]] = {}
    while engine.has_work():
        for output in engine.step():
            tokens, _ = told.setdefault((output.request_id, output.index), ([], None))
            tokens.extend(output.token_ids)
            told[output.request_id, output.index] = (
                tokens,
                output.error.kind if output.error else output.finish,
            )
        engine.check_integrity()
    return told


def test_processors_run_in_order_for_their_own_rows() -> None:
    engine = new_engine()
    told = run(
        engine,
        request("plain"),
        request("only", ProcessorCall(name="only", arguments='{"token": 5}')),
        request("both", ProcessorCall(name="count"), ProcessorCall(name="only", arguments='{"token": 6}')),
        request("count", ProcessorCall(name="count"), n=2),
    )
    assert told["plain", 0][0] == greedy_tokens((1, 2, 3), 4)
    assert told["only", 0][0] == [5] * 4
    assert told["both", 0][0] == [6] * 4
    assert told["count", 0][0] == told["count", 1][0] == [3, 4, 5, 6]


def test_masks_and_beams_come_after_processors() -> None:
    calls = (ProcessorCall(name="only", arguments='{"token": 5}'),)
    masked = request("masked", *calls)
    masked = replace(masked, sampling=replace(masked.sampling, bad_words=((5,),)))
    told = run(new_engine(), masked, request("beam", *calls, beam=Beam(width=2)))
    assert told["masked", 0] == ([], "InvalidField")
    assert told["beam", 0] == ([5] * 4, FinishReason.LENGTH)


@pytest.mark.parametrize("beam", [None, Beam(width=2)])
@pytest.mark.parametrize("value", ["NaN", "Infinity"])
def test_one_that_fails_ends_its_own_request_only(beam: Beam | None, value: str) -> None:
    long = request("raises", ProcessorCall(name="count"), beam=beam)
    long = replace(long, sampling=replace(long.sampling, max_tokens=20))
    bad = request("poison", ProcessorCall(name="poison", arguments=f'{{"value": {value}}}'), beam=beam)
    told = run(new_engine(), long, bad, request("plain"))
    assert told["raises", 0][1] == told["poison", 0][1] == "GenerationFailed"
    assert told["plain", 0] == (greedy_tokens((1, 2, 3), 4), FinishReason.LENGTH)
    if beam is None:
        assert told["raises", 0][0] == [3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize(
    ("calls", "message"),
    [
        ((ProcessorCall(name="os.system"),), "this model knows count, only, poison"),
        ((ProcessorCall(name="only", arguments="[1]"),), "must be a JSON object"),
        ((ProcessorCall(name="only", arguments="{"),), "must be a JSON object"),
        ((ProcessorCall(name="only", arguments="[" * 10_000),), "must be a JSON object"),
        ((ProcessorCall(name="only", arguments='{"tokens": 1}'),), "only refuses these arguments"),
        ((ProcessorCall(name="only", arguments=" " * MAX_PROCESSOR_ARGUMENT_CHARS + "{}"),), "at most 16384"),
        ((ProcessorCall(name="count"),) * (MAX_PROCESSORS + 1), "at most 16 calls"),
    ],
)
def test_bad_calls_are_refused(calls: tuple[ProcessorCall, ...], message: str) -> None:
    engine = new_engine()
    with pytest.raises(InvalidField, match=message):
        engine.add(request("r", *calls))
    assert not engine.has_work()


def test_without_any_registered_the_field_is_unsupported() -> None:
    with pytest.raises(UnsupportedField, match="none registered"):
        ProcessorRegistry({}).check((ProcessorCall(name="only"),))


@pytest.mark.parametrize("path", ["no.such.module:x", f"{HERE}:nothing", f"{HERE}:HERE"])
def test_a_path_that_leads_nowhere_stops_the_start_and_is_named(path: str) -> None:
    with pytest.raises(ValueError, match="logits_processors: mine"):
        new_engine(mine=path)
    with pytest.raises(ValueError, match="logits_processors"):
        EngineConfig(logits_processors={"mine": "os.system"})
