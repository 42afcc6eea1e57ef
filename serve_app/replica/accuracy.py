"""Models by their settings, as a measurement of accuracy reads a text with them; see `engine/accuracy`."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from tempfile import TemporaryFile
from typing import TypeAlias

from serve_app.config import ModelConfig
from serve_app.engine.accuracy import Chunks, Reference
from serve_app.engine.assemble import make_runner
from serve_app.engine.machine import prepare
from serve_app.engine.model.forward import UnsupportedModel
from serve_app.engine.model.memory import CacheTooSmall
from serve_app.engine.model.runner import ModelRunner
from serve_app.models.errors import ModelLoadError
from serve_app.models.files import quantisation, read_settings
from serve_app.models.loader import load_model
from serve_app.models.source import locate
from serve_app.replica.build import load_tokenizer

Progress: TypeAlias = Callable[[str], None]


def read_chunks(
    config: ModelConfig, text: str, window: int, most: int, progress: Progress
) -> list[tuple[int, ...]]:
    """The first `most` tokens of a text, in chunks of `window`, by the tokenizer of a model.

    Raises ModelLoadError, and ValueError if there are fewer than two tokens.
    """
    folder, _ = locate(config.source, config.revision, progress)
    ids = load_tokenizer(config, folder).encode_now(text)[:most]
    chunks = [tuple(ids[start : start + window]) for start in range(0, len(ids), window)]
    if len(ids) < 2:
        raise ValueError(f"the text has {len(ids)} tokens, too few to predict one")
    return [each for each in chunks if len(each) > 1]


def is_quantised(config: ModelConfig, progress: Progress) -> bool:
    """Whether the checkpoint itself is quantised. Raises ModelLoadError."""
    folder, _ = locate(config.source, config.revision, progress)
    return quantisation(read_settings(folder)) is not None


def measured(
    original: ModelConfig, models: Sequence[ModelConfig], chunks: Chunks, progress: Progress
) -> Iterator[dict[str, float]]:
    """The fields of `Accuracy` for each of `models` beside `original`. Raises ModelLoadError and OSError."""
    with TemporaryFile(prefix="serve-app-") as file:
        reference = Reference(file, load_runner(original, progress), chunks, progress)
        for config in models:
            yield asdict(reference.compare(load_runner(config, progress), progress))


def load_runner(config: ModelConfig, progress: Progress) -> ModelRunner:
    """The model as it would be served, without an engine. Raises ModelLoadError."""
    gc.collect()  # of a model before it, whose modules refer to each other
    model = load_model(config, progress, fast_bfloat16=prepare(config, progress))
    try:
        return make_runner(
            model.module,
            dtype=model.dtype,
            device=model.device,
            context_window=model.context_window,
            config=config,
            progress=progress,
        )
    except (UnsupportedModel, CacheTooSmall, ValueError) as error:
        raise ModelLoadError(f"{config.name}: {error}") from error
