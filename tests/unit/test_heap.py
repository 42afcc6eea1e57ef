"""Large blocks keep pages of their own; the garbage collector leaves alone what a start made."""

from __future__ import annotations

import ctypes
import gc
import platform
import subprocess
import sys
import weakref

import pytest

from serve_app.heap import collects_later, settle

SCRIPT = """
import ctypes, sys
from serve_app.heap import map_large_blocks

class Heap(ctypes.Structure):
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]

libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Heap
libc.malloc.restype = ctypes.c_void_p
if sys.argv[1] == "mapped":
    map_large_blocks()
for _ in range(2):
    before = libc.mallinfo2().hblkhd
    block = ctypes.c_void_p(libc.malloc(9_000_000))
    mapped = libc.mallinfo2().hblkhd - before
    libc.free(block)
print(mapped >= 9_000_000)
"""


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc" or not hasattr(ctypes.CDLL(None), "mallinfo2"),
    reason="of glibc 2.33 and later",
)
@pytest.mark.parametrize(("how", "is_mapped"), [("mapped", True), ("as-it-is", False)])
def test_a_block_as_large_as_one_that_was_freed_is_mapped_again(how: str, is_mapped: bool) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, how], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == str(is_mapped)


class Knot:
    """Refers to itself, so only the collector frees it."""

    def __init__(self) -> None:
        self.own = self


@pytest.mark.full
def test_what_is_there_is_frozen_and_what_comes_later_is_freed() -> None:
    lasting = Knot()
    before = gc.get_freeze_count()
    settle()
    assert gc.get_freeze_count() > before
    assert all(each is not lasting for each in gc.get_objects())
    late = weakref.ref(Knot())
    gc.collect()
    assert late() is None


def test_nothing_is_collected_until_the_end() -> None:
    class Ring:
        def __init__(self) -> None:
            self.itself = self

    assert gc.isenabled()
    with collects_later():
        made = weakref.ref(Ring())
        assert len([[object()] for _ in range(100_000)])  # enough for a look, were there one
        assert made() is not None
    assert gc.isenabled()
    gc.collect()
    assert made() is None


def test_what_was_on_before_is_on_again() -> None:
    with pytest.raises(ImportError), collects_later():
        raise ImportError
    assert gc.isenabled()
    with collects_later():
        with collects_later():
            pass
        assert not gc.isenabled()
