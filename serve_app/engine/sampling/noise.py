"""Counter-based noise: one uniform number for each (seed, sequence, position).

A pure function of its key, so a sequence draws the same numbers alone or in a batch, preempted or not, and on
any device. It keeps no state and does not depend on logits.
"""

from __future__ import annotations

from typing import Final

_MASK: Final = 2**64 - 1
_GOLDEN: Final = 0x9E3779B97F4A7C15  # 2**64 / golden ratio, odd: successive counters land far apart


def _mix(x: int) -> int:
    """A bijection of 64-bit integers, in which every input bit affects every output bit (splitmix64)."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def uniform(seed: int, index: int, position: int) -> float:
    """A number in [0, 1) with 53 random bits.

    `seed` is 0 .. 2**64-1 (taken modulo 2**64), `index` is the sequence's number in its request, and
    `position` the number of tokens generated before this draw.
    """
    key = _mix((_mix((seed + _GOLDEN) & _MASK) + (index + 1) * _GOLDEN) & _MASK)
    word = _mix((key + (position + 1) * _GOLDEN) & _MASK)
    # A second round with the key: otherwise one stream could be another one shifted.
    return (_mix((word + key) & _MASK) >> 11) * 2.0**-53
