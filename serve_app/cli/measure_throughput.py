"""`serve-app measure-throughput`: finds the value for `provisioned.replica_throughput`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import click

from serve_app.cli.model_applications import model_applications, model_config
from serve_app.cli.output import rounded_down
from serve_app.config import ModelConfig
from serve_app.deployments.launcher.terminal import waiting
from serve_app.errors import ServeError

if TYPE_CHECKING:
    from serve_app.replica.throughput import Mix, Throughput


@click.command("measure-throughput")
@click.argument("target", metavar="FILE|MODEL")
@click.option("--app", metavar="NAME", help="Which model application of FILE; needed if there are several.")
@click.option(
    "--input-tokens", type=click.IntRange(min=1), default=256, show_default=True, help="Of each prompt."
)
@click.option(
    "--output-tokens", type=click.IntRange(min=1), default=128, show_default=True, help="Of each answer."
)
@click.option(
    "--concurrency", type=click.IntRange(min=1), help="Open requests.  [default: the engine's max_sequences]"
)
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0.1, max=3600),
    default=10.0,
    show_default=True,
    help="Length of a round.",
)
def measure_throughput(
    target: str,
    app: str | None,
    input_tokens: int,
    output_tokens: int,
    concurrency: int | None,
    rounds: int,
    seconds: float,
) -> None:
    """Measure what one replica makes on this machine.

    FILE is a deploy file (.yaml), measured as its model application configures the replica.
    MODEL is a folder, a hub id or the name of a demo model, and is measured with default settings.

    The model runs in this process, without HTTP and Ray, under as many open requests as its
    engine batches; run nothing beside it. The figure is that of the median round: input and output tokens
    together, in the stated mix. Your own traffic has a different mix, so measure with yours.
    """
    config = _from_file(Path(target), app) if target.endswith((".yaml", ".yml")) else _from_name(target, app)
    from serve_app.replica.throughput import Mix  # torch comes with it, so the settings are read first

    mix = Mix(
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        concurrency=concurrency or config.engine.max_sequences,
    )
    with waiting(f"measuring {config.name}"):
        result = asyncio.run(_measure(config, mix, rounds, seconds))
    _report(config, result)


def _from_file(path: Path, app: str | None) -> ModelConfig:
    models = model_applications(path)
    if app is None and len(models) > 1:
        raise click.UsageError(f"{path} has several models; choose one with --app: {', '.join(models)}")
    name = app or next(iter(models))
    if name not in models:
        raise click.UsageError(f"{path} has no model application {name!r}; it has: {', '.join(models)}")
    # Throughput may be bought only after this command has measured a replica.
    return model_config(path, name, models[name] | {"provisioned": None})


def _from_name(target: str, app: str | None) -> ModelConfig:
    if app is not None:
        raise click.UsageError("--app chooses from a deploy file; a model has none")
    is_demo = "/" not in target and not Path(target).exists()
    return ModelConfig(name=target, source="" if is_demo else target)


async def _measure(config: ModelConfig, mix: Mix, rounds: int, seconds: float) -> Throughput:
    from serve_app.models.errors import ModelLoadError
    from serve_app.replica.server import ModelServer
    from serve_app.replica.throughput import measure

    try:
        server = await ModelServer.start(config, _progress)
    except ModelLoadError as error:
        raise click.ClickException(str(error)) from error
    try:
        return await measure(server, mix, rounds=rounds, seconds=seconds, progress=_progress)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    except ServeError as error:
        raise click.ClickException(f"a request failed: {error.message}") from error
    finally:
        await server.stop()


def _progress(line: str) -> None:
    click.echo(line, err=True)


def _report(config: ModelConfig, result: Throughput) -> None:
    mix = result.mix
    click.echo(
        f"{config.name}: {mix.input_tokens} tokens in, {mix.output_tokens} out, {mix.concurrency} at a time, "
        f"median of {len(result.rounds)} rounds"
    )
    click.echo(f"  input and output  {result.tokens_per_s:12,.1f} tokens/s  (spread {result.spread:.0%})")
    click.echo(f"  output alone      {result.output_per_s:12,.1f} tokens/s")
    if result.preemptions:
        click.echo(
            f"note: {result.preemptions} sequences gave way, because the KV cache does not hold "
            f"{mix.concurrency} of them; a larger one, or a smaller max_sequences, may make more",
            err=True,
        )
    if result.tokens_per_s:
        click.echo(f"\nreplica_throughput: {rounded_down(result.tokens_per_s)}")
    else:
        raise click.ClickException("no token came in the median round; take more --seconds")
