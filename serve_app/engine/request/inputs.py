"""Checks a request's inputs besides tokens: bias, draft, prompt table, and the logits it asks for.

Each error names the field and its allowed range. Does not depend on the load or on other requests.
"""

from __future__ import annotations

import torch

from serve_app import limits
from serve_app.engine.request.tensors import DTYPES, check
from serve_app.errors import InvalidField, UnsupportedField
from serve_app.types import Draft, EngineRequest, PromptTable


def check_inputs(request: EngineRequest, *, vocab_size: int, window: int, table_width: int | None) -> None:
    """Raise InvalidField or UnsupportedField.

    `window`: tokens of one sequence; `table_width`: numbers in a row of a prompt table (0: the model does not
    support prompt tables; None: unknown).
    """
    if request.bias is not None:
        bias = check("bias", request.bias, ("FP32",), (vocab_size,))
        # It may rule tokens out, but not all of them.
        if not bool((bias < torch.inf).all()) or not bool((bias > -torch.inf).any()):
            raise InvalidField("bias", "must hold numbers or -inf, and a finite one.", joint=" ")
    if request.draft is not None:
        _draft(request.draft, request, vocab_size, window)
    if request.prompt_table is not None:
        _table(request.prompt_table, request, vocab_size, table_width)
    _logits(request, vocab_size, window)


def num_prompt_ids(request: EngineRequest, vocab_size: int) -> int:
    """How many ids a prompt may use: first those of the vocabulary, then those of the prompt table."""
    return vocab_size + (0 if request.prompt_table is None else max(0, request.prompt_table.used))


def _draft(draft: Draft, request: EngineRequest, vocab_size: int, window: int) -> None:
    count, room = len(draft.token_ids), window - len(request.token_ids)
    most = room if request.sampling.max_tokens is None else request.sampling.max_tokens
    if request.beam is not None:
        raise InvalidField("draft", "a beam search takes none.")
    if not 1 <= count < min(most, limits.MAX_DRAFT_TOKENS + 1):
        raise InvalidField(
            "draft",
            f"must have at least 1 token, fewer than max_tokens of {most} and at most "
            f"{limits.MAX_DRAFT_TOKENS}; it has {count}.",
            joint=" ",
        )
    if not all(0 <= token < vocab_size for token in draft.token_ids):
        raise InvalidField("draft", f"holds a token id outside the vocabulary of {vocab_size}.", joint=" ")
    threshold = draft.acceptance_threshold
    if threshold is not None and not 0 <= threshold <= 1:
        raise InvalidField("draft", "draft_acceptance_threshold must be from 0 to 1.", joint=None)
    if draft.logits is not None:
        logits = check("draft_logits", draft.logits, ("FP32",), (count, vocab_size))
        # A model may rule tokens out, but not all of them.
        if not bool((logits < torch.inf).all()) or bool((logits.amax(-1) == -torch.inf).any()):
            raise InvalidField("draft_logits", "must hold numbers, in each row a finite one.", joint=" ")


def _table(table: PromptTable, request: EngineRequest, vocab_size: int, width: int | None) -> None:
    if width == 0:
        raise UnsupportedField("prompt_table", "this model takes none")
    rows = check("prompt_table", table.rows, tuple(DTYPES), (None, width))
    if not bool(torch.isfinite(rows).all()):
        raise InvalidField("prompt_table", "must hold finite numbers.", joint=" ")
    if not 1 <= table.used <= rows.shape[0]:
        raise InvalidField(
            "prompt_vocab_size", f"must be from 1 to the {rows.shape[0]} rows of the prompt table.", joint=" "
        )
    if request.prompt_logprobs is not None and max(request.token_ids, default=0) >= vocab_size:
        raise InvalidField("prompt_logprobs", "rows of a prompt table have no probability; ask without them.")


def _logits(request: EngineRequest, vocab_size: int, window: int) -> None:
    """The logits of one request are limited in total, whether or not it is streamed."""
    length, max_tokens = len(request.token_ids), request.sampling.max_tokens
    outputs = request.n if request.beam is None else request.beam.width
    longest = window - length if max_tokens is None else max_tokens
    rows: dict[str, int] = {
        "context_logits": length if request.context_logits else 0,
        "generation_logits": outputs * longest if request.generation_logits else 0,
    }
    most = limits.MAX_LOGITS_BYTES // (4 * vocab_size)
    if sum(rows.values()) > most:
        name = max(rows, key=lambda field: rows[field])
        raise InvalidField(
            name,
            f"{sum(rows.values())} rows of logits are wanted, prompt tokens and max_tokens counted; "
            f"{limits.MAX_LOGITS_BYTES} bytes hold {most} of this vocabulary of {vocab_size}.",
        )
