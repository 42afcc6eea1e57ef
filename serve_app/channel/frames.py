"""The messages between a gateway and a replica.

A frame is a 4-byte big-endian length and that many bytes of msgpack. It is decoded only into the types below,
so no frame can name code to run. A value of another type raises `msgspec.ValidationError`.
"""

from __future__ import annotations

from typing import Final

import msgspec

from serve_app.channel.numbers import Encoder, number_of
from serve_app.errors import GenerationFailed
from serve_app.limits import MAX_LOGITS_BYTES
from serve_app.types import EngineStats, ErrorInfo, FinishReason, GenerateRequest, ModelInfo, TokenDelta

LENGTH_BYTES: Final = 4
MAX_FRAME_BYTES: Final = 16 * 2**20  # the prompt logprobs of about 13,000 tokens, 20 alternatives each
MAX_MESSAGE_BYTES: Final = MAX_LOGITS_BYTES + MAX_FRAME_BYTES  # a delta with tensors, in pieces
MAX_HELLO_BYTES: Final = 1_024  # the most that a peer may send before its token is checked


class Ticket(msgspec.Struct, frozen=True, array_like=True):
    """The address where a gateway listens, and the secret for connecting to it. Travels inside `generate`
    calls."""

    host: str
    port: int
    gateway: str  # unique to one run of one gateway
    token: bytes  # 256 random bits
    app: str = ""  # its Serve application; empty: it is no deployment

    def __repr__(self) -> str:  # the token stays out of logs
        return f"Ticket({self.host}:{self.port}, gateway={self.gateway})"


class Hello(msgspec.Struct, tag=True, array_like=True):
    """First frame of a replica: its own identity, and proof that a gateway invited it."""

    token: bytes
    replica: str
    app: str  # its Serve application
    weights: str = ""  # `ModelInfo.weights`


class Taken(msgspec.Struct, tag=True, array_like=True):
    """The replica has this request or question. If its connection is lost after this, the request counts as
    lost."""

    request_id: str


class DeltaFrame(msgspec.Struct, tag=True, array_like=True):
    """The deltas of one engine step for the requests of this gateway."""

    deltas: list[TokenDelta]


class FramePiece(msgspec.Struct, tag=True, array_like=True):
    """A piece of a `DeltaFrame` that is too large for one frame. The pieces follow each other directly."""

    data: bytes
    last: bool


class End(msgspec.Struct, tag=True, array_like=True):
    """No further delta of this request will come."""

    request_id: str


class Refused(msgspec.Struct, tag=True, array_like=True):
    """The reason why a request ended before its first delta. It is the reply to a call, never a frame."""

    error: ErrorInfo
    is_leaving: bool = False  # the replica is stopping: another one may take the request


class Leaving(msgspec.Struct, tag=True, array_like=True):
    """The replica is stopping. Its answers may continue in other replicas; it finishes all the others."""

    request_ids: list[str]  # all requests of this gateway that the replica has


class Beat(msgspec.Struct, tag=True, array_like=True):
    """A heartbeat, sent about once a second in both directions. A replica adds its statistics."""

    stats: EngineStats | None = None


class Abort(msgspec.Struct, tag=True, array_like=True):
    """The gateway's reply to a delta for which it has no inbox: the request has no reader any more."""

    request_id: str


class Booked(msgspec.Struct, tag=True, array_like=True):
    """The gateway has recorded the usage of these clients' requests."""

    record_ids: list[str]


FromReplica = Hello | Taken | DeltaFrame | FramePiece | End | Leaving | Beat
FromGateway = Beat | Abort | Booked

encoder = Encoder()
from_replica: msgspec.msgpack.Decoder[FromReplica] = msgspec.msgpack.Decoder(FromReplica)
delta_decoder: msgspec.msgpack.Decoder[DeltaFrame] = msgspec.msgpack.Decoder(DeltaFrame)
from_gateway: msgspec.msgpack.Decoder[FromGateway] = msgspec.msgpack.Decoder(FromGateway)
request_decoder: msgspec.msgpack.Decoder[GenerateRequest] = msgspec.msgpack.Decoder(
    GenerateRequest, ext_hook=number_of
)
refusal_decoder: msgspec.msgpack.Decoder[Refused] = msgspec.msgpack.Decoder(Refused)
answer_decoder: msgspec.msgpack.Decoder[Refused | DeltaFrame] = msgspec.msgpack.Decoder(Refused | DeltaFrame)
info_decoder: msgspec.msgpack.Decoder[ModelInfo] = msgspec.msgpack.Decoder(ModelInfo)
ticket_decoder: msgspec.msgpack.Decoder[Ticket] = msgspec.msgpack.Decoder(Ticket)


def delta_frames(deltas: list[TokenDelta], max_bytes: int = MAX_FRAME_BYTES) -> list[bytes]:
    """The payloads that carry `deltas` in order: one, unless it would be larger than a frame may be.

    If tensors make a single delta too large for a frame, the delta is sent in pieces. Any other delta that is
    too large becomes an error: a receiver limits the size of messages, and dropping the delta would silently
    cut the answer.
    """
    payload = encoder.encode(DeltaFrame(deltas))
    if len(payload) <= max_bytes:
        return [payload]
    if len(deltas) > 1:
        half = len(deltas) // 2
        return delta_frames(deltas[:half], max_bytes) + delta_frames(deltas[half:], max_bytes)
    if deltas[0].tensors and len(payload) <= MAX_MESSAGE_BYTES:
        size = max_bytes // 2
        starts = range(0, len(payload), size)
        return [encoder.encode(FramePiece(payload[i : i + size], i + size >= len(payload))) for i in starts]
    error = GenerationFailed("logprobs: the answer to this prompt is too large; ask for fewer").info()
    lean = msgspec.structs.replace(
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
    return [encoder.encode(DeltaFrame([lean]))]
