"""The sizes of the attention kernels' programs, by the width of heads and the type of numbers.

They are chosen by what the compiler reports for an H100: no register is spilled, a program uses less than the
available 227 KiB of shared memory, and keys and values are loaded while the previous ones are used. The sizes
do not change results, except for `keys`, which decides the order of sums. Works on numbers only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

LARGE_SHARED: Final = 227 * 1024  # bytes of shared memory of a program; smaller devices get smaller tiles
MIDDLE_SHARED: Final = 99 * 1024  # and with less than this, decodes read fewer keys at once
LEAST: Final = 16  # rows, keys and numbers of a tile product on a device
WIDE, WIDER = 128, 256  # numbers of a head, filled up to a power of two
MOST_WIDER = 64  # heads of more than WIDER numbers that a program can compute


@dataclass(frozen=True, slots=True)
class Tile:
    """One program."""

    rows: int  # of queries: rows of the batch times query heads of a group
    keys: int  # read at once
    warps: int
    stages: int  # loads that are under way; the blocks of keys are a stage of their own

    @property
    def options(self) -> dict[str, int]:
        """The launch options."""
        return {"num_warps": self.warps, "num_stages": self.stages}


def power_of_two(number: int) -> int:
    """The smallest power of two that is at least `number`."""
    return 1 << (number - 1).bit_length()


def pads(key_dim: int, value_dim: int, *, latent: bool) -> tuple[int, int, int]:
    """The numbers of keys and of values that are computed at once, and of what latent keys have besides."""
    first, rest = (value_dim, key_dim - value_dim) if latent else (key_dim, 1)
    key, value, others = (max(LEAST, power_of_two(number)) for number in (first, value_dim, rest))
    return key, value, others


def groups_of(heads: int, kv_heads: int, width: int) -> int:
    """The groups of query heads, each computed by programs of its own: one for each KV head, or more."""
    group = heads // kv_heads
    while width > WIDER and group > MOST_WIDER and group % 2 == 0:
        group //= 2
    return heads // group


def tile_of_prompts(group: int, width: int, itemsize: int, *, codes: bool, shared: int) -> Tile:
    """The tile for `group` query heads per KV head and heads of up to `width` numbers, both padded.

    `itemsize`: the bytes of a number in the queries. `shared`: bytes of shared memory that a program may use.
    """
    if itemsize == 4:
        return _tile_of_float32(max(LEAST if width > WIDE // 2 else 2 * LEAST, group), width)
    if width > WIDER:
        return Tile(max(32, group), 32, 8, 3)
    warps = 4 if group <= 64 else 8
    if width <= WIDE and not codes and shared >= LARGE_SHARED:
        return Tile(max(64, group), 64, warps, 2)  # with 3 stages an H200 takes 1.04 to 1.08 times as long
    if shared < LARGE_SHARED:
        return Tile(max(64, group), 64 if width <= WIDE else 32, warps, 3)
    return Tile(max(128, group), 32 if codes and width > WIDE else 64, 8, 3)


def tile_of_decodes(group: int, width: int, itemsize: int, *, codes: bool, shared: int) -> Tile:
    """As `tile_of_prompts`. A decode has only one row, so its program loads more keys at once."""
    rows = max(LEAST, group)
    if itemsize == 4:
        return _tile_of_float32(rows, width)
    if width > WIDER:
        return Tile(rows, 32, 8, 3)
    if width <= WIDE and not codes and shared >= MIDDLE_SHARED:
        return Tile(rows, 128, 4 if group <= 64 else 8, 3)
    return Tile(rows, 64 if width <= WIDE else 32, 4 if group <= 64 else 8, 5)


def _tile_of_float32(rows: int, width: int) -> Tile:
    """Products of float32 are computed in registers, not by tensor cores."""
    return Tile(rows, 32 if rows * width <= 2048 else 16, 4 if rows * width <= 4096 else 8, 3)
