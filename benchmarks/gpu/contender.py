"""What a benchmark asks of an engine, whoever made it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch

from benchmarks.gpu.load import Arrival, Plan, Prompt, Seen


@dataclass(frozen=True)
class Setup:
    """What every contender is made of."""

    shape: str
    plan: Plan
    dtype: torch.dtype
    device: torch.device


class NotServedError(Exception):
    """A contender cannot do what was asked; the message says why."""


class Contender(ABC):
    """One engine over one model. All answers are greedy and do not stop at an end token."""

    notes: ClassVar[str]  # settings, for the page
    streams: ClassVar[bool] = True  # whether it serves arrivals, and tells when each token came

    @abstractmethod
    def __init__(self, setup: Setup) -> None: ...

    @abstractmethod
    def generate(self, prompts: list[Prompt], new_tokens: int) -> None:
        """Answer all prompts at once, with so many tokens each; return when all are there."""

    @abstractmethod
    def serve(self, arrivals: list[Arrival]) -> list[Seen]:
        """Take requests as they arrive, in real time. Raises NotServedError."""

    def close(self) -> None:  # noqa: B027  most have nothing to end
        """End what runs in the background."""

    @property
    def versions(self) -> dict[str, str]:
        """Of the libraries that matter."""
        return {"torch": torch.__version__}


def synchronise(device: torch.device) -> None:
    """Wait until the device has done all of its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
