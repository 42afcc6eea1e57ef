"""A model that is divided among ranks: as threads of this process, or as real processes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

import torch
from transformers import PreTrainedModel

from serve_app.config import EngineConfig, ModelConfig
from serve_app.engine.assemble import Part, make_runner
from serve_app.engine.engine import Engine
from serve_app.engine.model.runner import ModelRunner
from serve_app.engine.ranks.followers import Followers
from serve_app.engine.ranks.group import RankGroup
from serve_app.models.loader import load_model
from serve_app.models.split.split import Split
from serve_app.replica.build import load_halves

T = TypeVar("T")
MEET_S = 60.0
_loads = threading.Lock()  # transformers keeps what it is loading in globals


class RankThreads:
    """The numbers that ranks of one process give each other."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self._barrier = threading.Barrier(ranks)
        self._parts: list[torch.Tensor] = [torch.empty(0)] * ranks

    def run(self, work: Callable[[RankThread], T]) -> list[T]:
        """What `work` makes of each rank, all at once. Raises the first error of any rank."""
        with ThreadPoolExecutor(self.ranks) as threads:
            every = [threads.submit(self._guarded, work, rank) for rank in range(self.ranks)]
        errors = [error for each in every if (error := each.exception()) is not None]
        own = [error for error in errors if not isinstance(error, threading.BrokenBarrierError)]
        for error in (*own, *errors):
            raise error
        return [each.result() for each in every]

    def _guarded(self, work: Callable[[RankThread], T], rank: int) -> T:
        try:
            return work(RankThread(self, rank))
        except BaseException:
            self._barrier.abort()
            raise

    def gather(self, rank: int, part: torch.Tensor) -> list[torch.Tensor]:
        self._parts[rank] = part.clone()
        self._barrier.wait(MEET_S)
        every = list(self._parts)
        self._barrier.wait(MEET_S)
        return every


class RankThread(RankGroup):
    """A rank whose collectives go through memory."""

    def __init__(self, threads: RankThreads, rank: int) -> None:
        self.rank, self.size, self._device = rank, threads.ranks, torch.device("cpu")
        self.beside = threads.ranks
        self._threads = threads

    def _gather(self, part: torch.Tensor) -> torch.Tensor:
        return torch.stack(self._threads.gather(self.rank, part))

    def smallest(self, number: int) -> int:
        return int(min(self._threads.gather(self.rank, torch.tensor([number]))))


@dataclass(frozen=True)
class Divided:
    """What one rank has."""

    runner: ModelRunner
    split: Split
    threads: RankThreads


def divided_config(
    folder: Path, ranks: int, *, dtype: Literal["float32", "auto"] = "float32", **engine: object
) -> ModelConfig:
    """A model on CPUs, in as few threads as its tests want to take."""
    settings = {"num_blocks": 128, "block_size": 16} | engine
    return ModelConfig(
        name="tiny",
        source=str(folder),
        dtype=dtype,
        device="cpu",
        attention="cpu",
        threads=1,
        tensor_parallel=ranks,
        engine=EngineConfig.model_validate(settings),
    )


def save(model: PreTrainedModel, folder: Path) -> Path:
    model.save_pretrained(folder)
    return folder


def runners(
    folder: Path, ranks: int, *, dtype: Literal["float32", "auto"] = "float32", **engine: object
) -> list[Divided]:
    """The runner of each rank, loaded at the same time in threads; they also run only together."""
    threads = RankThreads(ranks)

    def load(rank: RankThread) -> Divided:
        config = divided_config(folder, ranks, dtype=dtype, **engine)
        with _loads:
            model = load_model(config, lambda _: None, rank=rank.rank)
        assert model.split is not None
        part = Part(rank, model.split, model.split.summed, model.split.vocab_size)
        runner = make_runner(
            model.module,
            dtype=model.dtype,
            device=model.device,
            context_window=model.context_window,
            config=config,
            progress=lambda _: None,
            part=part,
        )
        return Divided(runner, model.split, threads)

    return threads.run(load)


@contextmanager
def rank_processes(config: ModelConfig) -> Iterator[tuple[Engine, Followers]]:
    """An engine over ranks in processes of their own, which end with the block."""
    engine, _, _, followers = load_halves(config, lambda _: None)
    assert followers is not None
    try:
        yield engine, followers
    finally:
        followers.close()
