"""An error about a field has its name and its reason apart; the message is composed of both, once."""

import copy

import msgspec
import pytest

from serve_app.errors import (
    KINDS,
    FieldError,
    GenerationFailed,
    InvalidField,
    Overloaded,
    PromptTooLong,
    ServeError,
    UnsupportedField,
    from_info,
)
from serve_app.types import ErrorInfo

ERRORS = [
    (InvalidField("n", "must be an integer"), "n: must be an integer"),
    (InvalidField("n", "must be at most 4.", joint=" "), "n must be at most 4."),
    (PromptTooLong("prompt", "The prompt has 9 tokens.", joint=None), "The prompt has 9 tokens."),
    (UnsupportedField(None, "the header X is not accepted"), "the header X is not accepted"),
    (Overloaded("try again", retry_after_s=2.0), "try again"),
]


@pytest.mark.parametrize(("error", "message"), ERRORS)
def test_an_error_is_the_same_after_it_crossed_a_process(error: ServeError, message: str) -> None:
    sent = msgspec.msgpack.encode(error.info())
    for back in (from_info(msgspec.msgpack.decode(sent, type=ErrorInfo)), copy.copy(error)):
        assert type(back) is type(error)
        assert (back.message, str(back)) == (message, message)
        assert (back.param, back.retry_after_s) == (error.param, error.retry_after_s)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (InvalidField("max_tokens", "must be one of n, max_tokens"), "theirs: must be one of n, max_tokens"),
        (InvalidField("max_tokens", "is 9, above max_tokens", joint=" "), "theirs is 9, above max_tokens"),
        (PromptTooLong("prompt", "prompt tables are too large", joint=None), "prompt tables are too large"),
    ],
)
def test_a_renamed_error_changes_the_name_of_its_field_and_nothing_else(
    error: FieldError, message: str
) -> None:
    renamed = error.renamed("theirs")
    assert (type(renamed), renamed.message, renamed.param) == (type(error), message, "theirs")


def test_an_unknown_kind_of_error_is_a_failure_of_ours() -> None:
    back = from_info(ErrorInfo(kind="NoSuchError", reason="no"))
    assert type(back) is GenerationFailed
    assert set(KINDS) >= {"FieldError", "InvalidField", "GenerationFailed"}
