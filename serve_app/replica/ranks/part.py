"""One rank's part of a model: loaded, and joined with those of the other ranks."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

from serve_app.config import ModelConfig
from serve_app.engine.assemble import Part, make_runner
from serve_app.engine.machine import prepare
from serve_app.engine.model.forward import UnsupportedModel
from serve_app.engine.model.memory import CacheTooSmall
from serve_app.engine.pipe import Pipe
from serve_app.engine.ranks.commands import Command, Reply, Start
from serve_app.engine.ranks.follower import Follower
from serve_app.engine.ranks.followers import Followers
from serve_app.engine.ranks.gpus import TooFewGpus, environment_of
from serve_app.engine.ranks.group import RankGroup
from serve_app.engine.ranks.life import FollowerLife
from serve_app.models.errors import ModelLoadError
from serve_app.models.loader import LoadedModel, load_model

_COMMAND = (sys.executable, "-m", "serve_app.replica.ranks.follower")


def start_followers(config: ModelConfig) -> Followers | None:
    """The other ranks of a model, which load their parts from now on; None: there are none.

    Raises ModelLoadError if this process sees too few GPUs.
    """
    ranks = config.tensor_parallel
    if ranks == 1:
        return None
    try:
        environments = [environment_of(rank, ranks, config.device) for rank in range(1, ranks)]
    except TooFewGpus as error:
        raise ModelLoadError(
            f"{config.name}: tensor_parallel {ranks} takes as many GPUs, and this replica has {error}; write "
            f"`num_gpus: {ranks}` in ray_actor_options"
        ) from error
    return Followers(_COMMAND, config.model_dump_json().encode(), environments)


def part_of(model: LoadedModel, group: RankGroup) -> Part:
    """What a loaded module is among `group`. Raises ValueError for a whole model."""
    if model.split is None:
        raise ValueError(f"{model.name} is not divided")
    return Part(group, model.split, model.split.summed, model.split.vocab_size)


def serve_part(work: socket.socket, life: FollowerLife) -> int:
    """Load the part that rank 0 asks for, then run its commands; returns the exit status."""
    pipe: Pipe[Command, Reply] = Pipe(work, Command)
    start = pipe.receive()
    if not isinstance(start, Start):
        return 1
    config = ModelConfig.model_validate_json(start.config)
    try:
        model = load_model(config, _unheard, fast_bfloat16=prepare(config, _unheard), rank=start.rank)
        pipe.send(Reply("loaded"))
        group = RankGroup(start.rank, config.tensor_parallel, Path(start.meeting), model.device)
        part = part_of(model, group)
        runner = make_runner(
            model.module,
            dtype=model.dtype,
            device=model.device,
            context_window=model.context_window,
            config=config,
            progress=_unheard,
            part=part,
        )
    except (ModelLoadError, UnsupportedModel, CacheTooSmall, ValueError) as error:
        pipe.send(Reply("refused", str(error)))
        return 1
    pipe.send(Reply("ready"))
    Follower(runner, group, pipe, life, part.cuts).serve()
    return 0


def _unheard(line: str) -> None:
    """The progress of rank 0 is shown; that of all others is the same."""
