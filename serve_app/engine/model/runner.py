"""Batch -> logits. Owns the module and, through its attention backend, the KV cache.

The runner learns the layers from a dry run, refuses a module that our attention would get wrong, and sizes
the cache. Does not depend on requests, sampling or scheduling.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import Final

import torch
from transformers import PreTrainedModel

from serve_app.config import EngineConfig
from serve_app.engine.attention import CACHED, AttentionBackend
from serve_app.engine.attention.numbering import Numbered
from serve_app.engine.batch import Batch
from serve_app.engine.model import peak, query_temperature
from serve_app.engine.model.adapter_table import MakeAdapters
from serve_app.engine.model.dry_run import learn_layers
from serve_app.engine.model.forward import (
    Line,
    active,
    check_chunks,
    check_codes,
    check_takes_positions,
    connect_attention,
)
from serve_app.engine.model.indexers import connect_indexers
from serve_app.engine.model.memory import ALONE, Agreement, CachePlan, CacheTooSmall, plan_for_device
from serve_app.engine.model.packed_adapters import PackedTable
from serve_app.engine.model.prompt_tuning import STAND_IN, EmbeddingRows
from serve_app.engine.model.stages import stage_of
from serve_app.engine.model.stateful import connect_states, wants_positions
from serve_app.engine.state import StateKernels
from serve_app.engine.state.pools import StatePools

log = logging.getLogger(__name__)


class ModelRunner:
    """Runs one causal language model on packed batches.

    `module` is a transformers causal LM in eval mode on `device`; its attention is replaced by ours. `dtype`
    is the type of the keys and values, and also that of the cache unless `config.kv_cache_dtype` says
    otherwise. `context_window` is the model's own window in tokens; None: `max_position_embeddings`.
    `make_adapters` makes the table of the model's adapters. `graphed`: the number of tokens in the largest
    step with prompts that will be recorded as a graph. `agreement`: as of `plan_for_device`. `line`: of a
    module that is a stage. Raises UnsupportedModel and `memory.CacheTooSmall`.
    """

    stages: Final = 1

    def __init__(
        self,
        module: PreTrainedModel,
        *,
        backend: AttentionBackend,
        dtype: torch.dtype,
        device: torch.device,
        config: EngineConfig,
        context_window: int | None = None,
        make_adapters: MakeAdapters = PackedTable,
        graphed: int = 0,
        state_kernels: StateKernels | None = None,
        agreement: Agreement = ALONE,
        line: Line | None = None,
    ) -> None:
        self.module = module
        self.device = device
        self.backend = backend
        name = type(module).__name__
        self._wants_positions = wants_positions(module)
        query_temperature.take_over(module)
        text_config = module.config.get_text_config()
        check_chunks(text_config, config.block_size)
        self._keeps_rows = "logits_to_keep" in inspect.signature(module.forward).parameters
        connect_attention(module)
        connect_states(module)
        connect_indexers(module)
        stage = stage_of(module)
        layers = learn_layers(self._logits, name=name, config=text_config, device=device, stage=stage)
        self._codes = CACHED[config.kv_cache_dtype]
        check_codes(layers.attention, codes=self._codes is not None)
        if layers.attention:
            check_takes_positions(module)
        self.layers = layers.attention
        self.vocab_size = layers.width if stage is None else stage.vocab_size
        self._line: Line | None = None
        if layers.numbers != tuple(range(len(layers.numbers))):
            self.backend = Numbered(backend, layers.numbers)
        self._state_specs, self._state_kernels = layers.states, state_kernels
        self._rows = EmbeddingRows(module, self.vocab_size)
        self.table_width = self._rows.width
        self.adapters = make_adapters(module, dtype, device, config) if config.max_adapters else None
        window = context_window or int(text_config.max_position_embeddings)
        self.plan: CachePlan = plan_for_device(
            self.layers,
            layers.states,
            dtype=dtype if self._codes is None else torch.int8,
            device=device,
            config=config,
            context_window=window,
            step_bytes=self._step_bytes(config, min(window, config.max_model_len or window), dtype, graphed),
            adapter_bytes=0 if self.adapters is None else self.adapters.bytes_to_come,
            agreement=agreement,
        )
        self.block_size = self.plan.block_size
        self.num_blocks = self.plan.num_blocks
        self.num_slots = self.plan.num_slots
        self.max_model_len = self.plan.max_model_len
        try:
            self._allocate(self.num_blocks, self.block_size, dtype, self.num_slots)
        except (OSError, torch.OutOfMemoryError) as error:
            why = error.strerror if isinstance(error, OSError) else "the GPU has less"
            raise CacheTooSmall(
                f"the system does not give the {self.plan.cache_bytes:,} bytes of the KV cache "
                f"({why}); lower kv_cache_bytes or num_blocks, or free some memory"
            ) from error
        self.memory, self._line = backend.memory, line  # which carries steps from now on
        if self.plan.lowered_from is not None:
            log.warning(
                "context window lowered from %d to %d tokens: the KV cache holds no more",
                self.plan.lowered_from,
                self.max_model_len,
            )
        if self.plan.max_sequences < config.max_sequences:
            log.warning(
                "max_sequences lowered from %d to %d: states of %d MiB a sequence, in %d slots",
                config.max_sequences,
                self.plan.max_sequences,
                self.plan.slot_bytes >> 20,
                self.num_slots,
            )

    def run(self, batch: Batch) -> torch.Tensor:
        """Compute the step and fill the cache; returns [R, V] float32, with one row for each wanted position.

        R may be 0 (prefill chunks that end inside their prompts); the result is then [0, V], and the head
        computes nothing. A stage without the head returns numbers that mean nothing.
        """
        adapters = None if self.adapters is None else self.adapters.of_step(batch.chunks)
        virtual, input_ids = self._rows.of_step(batch.chunks, self.device), batch.input_ids
        if virtual is not None:
            input_ids = input_ids.index_fill(0, virtual.places, STAND_IN)
        states = None if self.states is None else self.states.of_step(batch.chunks)
        with (
            torch.inference_mode(),
            active(self.backend, batch.context, adapters, states, line=self._line),
            self._rows.written(virtual),
        ):
            return self._logits(input_ids, batch.positions, batch.logit_rows).float()

    def launch(self, batch: Batch) -> Callable[[], torch.Tensor]:
        """As of `isolation.Runner`."""
        logits = self.run(batch)
        return lambda: logits

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        """Copy cache blocks (source, target) in every layer."""
        if pairs:
            with torch.inference_mode():
                self.backend.copy_blocks(pairs)

    def check(self) -> None:
        """As of `isolation.Runner`: the one device of a runner is lost only with its process."""

    def _step_bytes(self, config: EngineConfig, window: int, dtype: torch.dtype, graphed: int) -> int:
        """The memory that the largest steps take beside weights and cache; 0 if it is not measured."""
        if not peak.is_measured(self.device, config):
            return 0
        blocks = peak.blocks_of_steps(config, window)
        try:
            self._allocate(blocks, config.block_size, dtype)
            steps = peak.largest_steps(config, window, self.vocab_size, self.device, graphed)
            return peak.step_bytes(self.run, steps, self.device)
        except torch.OutOfMemoryError as error:
            raise CacheTooSmall(
                f"a step of {config.max_step_tokens} tokens does not fit on the GPU beside the weights; "
                "lower max_step_tokens, or choose a smaller model or dtype"
            ) from error
        finally:
            self._allocate(0, config.block_size, dtype)
            torch.cuda.empty_cache()

    def _allocate(self, num_blocks: int, block_size: int, dtype: torch.dtype, num_slots: int = 0) -> None:
        self.backend.allocate(self.layers, num_blocks, block_size, dtype, self.device, codes=self._codes)
        specs, kernels = self._state_specs, self._state_kernels
        self.states = StatePools(specs, num_slots, self.device, kernels) if specs else None

    def _logits(self, input_ids: torch.Tensor, positions: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """[T], [T], [R] -> [R, V]."""
        inputs = {"input_ids": input_ids[None], "use_cache": False}
        if self._wants_positions:
            inputs["position_ids"] = positions[None]
        if self._keeps_rows:
            logits: torch.Tensor = self.module(**inputs, logits_to_keep=rows).logits[0]
            return logits
        # Not base model + lm_head: a final scale or softcap is in the module's own forward.
        logits = self.module(**inputs).logits[0]
        return logits[rows]
