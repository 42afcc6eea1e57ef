"""Generation from Python code inside the Ray cluster, over Serve handles, without HTTP.

    from serve_app import AsyncClient, Client

    client = Client("demo-chat")
    for delta in client.stream(messages=[{"role": "user", "content": "Hello!"}]):
        print(delta.text, end="", flush=True)

    answer = await AsyncClient("demo-chat").generate(text="2 + 2 =", sampling=SamplingParams(max_tokens=4))
    print(answer.text, answer.usage)

Both clients take the model's name, and a version if the model has several. The keyword arguments of a request
are the fields of `Prompt` for the input (`text`, `messages`, `token_ids`, `tools`, `templating`, `suffix`)
and any field of `GenerateRequest` (`sampling`, `n`, `beam`, `grammar`, `stop`, ...). Without `sampling`, the
defaults in the model's generation_config.json apply. `ask` sends a question that has one reply:
`client.ask(EmbedRequest(id="", inputs=("text",)))`. Both clients raise the errors of errors.py.

Unlike an answer through a gateway, an answer here never moves to another replica: a stopping replica finishes
the answer, and if the replica dies, the answer ends with GenerationFailed. The reason is that Serve's streams
report neither the weights of a replica nor that it is stopping.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import BackPressureError, RayServeException
from ray.serve.handle import DeploymentResponseGenerator

from serve_app.api.protocol.dialect import Choice
from serve_app.channel.calls import decode_reply, encode_question
from serve_app.channel.frames import Refused, answer_decoder, encoder, info_decoder
from serve_app.endpoints.rules import app_name
from serve_app.errors import GenerationFailed, ModelNotFound, Overloaded, Unavailable, from_info
from serve_app.types import (
    LEFT_TO_MODEL,
    GenerateRequest,
    ModelInfo,
    Prompt,
    Question,
    Timing,
    TokenDelta,
    Usage,
)
from serve_app.types.question import ReplyT

_PROMPT_FIELDS = tuple(Prompt.__dataclass_fields__)


@dataclass(slots=True)
class Answer(Choice):
    """One whole choice: text, thoughts, calls, tokens, log-probabilities, and how it ended."""

    stop: str | int | None = None  # the stop string or token that matched
    timing: Timing | None = None
    usage: Usage = field(default_factory=Usage)  # of the whole request, all choices

    def add(self, delta: TokenDelta) -> None:
        Choice.add(self, delta)  # `super()` does not work in a class with slots
        self.stop = delta.stop if delta.finish is not None else self.stop
        self.timing = delta.timing or self.timing


class _Deployed:
    """A model that is deployed in this cluster."""

    def __init__(self, model: str, version: str = "") -> None:
        """Raises ModelNotFound unless `model` is deployed in this cluster.

        `version`: which one of the model's versions; "" for a model without versions.
        """
        self._model = model
        try:
            self._handle = serve.get_app_handle(app_name(model, version))
        except RayServeException as error:
            named = f"version {version!r} of {model!r}" if version else repr(model)
            raise ModelNotFound("model", f"{named} is not deployed here") from error


class AsyncClient(_Deployed):
    """For code on an event loop, such as another deployment."""

    async def stream(self, **fields: Any) -> AsyncIterator[TokenDelta]:
        """The deltas of one request as they are generated. Closing the iterator aborts the request."""
        response = self._handle.options(stream=True).stream.remote(_payload(self._model, fields))
        with _cancelled_unless_done(response), _public_errors():
            async for item in response:
                for delta in _deltas(item):
                    yield delta

    async def generate(self, **fields: Any) -> Answer:
        """The first choice of one request, as a whole."""
        (answer, *_) = await self.choices(**fields)
        return answer

    async def choices(self, **fields: Any) -> list[Answer]:
        """All `n` choices of one request, as wholes."""
        answers = [Answer() for _ in range(fields.get("n", 1))]
        async for delta in self.stream(**{"stream": False, **fields}):
            _add(answers, delta)
        return answers

    async def ask(self, question: Question[ReplyT]) -> ReplyT:
        """The answer to a question, which gets an id if it has none."""
        question = _identified(question)
        with _public_errors():
            return decode_reply(question, await self._handle.ask.remote(encode_question(question)))

    async def info(self) -> ModelInfo:
        """Facts about the model: context window, vocabulary, device."""
        with _public_errors():
            return info_decoder.decode(await self._handle.info.remote())


class Client(_Deployed):
    """For plain code, such as a script or a notebook; not for use on an event loop."""

    def stream(self, **fields: Any) -> Iterator[TokenDelta]:
        """The deltas of one request as they are generated. Closing the iterator aborts the request."""
        response = self._handle.options(stream=True).stream.remote(_payload(self._model, fields))
        with _cancelled_unless_done(response), _public_errors():
            for item in response:
                yield from _deltas(item)

    def generate(self, **fields: Any) -> Answer:
        """The first choice of one request, as a whole."""
        return self.choices(**fields)[0]

    def choices(self, **fields: Any) -> list[Answer]:
        """All `n` choices of one request, as wholes."""
        answers = [Answer() for _ in range(fields.get("n", 1))]
        for delta in self.stream(**{"stream": False, **fields}):
            _add(answers, delta)
        return answers

    def ask(self, question: Question[ReplyT]) -> ReplyT:
        """The answer to a question, which gets an id if it has none."""
        question = _identified(question)
        with _public_errors():
            return decode_reply(question, self._handle.ask.remote(encode_question(question)).result())

    def info(self) -> ModelInfo:
        """Facts about the model: context window, vocabulary, device."""
        with _public_errors():
            return info_decoder.decode(self._handle.info.remote().result())


def _payload(model: str, fields: Mapping[str, Any]) -> bytes:
    prompt = {name: fields[name] for name in _PROMPT_FIELDS if name in fields}
    rest = {name: value for name, value in fields.items() if name not in _PROMPT_FIELDS}
    if "sampling" not in rest:
        rest.setdefault("left_to_model", LEFT_TO_MODEL)
    tuples = {name: tuple(value) for name, value in prompt.items() if isinstance(value, list)}
    request = GenerateRequest(id=_new_id(), model=model, prompt=Prompt(**{**prompt, **tuples}), **rest)
    return encoder.encode(request)


def _identified(question: Question[ReplyT]) -> Question[ReplyT]:
    return question if question.id else replace(question, id=_new_id())


def _new_id() -> str:
    return f"py-{secrets.token_hex(16)}"


def _deltas(item: bytes) -> Sequence[TokenDelta]:
    message = answer_decoder.decode(item)
    if isinstance(message, Refused):
        raise from_info(message.error)
    for delta in message.deltas:
        if delta.error is not None:
            raise from_info(delta.error)
    return message.deltas


def _add(answers: list[Answer], delta: TokenDelta) -> None:
    answers[delta.index].add(delta)
    for each in answers:
        each.usage = delta.usage


@contextmanager
def _cancelled_unless_done(response: DeploymentResponseGenerator[bytes]) -> Iterator[None]:
    try:
        yield
    except BaseException:  # GeneratorExit, too
        response.cancel()
        raise


@contextmanager
def _public_errors() -> Iterator[None]:
    """Turns errors of Ray and Serve into those of errors.py."""
    try:
        yield
    except BackPressureError as error:
        raise Overloaded("the model's queue is full; try again", retry_after_s=1.0) from error
    except RayServeException as error:
        raise Unavailable("the model is not available; try again", retry_after_s=1.0) from error
    except RayError as error:
        raise GenerationFailed("the model's process ended; the answer is incomplete") from error
