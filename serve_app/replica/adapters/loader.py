"""Loads adapters into a running engine: `models` reads them, and `engine` runs them.

`AdaptingLoop` is the driver of a replica's engine. Does not depend on requests or slots.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from serve_app.config import ModelConfig
from serve_app.engine.engine import Engine
from serve_app.engine.loop import EngineLoop, OnOutputs
from serve_app.engine.model.adapter_table import Adapters
from serve_app.engine.model.lora import LowRank
from serve_app.errors import Unavailable, UnsupportedField
from serve_app.models.adapters import Accepts, fingerprint, read_tensors
from serve_app.models.errors import ModelLoadError
from serve_app.models.peft import find_folder, read_folder
from serve_app.types import Adapter

log = logging.getLogger(__name__)


class AdapterLoader:
    """Reads, checks and packs adapters for one model. Callable from any thread."""

    def __init__(self, table: Adapters, config: ModelConfig) -> None:
        """Checks the folders of the settings. Raises ModelLoadError for an adapter that cannot be served."""
        self.table = table
        self._accepts = Accepts(table.shapes, config.engine.max_adapter_rank, table.dtype)
        self._folders = {name: find_folder(source) for name, source in config.adapters.items()}
        for folder in self._folders.values():
            read_folder(folder, self._accepts)

    def load(self, key: str, adapter: Adapter) -> tuple[str, Any]:
        """The adapter's name for requests (made of `key` and a digest of the content) and the packed adapter.

        The digest keeps the prefix cache correct when a client sends other weights under an old id.
        Raises InvalidField for bad tensors of a client, and Unavailable for a bad folder.
        """
        if adapter.config is not None and adapter.weights is not None:
            updates = read_tensors(adapter.config, adapter.weights, self._accepts)
        else:
            try:
                updates = read_folder(self._folders[adapter.name], self._accepts)
            except ModelLoadError as error:
                log.error("adapter %s cannot be read any more: %s", adapter.name, error)
                raise Unavailable("the adapter cannot be loaded", retry_after_s=10.0) from error
        return f"{key}#{fingerprint(updates)}", self.table.compile(LowRank(*update) for update in updates)


def make_loader(engine: Engine, config: ModelConfig) -> AdapterLoader | None:
    """The loader of an engine; None for a model that takes no adapters.

    Raises ModelLoadError if the settings name adapters for a model that takes none.
    """
    if engine.adapters is not None and engine.adapters.shapes:
        return AdapterLoader(engine.adapters, config)
    if config.adapters:
        raise ModelLoadError(f"{config.name}: adapters: this model cannot have any, or max_adapters is 0")
    return None


class AdaptingLoop(EngineLoop):
    """An engine's loop that also loads and drops adapters."""

    def __init__(self, engine: Engine, loader: AdapterLoader | None, on_outputs: OnOutputs) -> None:
        super().__init__(engine, on_outputs)
        self._loader = loader

    def load_adapter(self, key: str, adapter: Adapter) -> str:
        """Load an adapter; returns the name by which later requests use it.

        Blocks: not for the event loop. Raises the errors of `AdapterLoader.load`, or UnsupportedField.
        """
        if self._loader is None:
            raise UnsupportedField("lora_task_id", "this model takes no adapters")
        name, loaded = self._loader.load(key, adapter)
        self.call(partial(self._loader.table.put, name, loaded))
        return name

    def drop_adapter(self, name: str) -> None:
        """Forget an adapter whose requests have all ended or been aborted."""
        if self._loader is not None:
            self.call(partial(self._loader.table.drop, name))
