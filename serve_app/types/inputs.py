"""Inputs of a request besides tokens: embeddings for a prompt, a guess at the output."""

from __future__ import annotations

from dataclasses import dataclass

from serve_app.types.result import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptTable:
    """Embeddings of a prompt's virtual tokens: id `vocab_size + i` stands for row `i`."""

    rows: Tensor  # (V, hidden) FP32, FP16 or BF16, finite
    used: int  # 1 .. V; ids of later rows are refused


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A guess at the first output tokens, verified in one forward pass.

    Without logits, and in greedy decoding, a token is accepted if it equals the token that would be generated
    without a draft, so the answer is the same. With logits, sampled tokens are accepted or rejected so that
    the answer has the same distribution as without a draft. The logits must be the ones that the draft was
    sampled from, after temperature and filters (-inf: impossible).
    """

    token_ids: tuple[int, ...]  # at least one, fewer than max_tokens
    logits: Tensor | None = None  # FP32 (tokens, vocab)
    # 0 .. 1: accept a token where target / draft probability is at least this, instead of at random.
    # Faster, but no longer the target's distribution. Only with logits.
    acceptance_threshold: float | None = None
