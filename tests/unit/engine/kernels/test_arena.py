"""Pieces of an arena are apart from each other, aligned, and live as long as they are used."""

from __future__ import annotations

import gc
import mmap

import pytest
import torch

from serve_app.engine.kernels.arena import CHUNK, HUGE_PAGE, LINE, Arena, zeros


def test_pieces_begin_at_cache_lines_and_do_not_overlap() -> None:
    arena = Arena()
    counts = (1, 63, 64, 1000, CHUNK // 2, CHUNK // 2 + 1, CHUNK + 1, 5)
    pieces = [arena.empty(count, torch.bfloat16) for count in counts]
    for value, piece in enumerate(pieces):
        assert piece.data_ptr() % LINE == 0
        piece.fill_(value)
    for value, (count, piece) in enumerate(zip(counts, pieces, strict=True)):
        assert piece.shape == (count,)
        assert bool((piece == value).all())


def test_a_piece_outlives_its_arena() -> None:
    piece = Arena().empty(1000, torch.float32).fill_(3.0)
    gc.collect()
    assert bool((piece == 3.0).all())


@pytest.mark.parametrize("count", [0, 5, HUGE_PAGE // 2, HUGE_PAGE // 2 + 1, 3 * HUGE_PAGE + 7])
def test_zeros_are_zeros_and_apart(count: int) -> None:
    one, two = zeros(count, torch.bfloat16), zeros(count, torch.bfloat16)
    assert one.shape == two.shape == (count,)
    assert not one.any()
    one.fill_(1.0)
    assert not two.any()


def test_zeros_begin_at_different_places_of_their_huge_pages() -> None:
    """Filled side by side, no more than a few of them come to a new huge page at the same time."""
    tensors = [zeros(HUGE_PAGE, torch.uint8) for _ in range(60)]
    places = sorted(tensor.data_ptr() % HUGE_PAGE for tensor in tensors)
    assert all(place % mmap.PAGESIZE == 0 for place in places)
    crowds = [sum(place <= other < place + HUGE_PAGE // 30 for other in places) for place in places]
    assert max(crowds) <= 4
