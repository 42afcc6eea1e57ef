"""The checkpoints that people serve most: whether each can be served here, how, and in how much memory.

`checkpoints.json` has their published configurations, without settings that change neither shapes nor layers.
`python -m tests.support.models_tables` writes their table in docs/models.md.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from serve_app.config import ModelConfig
from serve_app.engine.estimate import Estimate
from serve_app.engine.model.forward import UnsupportedModel
from serve_app.engine.model.memory import CacheTooSmall
from serve_app.models.blueprint import Blueprint, read_blueprint
from serve_app.models.errors import ModelLoadError
from serve_app.models.quantised.formats import reader_for
from tests.support.families import layers_of

CHECKPOINTS: Final[dict[str, dict[str, Any]]] = json.loads(
    Path(__file__).with_suffix(".json").read_text("utf-8")
)
GPU: Final = 80 * 2**30  # bytes of the GPU that the table is about


def checkpoint_row(name: str) -> str:
    """The row of a checkpoint, as it stands in docs/models.md."""
    published = CHECKPOINTS[name]
    config = {key: value for key, value in published.items() if key != "quantization_config"}
    quantised = published.get("quantization_config")
    try:
        answer = "yes" if quantised is None else f"yes, from {reader_for(quantised).label}"
        cells = (answer, *_memory(config))
    except (ModelLoadError, UnsupportedModel) as error:
        cells = ("no: " + str(error).split(" cannot be served: ")[-1], *[""] * 6)
    return "|" + "|".join(f" {cell} " if cell else " " for cell in (f"`{name}`", *cells)) + "|"


def _memory(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Layers, bytes of the weights in three formats, of a token and of a sequence's states, and room on the
    GPU."""
    settings = ModelConfig(name="model", source="model", device="cuda")
    model = _blueprint(config, settings)
    weights = [model.weight_bytes]
    for quantization in ("int8", "int4"):
        on_cpu = settings.model_copy(update={"device": "cpu", "quantization": quantization})
        weights.append(_blueprint(config, on_cpu).weight_bytes)
    engine = Estimate.of(model.module, settings)
    try:
        plan = engine.plan(
            settings, window=model.window, weight_bytes=model.weight_bytes, memory=GPU, on_cpu=False
        )
        room = "" if plan is None else f"{plan.num_blocks * plan.block_size:,} tokens"
    except CacheTooSmall:
        room = "too small"
    return (
        layers_of(model.module),
        *(f"{size / 2**30:,.1f} GiB" for size in weights),
        "" if engine.token_bytes is None else f"{engine.token_bytes / 2**10:,.4g} KiB",
        f"{engine.state_bytes / 2**20:,.1f} MiB" if engine.state_bytes else "",
        room,
    )


def _blueprint(config: Mapping[str, Any], settings: ModelConfig) -> Blueprint:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config), "utf-8")
        (Path(folder) / "model.safetensors").touch()  # it must exist, and is not read
        here = settings.model_copy(update={"source": folder})
        return read_blueprint(here, lambda _: None, on_cpu=settings.device == "cpu")
