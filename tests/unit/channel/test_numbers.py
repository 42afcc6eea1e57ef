"""Numbers of clients between processes: of any size, and as they were written."""

import msgspec
import pytest

from serve_app.channel.calls import decode_question, encode_question
from serve_app.channel.frames import encoder, request_decoder
from serve_app.types import GenerateRequest, Numeral, Prompt, Templating, TokenizeRequest

LONG = 2**64
VALUES = [0, -1, 2**63, LONG - 1, -(2**63), LONG, -(2**63) - 1, 10**400, 1.5, True, None, "x"]


def prompt() -> Prompt:
    return Prompt(
        messages=({"role": "user", "content": "x", "values": VALUES},),
        tools=({"function": {"parameters": {"enum": [LONG, Numeral("0.1234567890123456789")]}}},),
        templating=Templating(variables={"deep": [{"amount": -LONG}]}),
    )


def test_a_request_arrives_as_it_was_sent() -> None:
    sent = GenerateRequest(id="x", model="m", prompt=prompt())
    arrived = request_decoder.decode(encoder.encode(sent))
    assert arrived == sent
    numeral = arrived.prompt.tools[0]["function"]["parameters"]["enum"][1]
    assert isinstance(numeral, Numeral)
    assert numeral.text == "0.1234567890123456789"


def test_a_question_arrives_as_it_was_sent() -> None:
    sent = TokenizeRequest(id="x", prompt=prompt())
    assert decode_question(encode_question(sent)) == sent


def test_what_is_no_number_is_refused() -> None:
    with pytest.raises(TypeError, match="no message carries"):
        encoder.encode(object())
    for code, text in ((1, b"1x"), (9, b"1")):
        data = msgspec.msgpack.encode({"prompt": msgspec.msgpack.Ext(code, text)})
        with pytest.raises((msgspec.ValidationError, ValueError)):
            request_decoder.decode(data)
