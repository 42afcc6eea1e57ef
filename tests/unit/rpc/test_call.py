"""Who a peer is, and what an error is called."""

from __future__ import annotations

import grpc
import pytest

from serve_app.errors import KINDS, InvalidField, UnsupportedField, from_info
from serve_app.limits import MAX_ERROR_BYTES
from serve_app.loopback import is_loopback
from serve_app.rpc.call import code_of, host_of, message_of, status_of
from serve_app.types import ErrorInfo


@pytest.mark.parametrize(
    ("peer", "host", "near"),
    [
        ("ipv4:127.0.0.1:50000", "127.0.0.1", True),
        ("ipv4:10.1.2.3:50000", "10.1.2.3", False),
        ("ipv6:%5B::1%5D:50000", "::1", True),
        ("ipv6:[::1]:50000", "::1", True),
        ("ipv6:%5B::ffff:127.0.0.1%5D:5", "::ffff:127.0.0.1", True),
        ("ipv6:%5B2001:db8::1%5D:50000", "2001:db8::1", False),
        ("unix:/tmp/socket", None, False),
        ("unix:127.0.0.1:5", None, False),
        ("", None, False),
        ("127.0.0.1", None, False),
    ],
)
def test_a_peer_is_its_address_and_nothing_else_is(peer: str, host: str | None, near: bool) -> None:
    assert host_of(peer) == host
    assert is_loopback(host_of(peer)) is near


def test_every_kind_of_error_has_a_status_of_grpc_that_fits_its_status_of_http() -> None:
    fitting = {
        400: {"INVALID_ARGUMENT"},
        401: {"UNAUTHENTICATED"},
        403: {"PERMISSION_DENIED"},
        404: {"NOT_FOUND", "UNIMPLEMENTED"},
        405: {"UNIMPLEMENTED"},
        408: {"DEADLINE_EXCEEDED"},
        409: {"ALREADY_EXISTS", "ABORTED"},
        413: {"INVALID_ARGUMENT"},
        429: {"RESOURCE_EXHAUSTED"},
        500: {"INTERNAL"},
        503: {"UNAVAILABLE"},
        504: {"DEADLINE_EXCEEDED"},
    }
    for kind in KINDS.values():
        error = from_info(ErrorInfo(kind=kind.__name__, reason="what happened"))
        assert code_of(error).name in fitting[status_of(error)], kind


def test_only_a_stream_that_cannot_be_is_unimplemented() -> None:
    assert code_of(UnsupportedField("streaming", "x")) is grpc.StatusCode.UNIMPLEMENTED
    assert code_of(UnsupportedField("lora_task_id", "x")) is grpc.StatusCode.INVALID_ARGUMENT
    assert code_of(InvalidField("streaming", "x")) is grpc.StatusCode.INVALID_ARGUMENT


def test_what_is_told_of_an_error_is_bounded() -> None:
    told = message_of(InvalidField(None, "ü" * 100_000))
    assert 0 < len(told.encode()) < MAX_ERROR_BYTES
