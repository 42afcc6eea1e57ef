"""A model server without a model: numbered tokens at a fixed pace, steered by the prompt.

The prompt is `key=value` words: `tokens=20 step=0.01 first=0 die=1 sick=1 refuse=Overloaded`.
With `dead=FILE` the engine fails for good if FILE is there; it moves FILE to the process id of the server.
With `until=FILE` no token comes before FILE is there; with `hurry=FILE` there is no pause after it is.
The text of token i is `"i "`; its id is the process id of the server.
"""

from __future__ import annotations

import asyncio
import os
import signal
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, cast

from msgspec import structs

from serve_app.config import ModelConfig
from serve_app.errors import Unavailable, UnsupportedField, from_info
from serve_app.types import (
    Embeddings,
    EmbedRequest,
    EngineStats,
    ErrorInfo,
    FinishReason,
    GenerateRequest,
    ModelInfo,
    Question,
    Tensor,
    TokenDelta,
    Usage,
)
from serve_app.types.question import ReplyT

if TYPE_CHECKING:  # the real server loads torch, which a replica of this one does without
    from serve_app.replica.server import DeltaSink


class FakeServer:
    """Has the interface of `ModelServer`."""

    def __init__(self, config: ModelConfig) -> None:
        self.info = ModelInfo(
            name=config.name,
            created=int(time.time()),
            context_window=4096,
            vocab_size=1000,
            has_chat_template=True,
            has_fim=False,
            dtype="float32",
            device="cpu",
        )
        self._config = config
        self._running = 0
        self._aborted = 0
        self._generated = 0
        self._stopped = False
        self._sick = False
        self.is_dead = False

    @classmethod
    async def start(cls, config: ModelConfig, progress: Callable[[str], None]) -> FakeServer:
        progress(f"{config.name}: ready")
        return cls(config)

    async def generate(self, request: GenerateRequest, sink: DeltaSink) -> None:
        text = request.prompt.text or " ".join(str(m["content"]) for m in request.prompt.messages or ())
        options = _options(text)
        self._obey(options)
        with suppress(KeyError, FileNotFoundError):
            os.rename(options["dead"], f"{options['dead']}.{os.getpid()}")
            self.is_dead = True
        if self.is_dead:
            raise Unavailable("the engine is dead")
        if "sick" in options:  # the engine hangs: no token ever comes, and the heart stops
            self._sick = True
            await asyncio.Event().wait()
        count, step = int(options.get("tokens", "5")), float(options.get("step", "0.005"))
        count = min(count, request.sampling.max_tokens or count)
        self._running += request.n
        try:
            await asyncio.sleep(float(options.get("first", "0")))
            while "until" in options and not _is_there(options["until"]):
                await asyncio.sleep(0.01)
            made = [] if request.resume is None else request.resume.choices
            for number in range(len(made[0].token_ids) if made else 0, count):
                usage = Usage(prompt_tokens=3, completion_tokens=(number + 1) * request.n)
                last = FinishReason.LENGTH if number == count - 1 else None
                delta = TokenDelta(
                    request_id=request.id,
                    index=0,
                    text=f"{number} ",
                    token_ids=(os.getpid(),),
                    finish=last,
                    usage=usage,
                )
                sink.send([structs.replace(delta, index=index) for index in range(request.n)])
                self._generated += request.n
                is_hurried = "hurry" in options and _is_there(options["hurry"])
                await asyncio.sleep(0 if is_hurried else step)
        except asyncio.CancelledError:
            self._aborted += 1
            raise
        finally:
            self._running -= request.n

    async def ask(self, question: Question[ReplyT]) -> ReplyT:
        """As the server's: one vector an input, of the process id; text steers it as a prompt does."""
        if not isinstance(question, EmbedRequest):
            raise UnsupportedField(None, "no answer")
        options = _options(" ".join(each for each in question.inputs if isinstance(each, str)))
        self._obey(options)
        self._running += 1
        try:
            await asyncio.sleep(float(options.get("first", "0")))
        except asyncio.CancelledError:
            self._aborted += 1
            raise
        finally:
            self._running -= 1
        data = struct.pack("<f", float(os.getpid())) * len(question.inputs)
        vectors = Tensor(dtype="FP32", shape=(len(question.inputs), 1), data=data)
        return cast("ReplyT", Embeddings(vectors=vectors, prompt_tokens=3))

    def _obey(self, options: dict[str, str]) -> None:
        if self._stopped:
            raise Unavailable("stopped")
        if "refuse" in options:
            raise from_info(ErrorInfo(kind=options["refuse"], reason="refused"))
        if "die" in options:
            os.kill(os.getpid(), signal.SIGKILL)

    def stats(self) -> EngineStats:
        return EngineStats(
            running=self._running,
            max_sequences=self._config.engine.max_sequences,
            preemptions=self._aborted,  # two numbers for tests, in fields that can carry them
            steps=os.getpid(),
            generated_tokens=self._generated,
        )

    def check_health(self) -> None:
        if self._sick:
            raise Unavailable("the engine hangs")

    async def stop(self) -> None:
        self._stopped = True


def _is_there(file: str) -> bool:
    return os.path.exists(file)


def _options(text: str) -> dict[str, str]:
    return dict(word.split("=", 1) for word in text.split() if "=" in word)
