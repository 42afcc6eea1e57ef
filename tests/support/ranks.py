"""A model that is divided among ranks: as threads of this process, or as real processes."""

from __future__ import annotations

import socket
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from transformers import PreTrainedModel

from serve_app.config import EngineConfig, ModelConfig
from serve_app.engine.assemble import Part, make_runner
from serve_app.engine.engine import Engine
from serve_app.engine.model.lora import Place
from serve_app.engine.model.runner import ModelRunner
from serve_app.engine.pipe import Pipe, frame
from serve_app.engine.ranks.commands import Command, Reply
from serve_app.engine.ranks.follower import Follower
from serve_app.engine.ranks.followers import Followers, shapes_of
from serve_app.engine.ranks.group import RankGroup
from serve_app.engine.ranks.groups import RankGroups
from serve_app.engine.ranks.leader import LeadingRunner
from serve_app.engine.ranks.life import FollowerLife
from serve_app.models.loader import LoadedModel, load_model
from serve_app.models.split.split import Split
from serve_app.replica.build import load_halves
from serve_app.replica.ranks.part import part_of, ready

T = TypeVar("T")
MEET_S = 60.0
_loads = threading.Lock()  # transformers keeps what it is loading in globals


class RankThreads:
    """The ranks of a model, as threads of one process."""

    def __init__(self, ranks: int, stages: int = 1) -> None:
        """`ranks`: of all `stages`."""
        self.ranks, self._stages = ranks, stages
        self._making = threading.Lock()
        self._meetings: dict[str, _Meeting] = {}

    def run(self, work: Callable[[RankGroups], T]) -> list[T]:
        """What `work` makes of each rank, all at once. Raises the first error of any rank."""
        with ThreadPoolExecutor(self.ranks) as threads:
            every = [threads.submit(self._guarded, work, rank) for rank in range(self.ranks)]
        errors = [error for each in every if (error := each.exception()) is not None]
        own = [error for error in errors if not isinstance(error, threading.BrokenBarrierError)]
        for error in (*own, *errors):
            raise error
        return [each.result() for each in every]

    def groups(self, rank: int) -> RankGroups:
        return RankGroups.of(rank, self.ranks, self._stages, self._meet)

    def abort(self) -> None:
        """End whatever waits for another rank."""
        for meeting in self._meetings.values():
            meeting.barrier.abort()

    def _guarded(self, work: Callable[[RankGroups], T], rank: int) -> T:
        try:
            return work(self.groups(rank))
        except BaseException:
            self.abort()
            raise

    def _meet(self, name: str, rank: int, size: int) -> RankThread:
        with self._making:
            meeting = self._meetings.setdefault(name, _Meeting(size))
        return RankThread(meeting, rank)


class _Meeting:
    """The numbers that some ranks of one process give each other."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.barrier = threading.Barrier(size)
        self._parts: list[torch.Tensor] = [torch.empty(0)] * size

    def gather(self, rank: int, part: torch.Tensor) -> list[torch.Tensor]:
        self._parts[rank] = part.clone()
        self.barrier.wait(MEET_S)
        every = list(self._parts)
        self.barrier.wait(MEET_S)
        return every


class RankThread(RankGroup):
    """A rank whose collectives go through memory."""

    def __init__(self, meeting: _Meeting, rank: int) -> None:
        self.rank, self.size, self._device = rank, meeting.size, torch.device("cpu")
        self.beside = meeting.size
        self._meeting = meeting

    def of_first(self, tensor: torch.Tensor) -> None:
        tensor.copy_(self._meeting.gather(self.rank, tensor)[0])

    def give(self, tensor: torch.Tensor, most: int) -> None:
        """Waits until it is taken, unlike the original."""
        self._meeting.gather(self.rank, tensor)

    def smallest(self, number: int) -> int:
        return int(min(self._meeting.gather(self.rank, torch.tensor([number]))))

    def _exchange(self, parts: torch.Tensor) -> torch.Tensor:
        return torch.stack([each[self.rank] for each in self._meeting.gather(self.rank, parts)])

    def _gather(self, part: torch.Tensor) -> torch.Tensor:
        return torch.stack(self._meeting.gather(self.rank, part))


class RankFollowers:
    """As `leader.Others`: the ranks from 1 on, in threads that end when nothing refers to this object."""

    def __init__(self, threads: RankThreads, config: ModelConfig, context_window: int) -> None:
        """They load their parts of `config` from now on, and then meet rank 0."""
        self._number = 0
        self._changed = threading.Condition()
        self._failures: set[tuple[int, int]] = set()  # rank, command
        self._pipes: list[Pipe[Reply, Command]] = []
        for rank in range(1, threads.ranks):
            own, its = socket.socketpair()
            self._pipes.append(Pipe(own, Reply))
            life = _RankLife(rank, self._changed, self._failures)
            what = threads, rank, config, context_window, its, life
            threading.Thread(target=_follow, args=what, daemon=True).start()
        weakref.finalize(self, _close, self._pipes)

    def await_ready(self) -> dict[Place, tuple[int, int]]:
        return shapes_of(reply for pipe in self._pipes if (reply := pipe.receive()) is not None)

    def send(self, command: Command) -> int:
        self._number += 1
        data = frame(command)
        for pipe in self._pipes:
            pipe.send_frame(data)
        return self._number

    def reached(self, number: int) -> None:
        """No failure alone is waited for."""

    def check(self) -> None:
        """None of them is lost."""

    def agree(self, number: int, error: Exception) -> None:
        wanted = {(rank, number) for rank in range(1, len(self._pipes) + 1)}
        with self._changed:
            if not self._changed.wait_for(lambda: wanted <= self._failures, MEET_S):
                raise AssertionError("a command failed in some ranks alone") from error


class SilentRanks:
    """As `leader.Others`: ranks that do what they are sent, and tell nothing."""

    def __init__(self) -> None:
        self.sent: list[Command] = []

    def await_ready(self) -> dict[Place, tuple[int, int]]:
        return {}

    def send(self, command: Command) -> int:
        self.sent.append(command)
        return len(self.sent)

    def reached(self, number: int) -> None:
        """They are never lost."""

    def check(self) -> None:
        """They are never lost."""

    def agree(self, number: int, error: Exception) -> None:
        """They fail as rank 0 does."""


def leading(runner: Any, stages: int) -> tuple[LeadingRunner, SilentRanks]:
    """A runner of the last stage, in which `runner` computes all, and the ranks of the others."""
    others, alone = SilentRanks(), RankThread(_Meeting(1), 0)
    runner.adapters = None
    groups = RankGroups(alone, alone, before=None, behind=None, stages=stages)
    return LeadingRunner(runner, groups, others, Whole(), {}), others


class Whole:
    """As `leader.AdapterCuts`, of ranks that have whole layers."""

    def whole(self, layer: int, module: str, shape: tuple[int, int]) -> tuple[int, int]:
        return shape

    def part(
        self, layer: int, module: str, a: torch.Tensor, b: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return a, b


class _RankLife(FollowerLife):
    """Tells in memory which command has failed."""

    def __init__(self, rank: int, changed: threading.Condition, failures: set[tuple[int, int]]) -> None:
        self._rank, self._changed, self._failures = rank, changed, failures

    def failed(self, number: int) -> None:
        with self._changed:
            self._failures.add((self._rank, number))
            self._changed.notify_all()


def _follow(
    threads: RankThreads,
    rank: int,
    config: ModelConfig,
    context_window: int,
    its: socket.socket,
    life: FollowerLife,
) -> None:
    with its:
        try:
            groups = threads.groups(rank)
            runner, part = runner_of(config, groups, context_window)
        except BaseException:
            threads.abort()
            raise
        pipe: Pipe[Command, Reply] = Pipe(its, Command)
        pipe.send(ready(runner, part))
        Follower(runner, groups, pipe, life, part.cuts).serve()


def _close(pipes: list[Pipe[Reply, Command]]) -> None:
    for pipe in pipes:
        pipe.close()


@dataclass(frozen=True)
class Divided:
    """What one rank has."""

    runner: ModelRunner
    split: Split
    threads: RankThreads


def divided_config(
    folder: Path,
    ranks: int,
    *,
    stages: int = 1,
    dtype: Literal["float32", "auto"] = "float32",
    expert_parallel: bool = False,
    **engine: object,
) -> ModelConfig:
    """A model on CPUs, with `ranks` in each of its stages, in as few threads as its tests want to take."""
    settings = {"num_blocks": 128, "block_size": 16} | engine
    return ModelConfig(
        name="tiny",
        source=str(folder),
        dtype=dtype,
        device="cpu",
        attention="cpu",
        threads=1,
        tensor_parallel=ranks,
        pipeline_parallel=stages,
        expert_parallel=expert_parallel,
        engine=EngineConfig.model_validate(settings),
    )


def save(model: PreTrainedModel, folder: Path) -> Path:
    model.save_pretrained(folder)
    return folder


def runners(folder: Path, ranks: int, **settings: Any) -> list[Divided]:
    """The runner of each rank, loaded at the same time in threads; they also run only together.

    `settings`: of `divided_config`.
    """
    config = divided_config(folder, ranks, **settings)
    threads = RankThreads(config.ranks, config.pipeline_parallel)

    def load(groups: RankGroups) -> Divided:
        model = load_part(config, groups)
        assert model.split is not None
        runner, _ = runner_over(config, model, groups)
        return Divided(runner, model.split, threads)

    return threads.run(load)


def runner_of(
    config: ModelConfig, groups: RankGroups, context_window: int | None = None
) -> tuple[ModelRunner, Part]:
    """The runner of a rank, made while the other ranks make theirs, and what it is among them."""
    return runner_over(config, load_part(config, groups), groups, context_window)


def runner_over(
    config: ModelConfig, model: LoadedModel, groups: RankGroups, context_window: int | None = None
) -> tuple[ModelRunner, Part]:
    """The same over a model that the rank has loaded."""
    part = part_of(config, model, groups)
    runner = make_runner(
        model.module,
        dtype=model.dtype,
        device=model.device,
        context_window=context_window or model.context_window,
        config=config,
        progress=lambda _: None,
        part=part,
    )
    return runner, part


def load_part(config: ModelConfig, groups: RankGroups) -> LoadedModel:
    """Raises ModelLoadError."""
    with _loads:
        return load_model(config, lambda _: None, fast_bfloat16=True, rank=groups.every.rank)


@contextmanager
def rank_processes(config: ModelConfig) -> Iterator[tuple[Engine, Followers]]:
    """An engine over ranks in processes of their own, which end with the block."""
    engine, _, _, followers = load_halves(config, lambda _: None)
    assert followers is not None
    try:
        yield engine, followers
    finally:
        followers.close()
