"""Compressed bodies: the same bytes, in pieces of a bounded size, however they arrive."""

from __future__ import annotations

import asyncio
import gzip
import random
import zlib
from typing import Any

import pytest

from serve_app.api.kserve.inflate import PIECE_BYTES, Inflated
from serve_app.errors import InvalidBody


def arriving(data: bytes, sizes: list[int]) -> Any:
    """An ASGI `receive` of `data` in pieces of these sizes, then a disconnect."""
    pieces = []
    for size in sizes:
        pieces.append(data[:size])
        data = data[size:]
    pieces.append(data)
    messages = [
        {"type": "http.request", "body": piece, "more_body": i < len(pieces) - 1}
        for i, piece in enumerate(pieces)
    ]
    messages.append({"type": "http.disconnect"})
    waiting = iter(messages)

    async def receive() -> Any:
        return next(waiting)

    return receive


async def unpacked(receive: Any, encoding: str | None) -> bytes:
    inflated, found = Inflated(receive, encoding), b""
    while True:
        message = await inflated()
        assert len(message["body"]) <= PIECE_BYTES or encoding in (None, "identity", "")
        found += message["body"]
        if not message["more_body"]:
            assert await inflated() == {"type": "http.disconnect"}
            return found


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "identity", "", None, " GZip "])
@pytest.mark.parametrize("seed", range(10))
async def test_the_body_is_what_was_packed(encoding: str | None, seed: int) -> None:
    rng = random.Random(seed)
    body = rng.choice([b"", b"x", b"abc" * 100_000, rng.randbytes(200_000), bytes(10 * PIECE_BYTES)])
    packs: dict[str, Any] = {"gzip": gzip.compress, "deflate": zlib.compress}
    packed = packs.get((encoding or "").strip().lower(), bytes)(body)
    sizes = [rng.randint(0, max(1, len(packed) // 3)) for _ in range(rng.randint(0, 6))]
    assert await unpacked(arriving(packed, sizes), encoding) == body


async def test_a_small_body_that_becomes_large_lets_others_go_on_meanwhile() -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    going = asyncio.ensure_future(other())
    body = bytes(200 * PIECE_BYTES)
    assert await unpacked(arriving(gzip.compress(body), []), "gzip") == body
    going.cancel()
    assert turns > 100


@pytest.mark.parametrize("cut", [0, 1, 5, 15, -1, -8])
async def test_what_ends_early_is_refused(cut: int) -> None:
    packed = gzip.compress(b"x" * 1000)
    with pytest.raises(InvalidBody):
        await unpacked(arriving(packed[:cut], [3]), "gzip")


@pytest.mark.parametrize("sizes", [[], [10], [10_000], [29]])
async def test_what_follows_the_end_is_refused(sizes: list[int]) -> None:
    packed = gzip.compress(b"x" * 1000) + b"more"
    with pytest.raises(InvalidBody, match="follows"):
        await unpacked(arriving(packed, sizes), "gzip")


@pytest.mark.parametrize("encoding", ["br", "gzip, gzip", "zstd", "x"])
def test_other_encodings_are_refused(encoding: str) -> None:
    with pytest.raises(InvalidBody, match="gzip, deflate, identity"):
        Inflated(arriving(b"", []), encoding)


async def test_a_client_that_leaves_in_the_middle_is_told_of() -> None:
    async def receive() -> Any:
        return {"type": "http.disconnect"}

    assert await Inflated(receive, "gzip")() == {"type": "http.disconnect"}
