"""Every row of the table of errors that infer, generate and generate_stream can meet."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from serve_app.accounts.keys import new_key
from serve_app.errors import (
    DeadlineExceeded,
    EngineRefused,
    GenerationFailed,
    Overloaded,
    PromptTooLong,
    ServeError,
    Unavailable,
)
from serve_app.limits import MAX_BODY_BYTES
from serve_app.types import Scope
from tests.conformance.trtllm.asks import IDS, body, error_of
from tests.fakes_backend import FakeBackend
from tests.gateway import gateway

MODEL = "/v2/models/demo"
VALUES = {"input_ids": IDS, "request_output_len": 3}
REQUESTS: dict[str, dict[str, Any]] = {
    "infer": body(),
    "generate": VALUES,
    "generate_stream": {**VALUES, "streaming": True},
}
ROWS = {
    "e5": (PromptTooLong("too long"), 400),
    "e8": (Overloaded("full"), 503),
    "e9": (Unavailable("loading"), 503),
    "e10": (DeadlineExceeded("late"), 504),
    "e11": (EngineRefused("no"), 500),
    "e12": (GenerationFailed("failed"), 500),
}

each_route = pytest.mark.parametrize("what", REQUESTS)


def told(answer: httpx.Response, status: int, words: str = "") -> None:
    """The answer is this error in this protocol's shape."""
    assert answer.status_code == status, answer.text
    assert words in error_of(answer)


@each_route
@pytest.mark.parametrize(
    "raw", [b"", b"{", b"[]", b"null", b"\xef\xbb\xbf{}", b'{"id":NaN}', b'{"id":"\\ud800"}']
)
async def test_e1_a_body_that_is_no_json_object(what: str, raw: bytes) -> None:
    async with gateway() as g:
        told(await g.client.post(f"/triton{MODEL}/{what}", content=raw), 400, "JSON")


@each_route
async def test_e2_a_tensor_names_itself_and_its_bounds(what: str) -> None:
    wrong = body(runtime_top_p=1.5) if what == "infer" else {**VALUES, "runtime_top_p": 1.5}
    async with gateway() as g:
        told(await g.post(f"{MODEL}/{what}", wrong), 400, "runtime_top_p: must be a number from 0 to 1")


@each_route
async def test_e3_an_unknown_model_and_e4_an_unknown_version(what: str) -> None:
    async with gateway() as g:
        told(await g.post(f"/v2/models/nobody/{what}", REQUESTS[what]), 404, "no such model")
        for version in ("2", "x"):
            told(await g.post(f"{MODEL}/versions/{version}/{what}", REQUESTS[what]), 404, "no such version")


@each_route
@pytest.mark.parametrize(("error", "status"), ROWS.values(), ids=ROWS.keys())
async def test_errors_before_the_first_token(error: ServeError, status: int, what: str) -> None:
    async with gateway(FakeBackend(refuse=error)) as g:
        answer = await g.post(f"{MODEL}/{what}", REQUESTS[what])
        told(answer, status, error.message)
        assert ("retry-after" in answer.headers) is (status == 503)
        await g.check()


@each_route
async def test_e6_a_missing_key_and_one_without_the_right(what: str) -> None:
    (_, line), (scraper, other) = new_key("somebody"), new_key("scraper", [Scope.METRICS])
    async with gateway(keys=f"{line} {other}") as g:
        told(await g.post(f"/triton{MODEL}/{what}", REQUESTS[what]), 401)
        headers = {"authorization": f"Bearer {scraper}"}
        told(await g.post(f"/triton{MODEL}/{what}", REQUESTS[what], headers=headers), 403)


@each_route
async def test_e7_a_quota_that_is_used_up(what: str) -> None:
    async with gateway(endpoints=[{"name": "demo", "limits": {"requests_per_minute": 1}}]) as g:
        assert (await g.post(f"{MODEL}/{what}", REQUESTS[what])).status_code == 200
        answer = await g.post(f"{MODEL}/{what}", REQUESTS[what])
        told(answer, 429, "requests a minute")
        assert int(answer.headers["retry-after"]) > 0


async def test_e9_a_model_that_loads() -> None:
    async with gateway() as g:
        g.backend.loading = {"demo"}
        told(await g.post(f"{MODEL}/infer", body()), 503, "loading")
        told(await g.client.get(f"{MODEL}/ready"), 400, "not ready")


async def test_e13_a_wrong_method() -> None:
    async with gateway() as g:
        for what in REQUESTS:
            told(await g.client.get(f"/triton{MODEL}/{what}"), 405)
        told(await g.post(f"{MODEL}/config", {}), 405)


@each_route
async def test_e14_a_body_that_is_too_large(what: str) -> None:
    raw = b'{"x":"' + b" " * MAX_BODY_BYTES + b'"}'
    async with gateway() as g:
        told(await g.client.post(f"/triton{MODEL}/{what}", content=raw), 413, str(MAX_BODY_BYTES))


async def test_e15_an_unknown_route() -> None:
    async with gateway() as g:
        for path in ("/v2/nothing", f"{MODEL}/nothing", "/v2/systemsharedmemory/status"):
            told(await g.client.get(path), 404)
