"""What a grammar allows a sequence, and what it forces."""

import itertools
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from llguidance import LLMatcher, LLTokenizer

from serve_app.engine.grammar import constraint as module
from serve_app.engine.grammar.constraint import LIMITS, Constraint
from tests.support.grammars import EOS, fast, regex, tokens

__all__ = ["fast", "tokens"]

SLOW = "(x{1000}){1000}"  # its first mask takes about a second of CPU


def constraint(tokens: LLTokenizer, pattern: str) -> Constraint:
    return Constraint(LLMatcher(tokens, regex(pattern), log_level=0, limits=LIMITS), tokens)


def allowed(bits: module.Bits) -> set[int]:
    return set(np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little")).tolist())


def test_a_mask_is_every_token_that_some_answer_goes_on_with(fast, tokens):
    language = ["".join(letters) for n in (2, 3) for letters in itertools.product("th", repeat=n)]
    texts = {i: fast.decode([i]) for i in range(6, len(fast))}
    one = constraint(tokens, "[th]{2,3}")
    seen = 0
    pending: list[list[int]] = [[]]
    while pending:
        output = pending.pop()
        text = "".join(texts[i] for i in output)
        expected = {i for i, t in texts.items() if t and any(s.startswith(text + t) for s in language)}
        if text in language:
            expected.add(EOS)
        assert allowed(one.mask(output)) == expected
        seen += 1
        pending += [[*output, i] for i in expected if i != EOS]
    assert seen > 10


def test_a_constraint_follows_a_sequence_that_changes_behind_it(fast, tokens):
    one = constraint(tokens, "(the quick|the lazy|one two) (fox|dog)")
    outputs = [fast.encode(text) for text in ("the quick f", "the lazy", "one two dog", "the quick f", "")]
    for output in outputs:
        assert (
            one.mask(output) == constraint(tokens, "(the quick|the lazy|one two) (fox|dog)").mask(output)
        ).all()
        assert one.error is None


def test_a_fork_goes_its_own_way(fast, tokens):
    parent = constraint(tokens, "(ab|ac)d")
    a = fast.encode("a")
    before = allowed(parent.mask(a))
    child = parent.fork()
    assert allowed(child.mask(a)) == before
    child.mask(fast.encode("ab"))
    assert allowed(parent.mask(a)) == before
    assert allowed(child.mask(fast.encode("abd"))) == {EOS}


def test_what_must_follow_is_spelled_as_the_tokenizer_spells_it(fast, tokens):
    text = "The quick brown fox jumps over the lazy dog."
    one = constraint(tokens, text.replace(".", r"\.") + "[0-9]")
    forced = one.forced([])
    assert len(forced) > 3
    assert forced == fast.encode(text)[: len(forced)]
    assert one.forced(fast.encode(text + "7")) == [EOS]
    assert constraint(tokens, "a?b?").forced([]) == []


def test_the_end_is_allowed_only_where_the_grammar_accepts(fast, tokens):
    one = constraint(tokens, "[0-9]{2,4}")
    assert EOS not in allowed(one.mask(fast.encode("1")))
    assert EOS in allowed(one.mask(fast.encode("12")))
    one.mask(fast.encode("1234"))
    assert one.allows_only([EOS])
    one.mask(fast.encode("123"))
    assert not one.allows_only([EOS])
    assert not one.allows_only([10**6])


def test_a_grammar_that_fails_allows_nothing_and_says_why(fast, tokens):
    one = constraint(tokens, "[0-9]")
    assert not allowed(one.mask(fast.encode("x")))
    assert one.error is not None
    assert (one.error.kind, one.error.param) == ("InvalidField", "response_format")
    assert not allowed(one.fork().mask(fast.encode("1")))
    assert one.forced([]) == []


def test_a_slow_mask_is_late_and_then_there(tokens):
    with ThreadPoolExecutor(1) as pool:
        one = constraint(tokens, SLOW)
        one.prepare([], pool)
        assert one.late()
        other = constraint(tokens, "[0-9]")
        assert allowed(other.mask([]))  # does not wait for it
        deadline = time.monotonic() + 60
        while one.late() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not one.late()
        one.mask([])


def test_a_mask_beyond_its_limit_ends_the_sequence(tokens, monkeypatch):
    monkeypatch.setattr(module, "MASK_LIMIT_S", 0.05)
    with ThreadPoolExecutor(1) as pool:
        one = constraint(tokens, SLOW)
        one.prepare([], pool)
        time.sleep(0.06)
        assert not one.late()
        assert one.error is not None
        assert "too long" in one.error.reason
        assert not allowed(one.mask([]))
