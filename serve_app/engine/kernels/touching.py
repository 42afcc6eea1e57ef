"""The thread that makes the system provide memory: it touches page after page, without changing them."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from typing import Final

import torch

_TOUCHED, _NS_PER_MIB = range(2)  # the thread's report, see `start_touching` of exports.h
AT_ONCE_S: Final = 2.0  # of touching without a break: the first requests may come soon
_NS_PER_S_AND_MIB: Final = 1e9 * (1 << 20)

_Progress = ctypes.c_int64 * 2


class Touching:
    """Contiguous tensors whose memory a separate thread touches, all in parallel, from their first bytes on.

    Touching does not change their content, even while something else writes to it. The thread ends with this
    object.
    """

    def __init__(
        self, library: ctypes.CDLL, pieces: Sequence[torch.Tensor], *, at_once: int, seconds: float
    ) -> None:
        """`at_once`: how many bytes are touched without a break, if that takes at most `seconds`. For all
        further bytes the thread pauses while kernels run."""
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
        """How many bytes of each tensor, from its start, have been touched; a smaller tensor has been touched
        whole."""
        return self._progress[_TOUCHED]

    @property
    def seconds_per_byte(self) -> float:
        """The seconds that a byte of memory took to get recently; 0 before the first measurement."""
        return self._progress[_NS_PER_MIB] / _NS_PER_S_AND_MIB

    def finish(self) -> None:
        """Wait until all tensors are touched."""
        if (found := self._end.detach()) is not None:
            library, handle, _ = found[2]
            library.end_touching(handle, True)


def _end_touching(library: ctypes.CDLL, handle: int, _: object) -> None:
    library.end_touching(handle, False)
