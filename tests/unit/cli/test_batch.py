"""`serve-app batch`: every request of a file gets one answer, whatever comes between."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from serve_app.accounts.keys import new_key
from serve_app.cli.batch.lines import Answers, Line, LineError, requests_of
from serve_app.types import Scope
from tests.support.fakes_backend import WORDS, FakeBackend, embedder_info, model_info
from tests.support.gateway import directory_of, fake_app
from tests.support.small_disk import FILLER, fill, small_disk
from tests.unit.cli.conftest import Invoke, Serve

SAID: Final = [{"role": "user", "content": "Hi"}]
CHAT: Final = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": SAID}}


def chat(custom_id: str, **fields: Any) -> dict[str, Any]:
    return {**CHAT, "custom_id": custom_id, "body": {"model": "demo", "messages": SAID, **fields}}


def written(path: Path, lines: Iterable[Mapping[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return path


def read(path: Path) -> dict[str, Any]:
    """The answers by their id; each has one."""
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    found = {line["custom_id"]: line for line in lines}
    assert len(found) == len(lines)
    return found


@pytest.fixture
def asked(tmp_path: Path) -> Callable[..., Path]:
    return lambda *lines: written(tmp_path / "requests.jsonl", lines)


def test_every_protocols_requests_are_answered_in_their_own_words(
    invoke: Invoke, serve: Serve, asked: Callable[..., Path], tmp_path: Path
) -> None:
    backend = FakeBackend(infos=[model_info(), embedder_info()])
    listed = [{"name": "demo"}, {"name": "embedder", "task": "llm/v1/embeddings"}]
    url = serve(fake_app(backend, directory=directory_of(backend, listed), v1_dialect="mindie"))
    file = asked(
        chat("chat"),
        {"custom_id": "text", "url": "/v1/completions", "body": {"model": "demo", "prompt": "é😀"}},
        {"custom_id": "vector", "url": "/v1/embeddings", "body": {"model": "embedder", "input": ["a"]}},
        {
            "custom_id": "message",
            "url": "/v1/messages",
            "body": {"model": "demo", "messages": SAID, "max_tokens": 4},
        },
        {"custom_id": "response", "url": "/v1/responses", "body": {"model": "demo", "input": "Hi"}},
        {"custom_id": "ovms", "url": "/v3/responses", "body": {"model": "demo", "input": "Hi"}},
        {
            "custom_id": "bricks",
            "url": "/serving-endpoints/demo/invocations",
            "body": {"messages": SAID},
        },
    )
    result = invoke("batch", file, tmp_path / "out", "--url", url)
    assert result.exit_code == 0, result.output
    assert result.output.startswith("7 answers, ")
    found = read(tmp_path / "out")
    for each in found.values():
        assert (each["error"], each["response"]["status_code"]) == (None, 200)
        assert each["response"]["request_id"]
    body = {name: each["response"]["body"] for name, each in found.items()}
    assert body["chat"]["choices"][0]["message"]["content"] == "".join(WORDS)
    assert body["text"]["object"] == "text_completion"
    assert len(body["vector"]["data"]) == 1
    assert body["message"]["type"] == "message"
    assert body["response"]["object"] == "response"
    assert "instructions" not in body["ovms"]  # of Model Server, which leaves out what says nothing
    assert body["bricks"]["object"] == "chat.completion"


def test_a_refused_request_has_its_error_and_does_not_hold_up_the_others(
    invoke: Invoke, url: str, asked: Callable[..., Path], tmp_path: Path
) -> None:
    file = asked(chat("bad", temperature=9), chat("good"), chat("nobody", model="none"))
    result = invoke("batch", file, tmp_path / "out", "--url", url)
    assert result.exit_code == 1
    assert "3 answers, 2 of them refusals" in result.output
    found = read(tmp_path / "out")
    assert {name: each["response"]["status_code"] for name, each in found.items()} == {
        "bad": 400,
        "good": 200,
        "nobody": 404,
    }
    assert found["bad"]["response"]["body"]["error"]["param"] == "temperature"


def test_text_that_is_no_unicode_is_the_servers_to_judge(invoke: Invoke, url: str, tmp_path: Path) -> None:
    file = tmp_path / "requests.jsonl"
    half = json.dumps({**chat("x"), "custom_id": "\ud800", "body": {"model": "demo", "user": "\ud800"}})
    file.write_text(half + "\n" + json.dumps(chat("é😀")) + "\n", "utf-8")
    assert invoke("batch", file, tmp_path / "out", "--url", url).exit_code == 1
    found = read(tmp_path / "out")
    assert {name: each["response"]["status_code"] for name, each in found.items()} == {
        "\ud800": 400,
        "é😀": 200,
    }
    assert "é😀" in (tmp_path / "out").read_text("utf-8")


def test_what_is_answered_is_not_asked_again(
    invoke: Invoke, url: str, backend: FakeBackend, asked: Callable[..., Path], tmp_path: Path
) -> None:
    """A last line that a killed run did not write to its end is cut, and its request asked again."""
    file, out = asked(*(chat(str(i)) for i in range(5))), tmp_path / "out"
    assert invoke("batch", file, out, "--url", url).exit_code == 0
    whole = out.read_bytes()
    again = invoke("batch", file, out, "--url", url)
    assert (again.exit_code, again.stdout) == (0, "0 answers\n")
    assert "5 answers are in" in again.stderr
    assert (out.read_bytes(), len(backend.requests)) == (whole, 5)
    out.write_bytes(whole[:-20])
    assert invoke("batch", file, out, "--url", url).exit_code == 0
    assert len(backend.requests) == 6
    assert read(out).keys() == set("01234")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 2: Expecting property name"),
        ("[]", "line 2: must be an object"),
        ({**CHAT, "custom_id": "first"}, "line 2: custom_id 'first' was that of an earlier line"),
        ({**CHAT, "custom_id": ""}, "line 2: custom_id must be a string of 1 to 512 characters"),
        ({"url": "/v1/chat/completions", "body": {}}, "line 2: custom_id is missing"),
        ({**CHAT, "method": "GET"}, "line 2: method must be POST"),
        ({**CHAT, "url": "https://elsewhere.test/v1"}, "line 2: url must be a path of the server"),
        ({**CHAT, "url": "//elsewhere.test/v1"}, "line 2: url must be a path of the server"),
        ({**CHAT, "body": "x"}, "line 2: body must be an object"),
        (chat("b", stream=True), "line 2: body.stream must not be true"),
    ],
)
def test_a_line_that_is_no_request_is_named(
    invoke: Invoke, url: str, tmp_path: Path, line: Any, said: str
) -> None:
    file = tmp_path / "requests.jsonl"
    second = line if isinstance(line, str) else json.dumps(line)
    file.write_text(f"{json.dumps(chat('first'))}\n\n{second}\n".replace("\n\n", "\n", 1))
    result = invoke("batch", file, tmp_path / "out", "--url", url, "--concurrency", 1)
    assert result.exit_code == 1
    assert said in result.output
    assert "Stopped after 1 answers" in result.output
    assert read(tmp_path / "out").keys() == {"first"}


def test_requests_may_come_from_a_pipe(invoke: Invoke, url: str, tmp_path: Path) -> None:
    piped = "".join(json.dumps(chat(str(i))) + "\n" for i in range(3))
    assert invoke("batch", "-", tmp_path / "out", "--url", url, input=piped).exit_code == 0
    assert len(read(tmp_path / "out")) == 3


def moody(statuses: list[int], wait: str = "0") -> Starlette:
    """An app that answers with `statuses`, one request after another, and then with 200."""

    async def answer(request: Request) -> JSONResponse:
        status = statuses.pop(0) if statuses else 200
        headers = {"retry-after": wait} if status != 200 else {}
        return JSONResponse({"error": {"message": "not now"}}, status, headers=headers)

    async def live(request: Request) -> JSONResponse:
        return JSONResponse({})

    return Starlette(routes=[Route("/livez", live), Route("/{path:path}", answer, methods=["POST"])])


@pytest.mark.parametrize("status", [429, 502, 503, 504, 529, 408])
def test_a_busy_server_is_asked_again(
    invoke: Invoke, serve: Serve, asked: Callable[..., Path], tmp_path: Path, status: int
) -> None:
    url = serve(moody([status] * 3))
    result = invoke("batch", asked(chat("a"), chat("b")), tmp_path / "out", "--url", url)
    assert result.exit_code == 0, result.output
    assert {each["response"]["status_code"] for each in read(tmp_path / "out").values()} == {200}


@pytest.mark.parametrize(
    ("status", "said"),
    [(429, "not now (HTTP 429); try again in 90 s"), (401, "not now (HTTP 401); give a key")],
)
def test_a_server_that_will_not_answer_ends_the_batch(
    invoke: Invoke, serve: Serve, asked: Callable[..., Path], tmp_path: Path, status: int, said: str
) -> None:
    url = serve(moody([200, *[status] * 99], wait="90"))
    file = asked(*(chat(str(i)) for i in range(3)))
    result = invoke("batch", file, tmp_path / "out", "--url", url, "--concurrency", 1, "--patience", 60)
    assert result.exit_code == 1
    assert said in result.output
    assert "Stopped after 1 answers; the same command goes on" in result.output
    assert read(tmp_path / "out").keys() == {"0"}
    assert invoke("batch", file, tmp_path / "out", "--url", serve(moody([]))).exit_code == 0
    assert len(read(tmp_path / "out")) == 3


def test_a_server_that_was_never_there_is_not_waited_for(
    invoke: Invoke, asked: Callable[..., Path], tmp_path: Path
) -> None:
    result = invoke("batch", asked(chat("a")), tmp_path / "out", "--url", "http://127.0.0.1:1")
    assert result.exit_code == 1
    assert "no server answers at http://127.0.0.1:1" in result.output
    assert not (tmp_path / "out").exists()


def test_the_key_goes_with_every_request(
    invoke: Invoke, serve: Serve, backend: FakeBackend, asked: Callable[..., Path], tmp_path: Path
) -> None:
    key, line = new_key("me", [Scope.INFERENCE])
    url = serve(fake_app(backend, line))
    refused = invoke("batch", asked(chat("a")), tmp_path / "out", "--url", url)
    assert (refused.exit_code, "HTTP 401" in refused.output) == (1, True)
    assert invoke("batch", asked(chat("a")), tmp_path / "out", "--url", url, "--key", key).exit_code == 0


def test_files_that_are_no_answers_are_left_alone(
    invoke: Invoke, url: str, asked: Callable[..., Path], tmp_path: Path
) -> None:
    other = tmp_path / "notes.txt"
    other.write_text("precious\n")
    result = invoke("batch", asked(chat("a")), other, "--url", url)
    assert result.exit_code == 1
    assert "line 1: is no answer of a batch; name another file" in result.output
    assert other.read_text() == "precious\n"
    answers = Answers(tmp_path / "out")
    with pytest.raises(LineError, match="another run writes this file"):
        Answers(tmp_path / "out")
    answers.close()
    Answers(tmp_path / "out").close()


def test_lines_are_read_as_they_are_needed() -> None:
    lines = requests_of(io.BytesIO(b'\n {"custom_id": "a", "url": "/x", "body": {}}\nnonsense\n'))
    assert next(lines) == Line("a", "/x", {})
    with pytest.raises(LineError, match="line 3"):
        next(lines)


def test_a_full_disk_loses_no_answer(
    invoke: Invoke, url: str, asked: Callable[..., Path], tmp_path: Path
) -> None:
    file = asked(*(chat(str(i)) for i in range(20)))
    with small_disk(tmp_path / "disk", 2**20) as disk:
        out = disk / "out"
        out.touch()
        fill(disk)
        result = invoke("batch", file, out, "--url", url)
        assert result.exit_code == 1
        assert "No space left on device" in result.output
        assert "the same command goes on" in result.output
        (disk / FILLER).unlink()
        assert invoke("batch", file, out, "--url", url).exit_code == 0
        assert len(read(out)) == 20


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_batch_goes_on(
    invoke: Invoke, serve: Serve, tmp_path: Path, signum: signal.Signals
) -> None:
    backend = FakeBackend(infos=[model_info()], pauses={1: 0.05})
    url = serve(fake_app(backend))
    file, out = written(tmp_path / "in", (chat(str(i)) for i in range(150))), tmp_path / "out"
    command = [sys.executable, "-m", "serve_app.cli", "batch", str(file), str(out), "--url", url]
    running = subprocess.Popen(
        [*command, "--concurrency", "2"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "NO_COLOR": "1"},
        # What runs in the background of a shell ignores it, and so would the command.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    end = time.monotonic() + 60
    while not (out.exists() and out.read_bytes().count(b"\n") >= 3):
        assert time.monotonic() < end
        assert running.poll() is None, running.communicate()
        time.sleep(0.02)
    running.send_signal(signum)
    _, stderr = running.communicate(timeout=30)
    if signum == signal.SIGINT:
        assert running.returncode == 130
        assert "the same command goes on" in stderr
    before = out.read_bytes().count(b"\n")
    assert before < 150
    assert invoke("batch", file, out, "--url", url).exit_code == 0
    assert len(read(out)) == 150
