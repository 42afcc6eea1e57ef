"""A rank other than 0: it runs what rank 0 sends, on its part of the model, until rank 0 is gone."""

from __future__ import annotations

import logging

from serve_app.engine.model.runner import ModelRunner
from serve_app.engine.pipe import Pipe
from serve_app.engine.ranks.commands import (
    Command,
    CopyBlocks,
    DropAdapter,
    PutAdapter,
    Reply,
    Step,
)
from serve_app.engine.ranks.groups import RankGroups
from serve_app.engine.ranks.leader import AdapterCuts, part_of
from serve_app.engine.ranks.life import FollowerLife

log = logging.getLogger(__name__)


class Follower:
    """Runs commands on a runner that has the part of one rank."""

    def __init__(
        self,
        runner: ModelRunner,
        groups: RankGroups,
        pipe: Pipe[Command, Reply],
        life: FollowerLife,
        cuts: AdapterCuts,
    ) -> None:
        self._runner, self._groups, self._pipe, self._life, self._cuts = runner, groups, pipe, life, cuts

    def serve(self) -> None:
        """Returns when rank 0 says so, or is gone."""
        number = 0
        while (command := self._pipe.receive()) is not None:
            number += 1
            try:
                match command:
                    case Step():
                        self._run(command)
                    case CopyBlocks(pairs):
                        self._runner.copy_blocks(pairs)
                    case PutAdapter() | DropAdapter():
                        self._change_adapters(command)
                    case _:
                        return
            except Exception:
                log.exception("a command of rank 0 failed")
                self._life.failed(number)

    def _run(self, step: Step) -> None:
        batch = step.batch(self._runner.device)
        if step.is_fed:
            self._groups.every.of_first(batch.input_ids)
        self._runner.run(batch)

    def _change_adapters(self, command: PutAdapter | DropAdapter) -> None:
        table = self._runner.adapters
        if table is None:
            raise ValueError("this model takes no adapters")
        if isinstance(command, DropAdapter):
            table.drop(command.key)
            return
        updates = part_of((each.low_rank() for each in command.updates), self._cuts)
        table.put(command.key, table.compile(updates))
