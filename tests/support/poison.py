"""A logits processor that ends the process of its replica: a request that no engine survives."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from typing import Final

import torch

SENT_S: Final = 0.1  # by then the tokens of earlier steps have left the process


def poison(at: int) -> Callable[[Sequence[int], Sequence[int], torch.Tensor], None]:
    """SIGKILL before the token with the number `at`, counted from 0, and before every later one."""

    def process(prompt: Sequence[int], output: Sequence[int], logits: torch.Tensor) -> None:
        if len(output) >= at:
            time.sleep(SENT_S)
            os.kill(os.getpid(), signal.SIGKILL)

    return process
