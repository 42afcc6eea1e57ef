"""Figures that follow measurements of which single ones are far too high."""

from __future__ import annotations


def smoothed(known: float | None, new: float, *, weight: float, outlier: float) -> float:
    """`known` moved towards `new` by its weight; `new` counts `outlier` times `known` at most."""
    return new if known is None else known + weight * (min(new, outlier * known) - known)
