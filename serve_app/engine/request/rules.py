"""One engine's rules for requests: vocabulary, window, cache and processors, whatever the load."""

from __future__ import annotations

from typing import Protocol

from serve_app.config import EngineConfig
from serve_app.engine.grammar.constraint import FIELD
from serve_app.engine.request import validation
from serve_app.engine.request.processors import ProcessorRegistry
from serve_app.errors import UnsupportedField
from serve_app.types import Beam, EngineRequest


class Model(Protocol):
    """The facts about a model that the rules need; a runner provides them."""

    vocab_size: int
    table_width: int
    block_size: int
    num_blocks: int


class RequestRules:
    """Decides whether a request can run at all. Thread-safe."""

    def __init__(
        self, config: EngineConfig, model: Model, max_model_len: int, end_tokens: int, *, grammars: bool
    ) -> None:
        """`end_tokens`: how many end tokens the model itself has. `grammars`: whether grammars are supported.

        Raises ValueError for a processor that cannot be loaded.
        """
        self.processors = ProcessorRegistry(config.logits_processors)
        self._model, self._max_model_len = model, max_model_len
        self._grammars = grammars
        self._beams = validation.BeamBounds(
            width=min(config.max_sequences, config.max_step_tokens, model.num_blocks), end_tokens=end_tokens
        )

    def check(self, request: EngineRequest) -> None:
        """Raise InvalidField or PromptTooLong for a request that can never run."""
        if request.grammar is not None and not self._grammars:
            raise UnsupportedField(FIELD, "is not available with this model")
        self.processors.check(request.sampling.processors)
        validation.validate(
            request,
            vocab_size=self._model.vocab_size,
            window=self.window(request.beam),
            beams=self._beams,
            table_width=self._model.table_width,
        )

    def window(self, beam: Beam | None) -> int:
        """The most tokens that a sequence of a request may have. The cache must hold all beams at once."""
        if beam is None or beam.width < 1:
            return self._max_model_len
        blocks = self._model.num_blocks // beam.width
        return min(self._max_model_len, blocks * self._model.block_size)
