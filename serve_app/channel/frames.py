"""What is on the wire between a gateway and a replica.

A frame is a 4-byte big-endian length and that many bytes of msgpack, decoded
into the types below and nothing else: no frame can name code. Values out of
type raise `msgspec.ValidationError`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import msgspec

from serve_app.errors import GenerationFailed
from serve_app.limits import MAX_LOGITS_BYTES
from serve_app.types import EngineStats, ErrorInfo, FinishReason, GenerateRequest, TokenDelta

LENGTH_BYTES: Final = 4
MAX_FRAME_BYTES: Final = 16 * 2**20  # the prompt logprobs of about 13,000 tokens, 20 alternatives each
MAX_MESSAGE_BYTES: Final = MAX_LOGITS_BYTES + MAX_FRAME_BYTES  # of a delta with tensors, in pieces
MAX_HELLO_BYTES: Final = 1_024  # all that a peer may send before its token was checked


class Ticket(msgspec.Struct, frozen=True, array_like=True):
    """Where a gateway listens, and the secret that opens it. Travels inside `generate` calls."""

    host: str
    port: int
    gateway: str  # unique to one run of one gateway
    token: bytes  # 256 random bits
    app: str = ""  # its Serve application; empty: it is no deployment

    def __repr__(self) -> str:  # the token stays out of logs
        return f"Ticket({self.host}:{self.port}, gateway={self.gateway})"


class Hello(msgspec.Struct, tag=True, array_like=True):
    """First frame of a replica: proof that a gateway invited it, and who it is."""

    token: bytes
    replica: str
    app: str  # its Serve application


class Step(msgspec.Struct, tag=True, array_like=True):
    """What one engine step brought the requests of this gateway."""

    deltas: list[TokenDelta]


class Piece(msgspec.Struct, tag=True, array_like=True):
    """A part of a `Step` that is larger than a frame; its parts follow each other."""

    data: bytes
    last: bool


class End(msgspec.Struct, tag=True, array_like=True):
    """No further delta of this request will come."""

    request_id: str


class Refused(msgspec.Struct, tag=True, array_like=True):
    """Why a request ended before its first delta. The answer of a call, never a frame."""

    error: ErrorInfo


class Beat(msgspec.Struct, tag=True, array_like=True):
    """A sign of life, about once a second in both directions; a replica adds its statistics."""

    stats: EngineStats | None = None


class Abort(msgspec.Struct, tag=True, array_like=True):
    """Nobody reads this request any more: the gateway's answer to a delta that has no inbox."""

    request_id: str


class Booked(msgspec.Struct, tag=True, array_like=True):
    """The gateway wrote down what these requests of clients used."""

    record_ids: list[str]


FromReplica = Hello | Step | Piece | End | Beat
FromGateway = Beat | Abort | Booked

encoder = msgspec.msgpack.Encoder()
from_replica: msgspec.msgpack.Decoder[FromReplica] = msgspec.msgpack.Decoder(FromReplica)
step_decoder: msgspec.msgpack.Decoder[Step] = msgspec.msgpack.Decoder(Step)
from_gateway: msgspec.msgpack.Decoder[FromGateway] = msgspec.msgpack.Decoder(FromGateway)
request_decoder: msgspec.msgpack.Decoder[GenerateRequest] = msgspec.msgpack.Decoder(GenerateRequest)
refusal_decoder: msgspec.msgpack.Decoder[Refused] = msgspec.msgpack.Decoder(Refused)
answer_decoder: msgspec.msgpack.Decoder[Refused | Step] = msgspec.msgpack.Decoder(Refused | Step)
ticket_decoder: msgspec.msgpack.Decoder[Ticket] = msgspec.msgpack.Decoder(Ticket)


def step_frames(deltas: list[TokenDelta], max_bytes: int = MAX_FRAME_BYTES) -> list[bytes]:
    """The payloads that carry `deltas` in order: one, unless they are larger than a frame may be.

    A single delta that no frame can hold goes in pieces if tensors make it so large, and
    else becomes an error: a bounded receiver must not be asked to take it, and dropping
    it would truncate an answer silently.
    """
    payload = encoder.encode(Step(deltas))
    if len(payload) <= max_bytes:
        return [payload]
    if len(deltas) > 1:
        half = len(deltas) // 2
        return step_frames(deltas[:half], max_bytes) + step_frames(deltas[half:], max_bytes)
    if deltas[0].tensors and len(payload) <= MAX_MESSAGE_BYTES:
        size = max_bytes // 2
        starts = range(0, len(payload), size)
        return [encoder.encode(Piece(payload[i : i + size], i + size >= len(payload))) for i in starts]
    error = GenerationFailed("logprobs: the answer to this prompt is too large; ask for fewer").info()
    lean = replace(
        deltas[0],
        text="",
        token_ids=(),
        logprobs=None,
        prompt_text=None,
        prompt_token_ids=None,
        prompt_logprobs=None,
        tensors={},
        finish=FinishReason.ERROR,
        error=error,
    )
    return [encoder.encode(Step([lean]))]
