"""Our own proposals of drafts: what followed before, and ever rarer where that fails."""

from __future__ import annotations

from serve_app.engine.sampling.prompt_lookup import PromptLookup


def lookup(tokens: list[int], most: int = 8, **options: int) -> tuple[int, ...]:
    proposer = PromptLookup(most, **{"vocab_size": 100, "max_tokens": 1000, **options})
    proposer.learn(2, 2)
    proposer.learn(4, 4)
    return proposer.propose(tokens, most)


def test_a_proposal_is_what_followed_before() -> None:
    assert lookup([1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3]) == (4, 5, 6, 7, 8, 9, 1, 2)
    assert lookup([1, 2, 3, 4, 9, 2, 3]) == (4, 9, 2, 3, 4, 9, 2, 3)  # and so on
    assert lookup([1, 2, 3, 4]) == ()
    assert lookup([5, 1, 2, 9, 1, 2, 8, 1, 2]) == (8, 1, 2, 8, 1, 2, 8, 1)  # the latest place


def test_a_proposal_keeps_to_the_vocabulary_and_the_window() -> None:
    assert lookup([1, 2, 3, 400, 5, 1, 2]) == (3,)
    assert lookup([1, 2, 3, 4, 5, 6, 1, 2], max_tokens=11) == (3, 4)
    assert lookup([1, 2, 3, 4, 5, 6, 1, 2], max_tokens=9) == ()


def test_failures_make_proposals_shorter_and_rarer() -> None:
    proposer = PromptLookup(8, vocab_size=100, max_tokens=10_000)
    proposed = 0
    for _ in range(300):
        draft = proposer.propose([1, 2] * 20, 8)
        proposed += len(draft)
        if draft:
            proposer.learn(len(draft), 0)
    assert 0 < proposed < 20
