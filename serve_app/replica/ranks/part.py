"""One rank's part of a model: loaded, and joined with those of the other ranks."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

from serve_app.config import ModelConfig
from serve_app.engine.assemble import Part, make_runner
from serve_app.engine.machine import prepare
from serve_app.engine.model.forward import UnsupportedModel
from serve_app.engine.model.memory import CacheTooSmall
from serve_app.engine.model.runner import ModelRunner
from serve_app.engine.model.sums import Joints
from serve_app.engine.pipe import Pipe
from serve_app.engine.ranks.commands import Command, Reply, Start
from serve_app.engine.ranks.follower import Follower
from serve_app.engine.ranks.followers import Followers
from serve_app.engine.ranks.gpus import TooFewGpus, environment_of
from serve_app.engine.ranks.groups import RankGroups, joined
from serve_app.engine.ranks.launcher import ChildProcesses, Launcher
from serve_app.engine.ranks.leader import whole_shapes
from serve_app.engine.ranks.life import FollowerLife
from serve_app.engine.ranks.meeting import Connections, RankRefused
from serve_app.engine.ranks.store import RemoteStore
from serve_app.models.errors import ModelLoadError
from serve_app.models.fingerprint import fingerprint
from serve_app.models.loader import LoadedModel, load_model
from serve_app.models.split.split import Split

_COMMAND: Final = (sys.executable, "-m", "serve_app.replica.ranks.follower")


def start_followers(config: ModelConfig, launcher: Launcher | None = None) -> Followers | None:
    """The other ranks of a model, which load their parts from now on; None: there are none.

    Without a `launcher` they are child processes. Raises ModelLoadError if this process sees too few GPUs, or
    if a rank does not start.
    """
    if config.ranks == 1:
        return None
    try:
        said = config.model_dump_json().encode()
        return Followers(launcher or _children(config), said, config.ranks, config.pipeline_parallel)
    except RankRefused as error:
        raise ModelLoadError(f"{config.name}: {error}") from error


def _children(config: ModelConfig) -> ChildProcesses:
    ranks = config.ranks
    try:
        environments = {rank: environment_of(rank, ranks, config.device) for rank in range(1, ranks)}
    except TooFewGpus as error:
        raise ModelLoadError(
            f"{config.name}: {ranks} ranks take as many GPUs, and this replica has {error}; write `num_gpus: "
            f"{ranks}` in ray_actor_options"
        ) from error
    return ChildProcesses(_COMMAND, environments)


def part_of(config: ModelConfig, model: LoadedModel, groups: RankGroups) -> Part:
    """What a loaded module is among all ranks.

    Raises ValueError for a whole model, and if a rank on another machine has loaded other files.
    """
    if model.split is None:
        raise ValueError(f"{model.name} is not divided")
    every = groups.every
    if every.beside < every.size and not every.same(_files(config, model)):
        raise ValueError(
            "its ranks have different weights, settings or packages on different machines; name a commit in "
            "`revision`, or a folder on a shared volume in `source`"
        )
    return Part(groups, model.split, _joints(model, model.split))


def _joints(model: LoadedModel, split: Split) -> Joints:
    decoder: Any = model.module.get_decoder()
    at = decoder.get_submodule
    return Joints(
        summed=frozenset(map(at, split.summed)),
        norms={at(path): count for path, count in split.norms.items()},
        experts={at(path): count for path, count in split.experts.items()},
        vocab_size=split.vocab_size,
    )


def _files(config: ModelConfig, model: LoadedModel) -> str:
    """A digest of what every rank reads by itself."""
    read = config.model_copy(update={"adapters": {}, "chat_template": None})
    return fingerprint(read, model.folder, str(model.dtype), codes=model.codes)


def serve_part(
    connections: Connections, life: FollowerLife, source: str = "", revision: str | None = None
) -> int:
    """Load the part that rank 0 asks for, then run its commands; returns the exit status.

    `source`, `revision`: as of `follow`.
    """
    pipe: Pipe[Command, Reply] = Pipe(connections.work, Command)
    start = pipe.receive()
    if not isinstance(start, Start):
        return 1
    config = ModelConfig.model_validate_json(start.config)
    if source and not Path(config.source).is_dir():
        config = config.model_copy(update={"source": source, "revision": revision})
    host = start.hosts[start.rank]
    beside = start.hosts.count(host)
    try:
        model = load_model(config, _unheard, fast_bfloat16=prepare(config, _unheard, beside), rank=start.rank)
        pipe.send(Reply("loaded"))
        store = RemoteStore(connections.store)
        groups = joined(start.rank, start.hosts, store, model.device, config.pipeline_parallel)
        part = part_of(config, model, groups)
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
        pipe.send(Reply("refused", refused=str(error)))
        return 1
    pipe.send(ready(runner, part))
    Follower(runner, groups, pipe, life, part.cuts).serve()
    return 0


def ready(runner: ModelRunner, part: Part) -> Reply:
    """What a rank says once it takes commands."""
    shapes = whole_shapes(runner.adapters, part.cuts)
    return Reply("ready", tuple((*place, *shape) for place, shape in shapes.items()))


def _unheard(line: str) -> None:
    """The progress of rank 0 is shown; that of all others is the same."""
