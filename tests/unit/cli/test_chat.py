"""A chat from a pipe and in a real terminal, with a real gateway."""

from __future__ import annotations

import codecs
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from serve_app.cli import chat
from serve_app.errors import GenerationFailed
from serve_app.types import FinishReason
from tests.support.fakes_backend import WORDS, FakeBackend, model_info
from tests.support.gateway import fake_app

ANSWER = "".join(WORDS)
WAIT_S = 60.0


def said(backend: FakeBackend, number: int = -1) -> list[tuple[str, str]]:
    messages = backend.requests[number].prompt.messages
    assert messages is not None
    return [(message["role"], message["content"]) for message in messages]


def test_each_line_of_a_pipe_is_a_turn_of_one_chat(invoke, url, backend):
    backend.finish = FinishReason.EOS
    result = invoke("chat", "demo", "--url", url, "--system", "Be kind.", input="Hello!\n\nAnd again?")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == f"{ANSWER}\n{ANSWER}\n"
    assert said(backend, 0) == [("system", "Be kind."), ("user", "Hello!")]
    assert said(backend) == [
        *said(backend, 0),
        ("assistant", ANSWER),
        ("user", "And again?"),
    ]


def test_lines_of_a_pipe_are_questions_whatever_they_begin_with(invoke, url, backend):
    result = invoke("chat", "demo", "--url", url, input="/etc/hosts: what is it?\n/quit\n")
    assert result.exit_code == 0
    assert [said(backend, number)[-1][1] for number in range(2)] == ["/etc/hosts: what is it?", "/quit"]


def test_commands_change_the_chat_and_are_not_asked(invoke, url, backend, monkeypatch):
    lines = [
        "one",
        "/reset",
        "two",
        "/system Rhyme.",
        "three",
        "/system",
        "four",
        "/unknown",
        "/quit",
        "five",
    ]
    monkeypatch.setattr(chat, "_is_terminal", lambda: True)
    monkeypatch.setattr(chat, "_typed", lambda: iter(lines))
    result = invoke("chat", "demo", "--url", url)
    assert result.exit_code == 0
    questions = [said(backend, number)[-1][1] for number in range(len(backend.requests))]
    assert questions == ["one", "two", "three", "four"]
    assert said(backend, 1) == [("user", "two")]
    assert said(backend, 2)[:2] == [("system", "Rhyme."), ("user", "two")]
    assert said(backend, 3)[0] == ("user", "two")
    assert "/reset forgets" in result.stderr


def test_options_are_members_of_the_request(invoke, url, backend):
    options = ["--temperature", "0.5", "--top-p", "0.9", "--max-tokens", "7", "--seed", "3"]
    assert invoke("chat", "--url", url, *options, input="x").exit_code == 0
    sampling = backend.last.sampling
    assert (sampling.temperature, sampling.top_p, sampling.max_tokens, sampling.seed) == (0.5, 0.9, 7, 3)
    assert invoke("chat", "--url", url, input="x").exit_code == 0
    assert backend.last.sampling.temperature == 1.0


def test_statistics_follow_each_answer_on_the_error_stream(invoke, url):
    result = invoke("chat", "--url", url, "--stats", input="x\ny")
    assert result.stdout == f"{ANSWER}\n" * 2
    lines = result.stderr.splitlines()
    assert len(lines) == 2
    assert all(line.startswith("[cut at the token limit, 6 tokens, first after ") for line in lines)
    assert all(line.endswith(" tokens/s]") for line in lines)


def test_an_answer_keeps_every_character_but_those_that_steer_a_terminal(invoke, url, backend):
    backend.words = ("a\u2028b\u0085c\n", "\x1b[2Jé", "😀")
    assert invoke("chat", "--url", url, input="x").stdout == "a\u2028bc\n[2Jé😀\n"


def test_an_answer_that_fails_ends_a_pipe_with_its_reason(invoke, url, backend):
    backend.fail_after, backend.error_delta = 2, GenerationFailed("the model broke")
    result = invoke("chat", "--url", url, input="x\ny")
    assert result.exit_code == 1
    assert result.stdout.startswith("".join(WORDS[:2]))
    assert "the model broke" in result.stderr
    assert len(backend.requests) == 1


def test_the_protocol_is_openais_whatever_the_server_speaks(invoke, serve, backend):
    url = serve(fake_app(backend, v1_dialect="mindie"))
    result = invoke("chat", "demo", "--url", url, "--temperature", "0", "--seed", "0", input="x")
    assert (result.exit_code, result.stdout) == (0, f"{ANSWER}\n")


def test_an_error_that_is_a_sentence_is_told(invoke, serve):
    async def page(request):
        return PlainTextResponse('data: {"error":"it broke"}\n\n', media_type="text/event-stream")

    url = serve(Starlette(routes=[Route("/v1/chat/completions", page, methods=["POST"])]))
    result = invoke("chat", "some-model", "--url", url, input="Hello!")
    assert (result.exit_code, result.stderr) == (1, "Error: it broke\n")


def test_a_request_that_is_refused_says_why(invoke, url):
    result = invoke("chat", "--url", url, "--temperature", "99", input="x")
    assert result.exit_code == 1
    assert "temperature" in result.stderr
    assert "HTTP 400" in result.stderr


def test_without_a_name_there_must_be_one_model(invoke, serve):
    url = serve(fake_app(FakeBackend(infos=[model_info("a"), model_info("b")])))
    several = invoke("chat", "--url", url, input="x")
    assert several.exit_code == 2
    assert "a, b" in several.stderr
    none = invoke("chat", "--url", serve(fake_app(FakeBackend(infos=[]))), input="x")
    assert none.exit_code == 1
    assert "serve-app health" in none.stderr


class Terminal:
    """`serve-app chat` on a pseudo-terminal of its own."""

    # A terminal controls only processes that took it, so that Ctrl-C reaches them; and jobs in the
    # background, of which these tests may be one, are started deaf to it.
    PROGRAM = (
        "import fcntl, signal, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from serve_app.cli.main import main; main()"
    )

    def __init__(self, *arguments: str) -> None:
        self._own, theirs = os.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-c", self.PROGRAM, *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            env=os.environ | {"TERM": "dumb"},
        )
        os.close(theirs)
        self.shown = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")()

    def type(self, text: str) -> None:
        os.write(self._own, text.encode())

    def expect(self, text: str) -> None:
        """Waits until `text` is shown; what came before it is dropped."""
        if not self._shows(text, WAIT_S):
            raise AssertionError(f"{text!r} was not shown, but: {self.shown!r}")
        self.shown = self.shown.partition(text)[2]

    def interrupt(self, text: str) -> None:
        """Ctrl-C until `text` is shown: Python misses a signal that comes just before it waits for a key."""
        deadline = time.monotonic() + WAIT_S
        while True:
            self.type("\x03")
            if self._shows(text, 2.0) or time.monotonic() > deadline:
                return self.expect(text)

    def _shows(self, text: str, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while text not in self.shown:
            if not select.select([self._own], [], [], max(0.0, deadline - time.monotonic()))[0]:
                return False
            self.shown += self._decoder.decode(os.read(self._own, 4096))
        return True

    def close(self) -> None:
        self.process.kill()
        self.process.wait(WAIT_S)
        os.close(self._own)


@pytest.fixture
def terminal(url: str) -> Iterator[Terminal]:
    opened = Terminal("chat", "--url", url, "--stats")
    yield opened
    opened.close()


def test_a_terminal_has_a_prompt_and_streams(terminal, backend):
    terminal.expect("/quit ends")
    terminal.expect("> ")
    terminal.type("Hello!\n")
    terminal.expect(WORDS[2])
    terminal.expect("tokens/s]")
    terminal.expect("> ")
    terminal.type("/nonsense\n")
    terminal.expect("/reset forgets")
    terminal.expect("> ")  # before that, Ctrl-D has no meaning yet
    terminal.type("\x04")  # Ctrl-D
    assert terminal.process.wait(WAIT_S) == 0
    assert [said(backend, number) for number in range(len(backend.requests))] == [[("user", "Hello!")]]


def test_ctrl_c_stops_the_answer_and_keeps_the_chat(terminal, backend):
    backend.hang_after = 2
    terminal.expect("> ")
    terminal.type("First\n")
    terminal.expect(WORDS[1])
    terminal.interrupt("[stopped")
    backend.hang_after = None
    terminal.expect("> ")
    terminal.interrupt("Ctrl-D ends")  # at the prompt it ends nothing
    terminal.type("Second\n")
    terminal.expect("tokens/s]")
    assert said(backend) == [("user", "First"), ("assistant", "".join(WORDS[:2])), ("user", "Second")]
    assert len(backend.aborted) == 1
    terminal.type("/quit\n")
    assert terminal.process.wait(WAIT_S) == 0


def test_a_failed_answer_does_not_end_a_chat_in_a_terminal(terminal, backend):
    backend.refuse = GenerationFailed("the model broke")
    terminal.expect("> ")
    terminal.type("First\n")
    terminal.expect("the model broke")
    backend.refuse = None
    terminal.type("Second\n")
    terminal.expect("tokens/s]")
    assert said(backend) == [("user", "Second")]
