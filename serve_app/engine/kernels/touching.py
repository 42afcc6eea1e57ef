"""The thread that has the system give memory: it touches page after page, and changes nothing in them."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence

import torch


class Touching:
    """Contiguous tensors whose memory a thread of its own touches, side by side, from their first bytes on.

    What is in them, or is written meanwhile, stays as it is. The thread ends with this object.
    """

    def __init__(self, library: ctypes.CDLL, pieces: Sequence[torch.Tensor], *, at_once: int) -> None:
        """`at_once`: bytes that are touched without a break; the others wait while kernels run."""
        self._pieces = tuple(pieces)  # the memory must live as long as the thread
        begins, sizes = (
            torch.tensor(numbers) for numbers in zip(*((t.data_ptr(), t.nbytes) for t in pieces), strict=True)
        )
        handle = library.start_touching(begins.data_ptr(), sizes.data_ptr(), len(pieces), at_once)
        self._end = weakref.finalize(self, _end_touching, library, handle, self._pieces)

    def finish(self) -> None:
        """Wait until all is touched."""
        if (found := self._end.detach()) is not None:
            library, handle, _ = found[2]
            library.end_touching(handle, True)


def _end_touching(library: ctypes.CDLL, handle: int, _: tuple[torch.Tensor, ...]) -> None:
    library.end_touching(handle, False)
