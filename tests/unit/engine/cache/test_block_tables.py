"""Block tables of sequences: prefixes found again, forks, admission, and random histories."""

from __future__ import annotations

import random

import pytest

from serve_app.engine.cache.block_tables import BlockTables
from serve_app.engine.cache.blocks import BlockPool
from serve_app.engine.cache.prefix import PrefixIndex
from serve_app.engine.sequence import Sequence
from serve_app.types import SamplingParams


def sequence(token_ids: list[int], *, salt: str = "", index: int = 0) -> Sequence:
    return Sequence("r", index, len(token_ids), list(token_ids), SamplingParams(), 0, salt=salt)


def computed(tables: BlockTables, token_ids: list[int], *, salt: str = "") -> Sequence:
    """A sequence that has run up to its last token."""
    made = sequence(token_ids, salt=salt)
    if not tables.admit(made):
        raise AssertionError("does not fit")
    made.num_computed = made.num_tokens
    tables.index(made, made.num_computed)
    return made


class Memory:
    """A `BlockMemory` of which nothing is given before it is used."""

    ready_blocks, block_seconds, run_seconds = 0, 1.0, 0.0


def test_a_long_table_in_a_fresh_pool_is_one_run() -> None:
    tables = BlockTables(BlockPool(8, 4))
    assert computed(tables, list(range(20))).block_table == [0, 1, 2, 3, 4]


def test_a_freed_prefix_is_found_again_and_the_last_token_is_always_computed() -> None:
    tables = BlockTables(BlockPool(8, 4))
    tables.free(computed(tables, list(range(8))))
    again = computed(tables, list(range(8)))
    longer = sequence(list(range(12)))
    assert tables.admit(longer)
    assert again.block_table[0] == longer.block_table[0]
    assert longer.num_computed == 8
    third = sequence(list(range(8)))
    assert tables.admit(third)
    assert third.num_computed == 4, "8 tokens are known, but the last must give logits"


def test_a_prefix_is_invisible_under_another_salt() -> None:
    tables = BlockTables(BlockPool(8, 4))
    tables.free(computed(tables, list(range(8)), salt="alice"))
    other = sequence([*range(8), 9], salt="bob")
    assert tables.admit(other)
    assert other.num_computed == 0
    own = sequence([*range(8), 9], salt="alice")
    assert tables.admit(own)
    assert own.num_computed == 8


def test_equal_tokens_after_a_different_prefix_are_not_a_hit() -> None:
    tables = BlockTables(BlockPool(8, 4))
    tables.free(computed(tables, [1, 1, 1, 1, 5, 5, 5, 5]))
    other = sequence([2, 2, 2, 2, 5, 5, 5, 5, 0])
    assert tables.admit(other)
    assert other.num_computed == 0


def test_a_key_collision_is_not_a_hit() -> None:
    class Colliding(PrefixIndex):
        def extend(self, parent: bytes, token_ids: object) -> bytes:
            return b"same"

    tables = BlockTables(BlockPool(8, 4, Colliding()))
    tables.free(computed(tables, [1, 2, 3, 4]))
    other = sequence([4, 3, 2, 1, 0])
    assert tables.admit(other)
    assert other.num_computed == 0


def test_keys_of_two_indices_differ_because_each_has_its_own_secret() -> None:
    assert PrefixIndex().root("") != PrefixIndex().root("")


def test_the_prefix_unused_for_longest_is_given_up_first_and_tails_before_heads() -> None:
    tables = BlockTables(BlockPool(6, 4))
    old, new = computed(tables, [1] * 8), computed(tables, [2] * 8)
    tables.free(old)
    tables.free(new)
    computed(tables, [3] * 12)  # two blocks are empty, one must be given up
    probe_old, probe_new = sequence([1] * 9), sequence([2] * 9)
    assert tables.pool.num_cached == 3
    assert len(tables.known_prefix(probe_old)) == 1
    assert len(tables.known_prefix(probe_new)) == 2


def test_admission_changes_nothing_when_blocks_are_missing() -> None:
    tables = BlockTables(BlockPool(3, 4))
    tables.free(computed(tables, [1] * 4))
    blocked = sequence([1] * 16)
    assert not tables.admit(blocked)
    fits_without_reserve = sequence([1] * 12)
    assert not tables.admit(fits_without_reserve, reserve=1)
    assert blocked.block_table == fits_without_reserve.block_table == []
    tables.check_integrity([])
    assert tables.admit(fits_without_reserve)


def test_a_prefix_of_two_sequences_outlives_others_while_unused_blocks_lack_memory() -> None:
    tables = BlockTables(BlockPool(8, 4, memory=Memory()))
    tables.pool.weigh_waits(0.0)
    first = computed(tables, [1] * 8)
    second = computed(tables, [1] * 8 + [2] * 8)
    assert first.block_table == second.block_table[:2]
    for s in (first, second, computed(tables, [3] * 8)):
        tables.free(s)
    fresh = computed(tables, [4] * 20)
    assert fresh.block_table == [3, 2, 5, 4, 6], (
        "what was cached once, tails before heads, then what is unused"
    )
    assert len(tables.known_prefix(sequence([1] * 9))) == 2


def test_a_block_of_a_long_prompt_may_lack_memory_where_one_of_a_single_token_may_not() -> None:
    memory = Memory()
    memory.block_seconds, memory.run_seconds = 0.0, 1.0
    tables = BlockTables(BlockPool(20, 4, memory=memory))
    tables.pool.weigh_waits(0.5)
    tables.free(computed(tables, [1] * 8))
    long = computed(tables, [2] * 40)
    assert long.block_table == list(range(2, 12))
    long.token_ids.append(3)
    assert tables.grow(long) is None
    assert long.block_table[-1] == 1, "the tail of what was cached"


def test_a_fork_shares_all_blocks_and_the_first_to_write_copies_the_partial_one() -> None:
    tables = BlockTables(BlockPool(8, 4))
    parent = computed(tables, [1] * 6)
    child = sequence([1] * 6, index=1)
    tables.fork(parent, child)
    assert tables.pool.num_used == 2
    for s in (parent, child):
        s.token_ids.append(7)
    source = parent.block_table[1]
    assert tables.blocks_to_grow(parent) == 1
    assert tables.grow(parent) == (source, parent.block_table[1])
    assert tables.blocks_to_grow(child) == 0, "it is the only holder by now"
    assert tables.grow(child) is None
    assert parent.block_table[0] == child.block_table[0]
    tables.check_integrity([parent, child])


@pytest.mark.parametrize("length", [6, 8])
def test_forks_that_write_together_need_a_copy_less_than_they_are(length: int) -> None:
    tables = BlockTables(BlockPool(16, 4))
    parent = computed(tables, [1] * length)
    family = [parent, *(sequence([1] * length, index=i) for i in (1, 2, 3))]
    for child in family[1:]:
        tables.fork(parent, child)
    for s in family:
        s.token_ids.append(7)
    before = tables.pool.num_free
    needed = tables.blocks_to_grow_all(family)
    assert needed == (3 if length == 6 else 4)
    copies = [tables.grow(s) for s in family]
    assert before - tables.pool.num_free == needed
    assert [copy is not None for copy in copies] == [length == 6] * 3 + [False]
    tables.check_integrity(family)


def test_a_fork_at_a_block_border_copies_nothing() -> None:
    tables = BlockTables(BlockPool(8, 4))
    parent = computed(tables, [1] * 8)
    child = sequence([1] * 8, index=1)
    tables.fork(parent, child)
    for s in (parent, child):
        s.token_ids.append(7)
        assert tables.grow(s) is None
    assert parent.block_table[:2] == child.block_table[:2]
    assert parent.block_table[2] != child.block_table[2]


def test_forget_takes_everything_beyond_the_kept_tokens_out_of_the_index() -> None:
    tables = BlockTables(BlockPool(8, 4))
    made = computed(tables, list(range(12)))
    tables.forget(made, keep=6)
    tables.free(made)
    assert tables.pool.num_cached == 1
    again = sequence(list(range(13)))
    assert tables.admit(again)
    assert again.num_computed == 4


def test_without_a_prefix_cache_nothing_is_kept() -> None:
    tables = BlockTables(BlockPool(8, 4), prefix_cache=False)
    tables.free(computed(tables, list(range(8))))
    assert tables.pool.num_cached == 0
    again = sequence(list(range(9)))
    assert tables.admit(again)
    assert again.num_computed == 0


@pytest.mark.parametrize("memory", [None, Memory()], ids=["given", "not given"])
@pytest.mark.parametrize("seed", range(5))
def test_the_books_balance_after_every_random_operation(seed: int, memory: Memory | None) -> None:
    rng = random.Random(seed)
    tables = BlockTables(BlockPool(12, 4, memory=memory))
    tables.pool.weigh_waits(0.0)
    live: list[Sequence] = []
    for _ in range(400):
        action = rng.choice(("admit", "admit", "fork", "grow", "grow", "free", "forget"))
        if action == "admit":
            made = sequence([rng.randrange(2) for _ in range(rng.randrange(1, 17))])
            if tables.admit(made):
                made.num_computed = made.num_tokens
                tables.index(made, made.num_computed)
                live.append(made)
        elif live:
            chosen = rng.choice(live)
            if action == "fork":
                child = sequence(chosen.token_ids)
                tables.fork(chosen, child)
                live.append(child)
            elif action == "grow":
                chosen.token_ids.append(rng.randrange(2))
                if tables.blocks_to_grow(chosen) <= tables.pool.num_free:
                    tables.grow(chosen)
                    chosen.num_computed += 1
                    tables.index(chosen, chosen.num_computed)
                else:
                    chosen.token_ids.pop()
            else:
                if action == "forget":
                    tables.forget(chosen, keep=rng.randrange(chosen.num_tokens + 1))
                tables.free(chosen)
                live.remove(chosen)
        tables.check_integrity(live)
    for made in live:
        tables.free(made)
    tables.check_integrity([])
    assert tables.pool.num_free == 12
