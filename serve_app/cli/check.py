"""`serve-app check`: whether a model can be served here, by which path, and in how much memory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from pydantic import ValidationError

from serve_app.cli.output import print_note, printable
from serve_app.config import ModelConfig, first_problem
from serve_app.config.quantization import FORMATS

if TYPE_CHECKING:
    from serve_app.replica.model_check import ModelCheck

GIB: Final = 2**30


@click.command()
@click.argument("model")
@click.option("--revision", help="Hub commit, branch or tag.")
@click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default="auto",
    show_default=True,
    help="Where it would run; auto: on this machine's GPU if there is one.",
)
@click.option(
    "--memory",
    type=click.FloatRange(min=0, min_open=True),
    metavar="GIB",
    help="Memory of the device, if it is not of this machine: a GPU's own, or what is free beside a CPU.",
)
@click.option("--dtype", type=click.Choice(["auto", "float32", "bfloat16", "float16"]), default="auto")
@click.option("--quantization", type=click.Choice(list(FORMATS)), default="none")
@click.option(
    "--tensor-parallel",
    type=click.IntRange(1, 64),
    default=1,
    metavar="N",
    help="Ranks that share the model: N GPUs of that memory each, or N processes on a CPU.",
)
@click.option(
    "--pipeline-parallel",
    type=click.IntRange(1, 64),
    default=1,
    metavar="M",
    help="Stages of the model, each with some of the layers on its own N ranks.",
)
@click.option(
    "--expert-parallel", is_flag=True, help="Each rank has some of a mixture's experts, not a part of each."
)
@click.option("--max-model-len", type=click.IntRange(min=2), help="Context window in tokens.")
def check(
    model: str,
    revision: str | None,
    device: str,
    memory: float | None,
    dtype: str,
    quantization: str,
    tensor_parallel: int,
    pipeline_parallel: int,
    expert_parallel: bool,
    max_model_len: int | None,
) -> None:
    """Check whether a model can be served.

    MODEL is a folder, a GGUF file, a hub id or the name of a demo model. From the hub, only config.json and
    the index of the weights are read, and GGUF files as a whole. Exits with 1 if the model is refused or does
    not fit.
    """
    from serve_app.models.errors import ModelLoadError  # torch comes with it
    from serve_app.replica.model_check import check_model

    is_demo = "/" not in model and not Path(model).exists()
    try:
        config = ModelConfig(
            name=Path(model).name.removesuffix(".gguf").replace(":", "-").lower(),
            source="" if is_demo else model,
            revision=revision,
            dtype=dtype,
            quantization=quantization,
            device=device,
            tensor_parallel=tensor_parallel,
            pipeline_parallel=pipeline_parallel,
            expert_parallel=expert_parallel,
            engine={"max_model_len": max_model_len},
        )
    except ValidationError as error:
        raise click.UsageError(first_problem(error)[1]) from error
    try:
        found = check_model(config, print_note, None if memory is None else int(memory * GIB))
    except ModelLoadError as error:
        raise click.ClickException(printable(str(error))) from error
    _describe(found, config)
    click.echo("\n" + _application(config, found.device))


def _describe(found: ModelCheck, config: ModelConfig) -> None:
    model, engine, plan = found.model, found.engine, found.plan
    click.echo(f"{model.architecture}, {_count(model.parameters)} parameters: can be served")
    if model.text_alone:
        _line("reads", "text alone; its parts for images and sound are not used")
    if engine is None:
        _line("does", f"embed texts of up to {model.window:,} tokens")
    elif engine.family is not None:
        _line("layers", f"fused, as {engine.family}'s: the fastest path")
    else:
        _line("layers", "transformers' own around paged attention, with packed linears on a CPU")
    if config.pipeline_parallel > 1:
        stages = (
            f"{config.pipeline_parallel} stages of {config.tensor_parallel}, each with some of the layers"
        )
        _line("ranks", f"{stages}; the figures below are those of the rank with the smallest cache")
    elif config.ranks > 1:
        each = f"{config.ranks}, each with a part of every layer"
        _line("ranks", f"{each}; the figures below are those of one rank")
    in_bits = "" if config.quantization == "none" else f", linears in {config.quantization}"
    in_bits = ", with codes as in the files" if model.stays_codes else in_bits
    _line("weights", f"{_size(model.weight_bytes)} in {model.dtype}{in_bits}")
    if model.converted_from is not None:
        served = "stays codes" if model.stays_codes else f"converted to {model.dtype} at the start"
        _line("from", f"{model.converted_from}, {served}")
    room = f"{_size(found.memory)} {'free beside a CPU' if found.device == 'cpu' else 'of a GPU'}"
    if engine is not None and engine.token_bytes is not None:
        each, whole = f"{engine.token_bytes / 2**10:,.4g} KiB", _size(engine.token_bytes * model.window)
        _line("cache", f"{each} for a token; {whole} for a context of {model.window:,} tokens")
        if engine.state_bytes:
            _line("states", f"{_size(engine.state_bytes)} for a sequence, twice while a step runs")
    elif engine is not None:
        _line("cache", "known only at the start")
    if plan is None:
        _line("memory", f"{room}: the weights fit")
        return
    tokens = plan.num_blocks * plan.block_size
    _line("memory", f"{room}: the cache gets {_size(plan.cache_bytes)}, {tokens:,} tokens")
    if plan.max_sequences < config.engine.max_sequences:
        _line("batch", f"of {plan.max_sequences} sequences at most, whose states fit")
    if plan.lowered_from is not None:
        _line("window", f"lowered from {plan.lowered_from:,} to {plan.max_model_len:,} tokens, which fit")


def _application(config: ModelConfig, kind: str) -> str:
    """The lines of a deploy file that would serve the model as checked here."""
    import yaml

    args: dict[str, Any] = {"name": config.name}
    args |= {"source": config.source} if config.source else {}
    args |= {"revision": config.revision} if config.revision else {}
    args |= {"device": kind}
    args |= {
        key: value
        for key in ("dtype", "quantization")
        if (value := getattr(config, key)) not in ("auto", "none")
    }
    args |= {
        key: value for key in ("tensor_parallel", "pipeline_parallel") if (value := getattr(config, key)) > 1
    }
    args |= {"expert_parallel": True} if config.expert_parallel else {}
    if config.engine.max_model_len is not None:
        args |= {"engine": {"max_model_len": config.engine.max_model_len}}
    application: dict[str, Any] = {
        "name": config.name,
        "import_path": "serve_app.deployments.build:build_model_app",
        "args": args,
    }
    if config.ranks > 1 and kind == "cuda":
        application["deployments"] = [{"name": "Model", "ray_actor_options": {"num_gpus": config.ranks}}]
    return str(yaml.safe_dump([application], sort_keys=False)).rstrip()


def _size(size: int) -> str:
    return f"{size / GIB:,.1f} GiB" if size >= GIB else f"{size / 2**20:,.0f} MiB"


def _count(parameters: int) -> str:
    return f"{parameters / 1e9:,.2f} billion" if parameters >= 1e8 else f"{parameters / 1e6:,.1f} million"


def _line(title: str, text: str) -> None:
    click.echo(f"  {title:<9} {printable(text)}")
