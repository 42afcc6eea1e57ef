"""All servers, by name, and the servers of a precision."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.peers.llama_cpp import LlamaCpp
from benchmarks.peers.openvino_genai import OpenVino
from benchmarks.peers.ours import Ours, OursInCodes
from benchmarks.peers.peer import Peer
from benchmarks.peers.ray_llm import RayLlm
from benchmarks.peers.transformers_serve import TransformersServe
from benchmarks.peers.vllm_cpu import Vllm

KINDS: Final[tuple[type[Peer], ...]] = (
    Ours,
    OursInCodes,
    Vllm,
    OpenVino,
    LlamaCpp,
    TransformersServe,
    RayLlm,
)


class Server(NamedTuple):
    """A peer that serves at one precision."""

    peer: Peer
    precision: str

    @property
    def label(self) -> str:
        return self.peer.label(self.precision)


def peers(home: Path) -> dict[str, Peer]:
    """Every peer, with its folder below `home`."""
    return {kind.name: kind(home / kind.name) for kind in KINDS}


def servers(home: Path, names: list[str], precisions: list[str]) -> list[Server]:
    """Each of the peers at each of the precisions that it has."""
    known = peers(home)
    return [
        Server(known[name], precision)
        for precision in precisions
        for name in names
        if precision in known[name].formats
    ]
