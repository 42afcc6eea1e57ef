"""Server-sent events, however they are cut on their way."""

import pytest

from serve_app.cli.sse import events

STREAM = (
    ": comment\n\n"
    'data: {"a": "x\u2028y\u0085z 😀"}\n\n'
    "event: other\r\ndata:one\r\ndata: two\r\n\r\n"
    "data: [DONE]\n\n"
    "data: not ended\n"
).encode()
WANT = ['{"a": "x\u2028y\u0085z 😀"}', "one\ntwo", "[DONE]"]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 10_000])
def test_events_are_found_in_any_chunks(size):
    chunks = [STREAM[at : at + size] for at in range(0, len(STREAM), size)]
    assert list(events(chunks)) == WANT


def test_an_event_is_there_as_soon_as_it_is_complete():
    def chunks():
        yield b"data: first\n\n"
        raise AssertionError("read too far")

    assert next(events(chunks())) == "first"
