"""One embedding model in one process: texts in, vectors out.

Wires the text layer to the embedder's thread, as `server.py` does for a model that
generates. Depends on neither Ray nor HTTP.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final, cast

from serve_app.config import ModelConfig
from serve_app.engine.embedding.embedder import Embedder
from serve_app.engine.embedding.encoder import make_encoder
from serve_app.engine.embedding.pooling import Pooler, shortened
from serve_app.engine.machine import use_machine
from serve_app.engine.model.forward import UnsupportedModel
from serve_app.errors import DeadlineExceeded, InvalidField, Unavailable, UnsupportedField
from serve_app.models.embedder import load_embedder
from serve_app.models.errors import ModelLoadError
from serve_app.replica.build import load_tokenizer
from serve_app.replica.embedding.prompt import EmbeddingPrompt
from serve_app.replica.questions import told_text, told_tokens
from serve_app.replica.server import HEARTBEAT_LIMIT_S, STOP_TIMEOUT_S, DeltaSink
from serve_app.types import (
    DetokenizeRequest,
    Embeddings,
    EmbedRequest,
    EngineStats,
    GenerateRequest,
    ModelInfo,
    Question,
    Tensor,
    TokenizeRequest,
)
from serve_app.types.question import ReplyT

WARM_UP_TOKENS: Final = 32

Progress = Callable[[str], None]


class EmbeddingServer:
    """A loaded model that answers `EmbedRequest`s.

    >>> server = await EmbeddingServer.start(ModelConfig(name="demo-embed"), print)
    >>> embeddings = await server.ask(request)
    """

    def __init__(self, info: ModelInfo, prompt: EmbeddingPrompt, embedder: Embedder) -> None:
        self.info = info
        self._prompt = prompt
        self._embedder = embedder
        self._stopping = False

    @classmethod
    async def start(cls, config: ModelConfig, progress: Progress) -> EmbeddingServer:
        """Load the model, warm it up and start its thread.

        Raises ModelLoadError; its message says what to do next.
        """
        server = cls(*await asyncio.to_thread(_load, config, progress))
        server._embedder.start()
        progress(f"{config.name}: ready")
        return server

    async def ask(self, question: Question[ReplyT]) -> ReplyT:
        """The reply: vectors, tokens or text.

        Raises ServeError, in particular UnsupportedField for any other question. If the call is cancelled,
        its inputs leave the queue.
        """
        if isinstance(question, EmbedRequest):
            return cast("ReplyT", await self._embed(question))
        tokenizer = self._prompt.tokenizer
        if isinstance(question, TokenizeRequest):
            return cast("ReplyT", await told_tokens(tokenizer, await self._prompt.tokens(question), question))
        if isinstance(question, DetokenizeRequest):
            return cast("ReplyT", await told_text(tokenizer, self.info.vocab_size, question))
        raise UnsupportedField("model", "it has no answer to such a question")

    async def generate(self, request: GenerateRequest, sink: DeltaSink) -> None:
        """Raises UnsupportedField, since an embedding model does not generate."""
        raise UnsupportedField("model", "it embeds and does not generate text")

    async def _embed(self, request: EmbedRequest) -> Embeddings:
        if self._stopping:
            raise Unavailable("the model is shutting down; try again", retry_after_s=1.0)
        self._check_dimensions(request.dimensions)
        started = time.monotonic()
        sequences = await self._prompt.encode(request)
        left = request.timeout_s
        if left is not None:
            left -= time.monotonic() - started
            if left <= 0:
                raise DeadlineExceeded("timeout: the deadline passed before the request was queued")
        vectors = await asyncio.wrap_future(self._embedder.submit(sequences, left))
        if request.dimensions is not None and request.dimensions < vectors.shape[1]:
            vectors = shortened(vectors, request.dimensions)
        shape = cast("tuple[int, ...]", vectors.shape)
        return Embeddings(
            vectors=Tensor(dtype="FP32", shape=shape, data=vectors.astype("<f4", copy=False).tobytes()),
            prompt_tokens=sum(map(len, sequences)),
        )

    def _check_dimensions(self, dimensions: int | None) -> None:
        most = self.info.dimensions or 1
        if dimensions is not None and not 1 <= dimensions <= most:
            raise InvalidField("dimensions", f"must be from 1 to {most}, the size of this model's vectors")

    def stats(self) -> EngineStats:
        return self._embedder.stats()

    @property
    def is_dead(self) -> bool:
        """As of the embedder."""
        return self._embedder.is_dead

    def check_health(self) -> None:
        """Raise Unavailable if the embedder's thread has died or its heartbeat has stopped."""
        self._embedder.check_health(HEARTBEAT_LIMIT_S)

    async def stop(self) -> None:
        """Refuse new requests, and end the thread without waiting for open ones."""
        self._stopping = True
        await asyncio.to_thread(self._embedder.stop, STOP_TIMEOUT_S)


def _load(config: ModelConfig, progress: Progress) -> tuple[ModelInfo, EmbeddingPrompt, Embedder]:
    use_machine(config)
    model = load_embedder(config, progress)
    try:
        encoder = make_encoder(
            model.module, first_position=model.first_position, window=model.window, progress=progress
        )
    except UnsupportedModel as error:
        raise ModelLoadError(f"{config.name}: cannot be served as an embedder: {error}") from error
    own, settings = model.sentence, config.embedding
    default = own.poolings or (("last",) if model.causal else ("mean",))
    pooler = Pooler(
        default if settings.pooling == "auto" else (settings.pooling,),
        normalized=own.normalized if settings.normalize is None else settings.normalize,
    )
    tokenizer = load_tokenizer(config, model.folder)
    vocab_size = model.vocab_size
    warm_up: Any = [[0] * min(WARM_UP_TOKENS, model.window)]
    info = ModelInfo(
        name=config.name,
        version=config.version,
        created=int(time.time()),
        context_window=model.window,
        vocab_size=vocab_size,
        has_chat_template=False,
        has_fim=False,
        dtype=str(model.dtype).removeprefix("torch."),
        device=str(model.device),
        dimensions=pooler.pool(encoder.hidden(warm_up)).shape[1],
        pad_token_id=tokenizer.pad_token_id,
        end_token_id=tokenizer.eos_token_id,
    )
    prompt = EmbeddingPrompt(tokenizer, own, settings.instruction_template, model.window, vocab_size)
    return info, prompt, Embedder(encoder, pooler, config.engine)
