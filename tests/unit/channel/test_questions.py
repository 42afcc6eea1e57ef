"""Questions and replies as bytes."""

from __future__ import annotations

import msgspec
import pytest

from serve_app.channel.calls import (
    QUESTIONS,
    decode_question,
    decode_reply,
    encode_question,
    encode_reply,
)
from serve_app.channel.frames import Refused, encoder
from serve_app.errors import PromptTooLong
from serve_app.types import Embeddings, EmbedRequest, Question, Tensor

ASKED = EmbedRequest(id="q", inputs=("Köln", (1, 2, 3)), instruction="find", dimensions=4, timeout_s=1.5)
ANSWERED = Embeddings(vectors=Tensor(dtype="FP32", shape=(1, 2), data=b"\0" * 8), prompt_tokens=7)


def test_a_question_arrives_as_it_was_asked() -> None:
    assert decode_question(encode_question(ASKED)) == ASKED


def test_a_reply_arrives_as_it_was_given() -> None:
    assert decode_reply(ASKED, encode_reply(ANSWERED)) == ANSWERED


def test_a_refusal_is_raised_as_the_error_it_was() -> None:
    error = PromptTooLong("input", "too long")
    with pytest.raises(PromptTooLong) as caught:
        decode_reply(ASKED, encode_reply(Refused(error.info())))
    assert (caught.value.message, caught.value.param) == ("input: too long", "input")


@pytest.mark.parametrize(
    "data",
    [
        encoder.encode(("os.system", ASKED)),
        encoder.encode(("EmbedRequest", {"id": "q"})),
        encoder.encode(("EmbedRequest", {"id": "q", "inputs": [{"a": 1}]})),
        encoder.encode(["EmbedRequest"]),
    ],
    ids=["unknown", "incomplete", "out of type", "short"],
)
def test_what_is_no_question_is_refused(data: bytes) -> None:
    with pytest.raises(msgspec.ValidationError):
        decode_question(data)


def test_every_kind_of_question_can_cross() -> None:
    # By name: a dataclass with slots is made twice.
    assert {kind.__name__ for kind in QUESTIONS} == {kind.__name__ for kind in Question.__subclasses__()}
