"""Ray Serve LLM, whose engine is vLLM."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from benchmarks.peers.peer import BF16, Command, Peer, Place


class RayLlm(Peer):
    name = "ray-llm"
    formats: ClassVar[Mapping[str, str]] = {BF16: "bf16"}
    notes = "Ray's own serving of models."

    def missing(self) -> str:
        return "Ray Serve LLM requires vLLM's build for GPUs, which does not start without one"

    def install(self) -> None:
        """Nothing to be installed on a machine without a GPU."""

    def command(self, served: Path, precision: str, place: Place) -> Command:
        raise NotImplementedError(self.missing())
