"""Block ids, with integers only."""

from __future__ import annotations

import pytest

from serve_app.engine.cache.blocks import BlockPool, IntegrityError


def test_the_next_block_is_the_adjacent_one_when_it_is_free() -> None:
    pool = BlockPool(8, 4)
    first, second = pool.allocate(), pool.allocate(after=5)
    assert (first, second, pool.allocate(after=first)) == (0, 6, 1)


def test_a_block_is_free_when_its_last_holder_has_released_it() -> None:
    pool = BlockPool(2, 4)
    block = pool.allocate()
    pool.acquire(block)
    pool.release(block)
    assert pool.num_free == 1
    pool.release(block)
    assert pool.num_free == 2


def test_releasing_too_often_and_allocating_from_a_full_pool_are_integrity_errors() -> None:
    pool = BlockPool(1, 4)
    block = pool.allocate()
    with pytest.raises(IntegrityError, match="full"):
        pool.allocate()
    pool.release(block)
    with pytest.raises(IntegrityError, match="released"):
        pool.release(block)
    with pytest.raises(IntegrityError, match="empty"):
        pool.acquire(block)


def test_check_integrity_names_a_block_whose_references_do_not_match_the_tables() -> None:
    pool = BlockPool(4, 4)
    block = pool.allocate()
    pool.check_integrity([[block]])
    with pytest.raises(IntegrityError, match=f"block {block} has 1 references, but 2 tables"):
        pool.check_integrity([[block], [block]])
