"""The thread that has the system give memory: it touches page after page, and changes nothing in them."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from typing import Final

import torch

_TOUCHED, _NS_PER_MIB = range(2)  # what the thread tells, as `start_touching` of exports.h describes it
AT_ONCE_S: Final = 2.0  # of touching without a break: the first requests may come soon
_NS_PER_S_AND_MIB: Final = 1e9 * (1 << 20)

_Progress = ctypes.c_int64 * 2


class Touching:
    """Contiguous tensors whose memory a thread of its own touches, side by side, from their first bytes on.

    What is in them, or is written meanwhile, stays as it is. The thread ends with this object.
    """

    def __init__(
        self, library: ctypes.CDLL, pieces: Sequence[torch.Tensor], *, at_once: int, seconds: float
    ) -> None:
        """`at_once`: bytes that are touched without a break, if that takes the thread no more than `seconds`;
        the others wait while kernels run."""
        self._pieces = tuple(pieces)  # the memory must live as long as the thread
        self._progress = _Progress()  # and so must this
        begins, sizes = (
            torch.tensor(numbers) for numbers in zip(*((t.data_ptr(), t.nbytes) for t in pieces), strict=True)
        )
        handle = library.start_touching(
            *(begins.data_ptr(), sizes.data_ptr(), len(pieces), at_once, int(seconds * 1e9)),
            ctypes.addressof(self._progress),
        )
        self._end = weakref.finalize(self, _end_touching, library, handle, (self._pieces, self._progress))

    @property
    def touched_bytes(self) -> int:
        """So many bytes of each tensor, from its first, are touched, or all that it has."""
        return self._progress[_TOUCHED]

    @property
    def seconds_per_byte(self) -> float:
        """What the system took of late to give a byte; 0 before it gave any."""
        return self._progress[_NS_PER_MIB] / _NS_PER_S_AND_MIB

    def finish(self) -> None:
        """Wait until all is touched."""
        if (found := self._end.detach()) is not None:
            library, handle, _ = found[2]
            library.end_touching(handle, True)


def _end_touching(library: ctypes.CDLL, handle: int, _: object) -> None:
    library.end_touching(handle, False)
