"""`serve-app measure-accuracy`: what quantisation costs a model, over a text of the operator's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from serve_app.cli.model_applications import model_applications, model_config
from serve_app.cli.options import DEPLOY_FILE, read_text
from serve_app.cli.output import print_json, print_note, print_table, printable
from serve_app.config import ModelConfig

_SETTINGS: Final = ("model", "weights", "cache", "reference")
_FIGURES: Final = ("mean KL", "largest KL", "perplexity", "reference's", "agreement")


@click.command("measure-accuracy")
@click.argument("file", type=DEPLOY_FILE)
@click.option("--text", type=DEPLOY_FILE, required=True, metavar="TEXT", help="File with the text, UTF-8.")
@click.option("--app", "apps", multiple=True, metavar="NAME", help="Only this model application of FILE.")
@click.option(
    "--reference",
    metavar="SOURCE",
    help="Folder, GGUF file or hub id of the original.  [default: the same source, not quantised]",
)
@click.option("--tokens", type=click.IntRange(min=2), default=4096, show_default=True, help="Most of TEXT.")
@click.option(
    "--window", type=click.IntRange(min=2), default=1024, show_default=True, help="Tokens of a chunk."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def measure_accuracy(
    file: Path,
    text: Path,
    apps: tuple[str, ...],
    reference: str | None,
    tokens: int,
    window: int,
    as_json: bool,
) -> None:
    """Compare quantised models with their originals.

    For each model application of the deploy file FILE whose weights or KV cache are quantised, original and
    model read TEXT in chunks, as they would be served: on the same device, and in the same number type. They
    run in this process, one after the other. A checkpoint that is published quantised needs --reference.

    Shown are the Kullback-Leibler divergence of the next token's distribution from the original's, in nats;
    the perplexity of the model, and of its reference; and for which part of the tokens the likeliest next
    token is the same.
    """
    words = read_text(text)
    models = model_applications(file)
    if unknown := sorted(set(apps) - set(models)):
        raise click.UsageError(f"{file} has no model application {unknown[0]!r}; it has: {', '.join(models)}")
    chosen = {name: args for name, args in models.items() if not apps or name in apps}
    configs = [model_config(file, name, args | {"provisioned": None}) for name, args in chosen.items()]
    found = list(_measured(configs, words, reference, tokens, window))
    if not found:
        raise click.ClickException(
            f"{file}: no model has quantised weights or a quantised cache, and a reference beside it"
        )
    if as_json:
        print_json([{**settings, **figures} for settings, figures in found])
        return
    rows = [
        (
            *settings.values(),
            f"{figures['mean_divergence']:.5f}",
            f"{figures['largest_divergence']:.3f}",
            f"{figures['perplexity']:.3f}",
            f"{figures['reference_perplexity']:.3f}",
            f"{figures['agreement']:.2%}",
        )
        for settings, figures in found
    ]
    print_table((*_SETTINGS, *_FIGURES), rows, right=_FIGURES)


def _measured(
    configs: list[ModelConfig], words: str, reference: str | None, tokens: int, window: int
) -> Iterator[tuple[dict[str, str], dict[str, float]]]:
    """The settings and the figures of each model. A reference is computed once for all that have the same."""
    from serve_app.models.errors import ModelLoadError  # torch comes with it
    from serve_app.replica.accuracy import is_quantised, measured, read_chunks

    groups: dict[str, tuple[ModelConfig, list[ModelConfig]]] = {}
    try:
        for own in configs:
            config = _for_one_text(own, window)
            original = _original(config, reference)
            if original == config:
                why = "it is not quantised"
                if is_quantised(config, print_note):
                    why = "its checkpoint is quantised; name the original with --reference"
                print_note(f"{config.name} is left out: {why}")
                continue
            key = original.model_copy(update={"name": "", "version": ""}).model_dump_json()
            groups.setdefault(key, (original, []))[1].append(config)
        for original, models in groups.values():
            chunks = read_chunks(original, words, window, tokens, print_note)
            for config in models:
                if read_chunks(config, words, window, tokens, print_note) != chunks:
                    raise ModelLoadError(
                        f"{config.name} and {original.source} make other tokens of the text: they have "
                        "different tokenizers, and cannot be compared"
                    )
            for config, figures in zip(models, measured(original, models, chunks, print_note), strict=True):
                yield _settings(config, original), figures
    except (ModelLoadError, ValueError, OSError) as error:
        raise click.ClickException(printable(str(error))) from error


def _for_one_text(config: ModelConfig, window: int) -> ModelConfig:
    """The same model with a cache for one chunk, without what only matters to several requests."""
    engine = {"prefix_cache": False, "max_adapters": 0, "max_sequences": 1, "kv_cache_bytes": None}
    engine |= {"num_blocks": -(-window // config.engine.block_size) + 2, "max_model_len": None}
    return config.model_copy(
        update={
            "engine": config.engine.model_copy(update=engine),
            "adapters": {},
            "tensor_parallel": 1,
            "pipeline_parallel": 1,
        }
    )


def _original(config: ModelConfig, reference: str | None) -> ModelConfig:
    """The model without quantisation, or the one that `reference` names."""
    engine = config.engine.model_copy(update={"kv_cache_dtype": "auto"})
    plain = config.model_copy(update={"quantization": "none", "engine": engine})
    if reference is None:
        return plain
    return plain.model_copy(update={"name": "reference", "source": reference, "revision": None})


def _settings(config: ModelConfig, original: ModelConfig) -> dict[str, str]:
    values = (config.name, config.quantization, config.engine.kv_cache_dtype, original.source)
    return dict(zip(_SETTINGS, values, strict=True))
