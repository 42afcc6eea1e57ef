"""Block ids, with integers only."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from serve_app.engine.cache.blocks import BlockPool, IntegrityError


@dataclass
class Memory:
    """A `BlockMemory` of plain numbers."""

    ready_blocks: int
    block_seconds: float = 1.0
    run_seconds: float = 0.0


def pool_of(num_blocks: int, ready: int, *, block_seconds: float = 1.0) -> BlockPool:
    """A pool whose first `ready` blocks have memory. Computing a block takes a second."""
    pool = BlockPool(num_blocks, 1, memory=Memory(ready, block_seconds))
    pool.weigh_waits(1.0)
    return pool


def cached(pool: BlockPool, count: int) -> list[int]:
    """New blocks that hold a prefix each, and that nobody has any more."""
    blocks = [pool.allocate() for _ in range(count)]
    for block in blocks:
        pool.publish(block, b"%d" % block, [block])
        pool.release(block)
    return blocks


def test_the_next_block_is_the_adjacent_one_when_it_is_free() -> None:
    pool = BlockPool(8, 4)
    first, *others = (pool.allocate() for _ in range(4))
    for block in reversed(others):
        pool.release(block)
    assert [pool.allocate(after=first), pool.allocate(after=3), pool.allocate(after=1)] == [1, 4, 2]


def test_a_block_without_memory_comes_after_cached_ones_that_nobody_has_found_again() -> None:
    pool = pool_of(6, ready=3)
    assert cached(pool, 2) == [0, 1]
    empty = pool.allocate()
    pool.release(empty)
    taken = [pool.allocate() for _ in range(4)]
    assert taken == [2, 0, 1, 3], "what is empty, then prefixes from the oldest on, then what has no memory"
    assert pool.num_cached == 0
    pool.check_integrity([taken])


def test_an_unused_block_with_memory_comes_before_cached_ones() -> None:
    pool = pool_of(6, ready=3)
    cached(pool, 2)
    assert [pool.allocate(), pool.num_cached] == [2, 2]


def test_a_prefix_that_was_found_again_stays_while_there_are_unused_blocks() -> None:
    pool = pool_of(4, ready=2)
    found, once = cached(pool, 2)
    pool.acquire_found(found)
    pool.release(found)
    taken = [pool.allocate() for _ in range(4)]
    assert taken == [once, 2, 3, found]
    pool.check_integrity([taken])


def test_a_fork_does_not_count_as_finding_a_block_again() -> None:
    pool = pool_of(3, ready=1)
    block = pool.allocate()
    pool.acquire(block)
    pool.publish(block, b"key", [0])
    pool.release(block)
    pool.release(block)
    assert pool.allocate() == block


def test_what_was_found_again_is_forgotten_with_the_content_of_the_block() -> None:
    pool = pool_of(3, ready=1)
    (block,) = cached(pool, 1)
    pool.acquire_found(block)
    pool.unpublish(block)
    pool.release(block)
    assert cached(pool, 1) == [block]
    assert pool.allocate() == block
    pool.check_integrity([[block]])


def test_the_pool_asks_anew_how_many_blocks_have_memory() -> None:
    memory = Memory(1)
    pool = BlockPool(3, 1, memory=memory)
    pool.weigh_waits(1.0)
    cached(pool, 1)
    memory.ready_blocks = 2
    assert [pool.allocate(), pool.allocate()] == [1, 0]
    assert pool.num_ready == 2


@pytest.mark.parametrize("cheap", [0.0, 0.2])
def test_memory_that_takes_little_of_the_time_of_computing_is_taken_before_any_prefix(cheap: float) -> None:
    pool = pool_of(4, ready=1, block_seconds=cheap)
    cached(pool, 1)
    assert [pool.allocate(), pool.allocate(), pool.num_cached] == [1, 2, 1]
    pool.weigh_waits(cheap)
    assert pool.allocate() == (3 if cheap == 0.0 else 0)


def test_the_first_block_of_a_run_is_dear_and_many_blocks_share_its_price() -> None:
    pool = BlockPool(9, 1, memory=Memory(2, block_seconds=0.1, run_seconds=1.0))
    pool.weigh_waits(1.0)
    cached(pool, 2)
    assert [pool.allocate(together=10) for _ in range(2)] == [2, 3]
    assert pool.allocate() == 0
    assert [pool.allocate(together=6), pool.allocate(together=7)] == [1, 4]


def test_without_word_of_memory_all_blocks_have_theirs() -> None:
    pool = BlockPool(4, 1)
    pool.weigh_waits(0.0)
    cached(pool, 1)
    assert [pool.num_ready, pool.allocate(), pool.num_cached] == [4, 1, 1]


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
    with pytest.raises(IntegrityError, match="free"):
        pool.acquire(block)
    with pytest.raises(IntegrityError, match="empty"):
        pool.acquire_found(block)


def test_check_integrity_names_a_block_whose_references_do_not_match_the_tables() -> None:
    pool = BlockPool(4, 4)
    block = pool.allocate()
    pool.check_integrity([[block]])
    with pytest.raises(IntegrityError, match=f"block {block} has 1 references, but 2 tables"):
        pool.check_integrity([[block], [block]])
