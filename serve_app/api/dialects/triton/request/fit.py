"""Checks that need the model: token ids against the model's vocabulary, widths of tensors against its sizes.

Errors name tensors. The engine checks lengths against the context window.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from serve_app.api.dialects.triton.request.row import BatchRow
from serve_app.errors import InvalidField
from serve_app.types import GenerateRequest, ModelInfo


@dataclass(frozen=True, slots=True)
class Fit:
    """Checks the requests of one call. `names`: tensors -> the client's other names for them."""

    names: BatchRow
    has_one_end: bool = False  # only the tokenizer's own end token ends an answer

    def __call__(self, request: GenerateRequest, info: ModelInfo) -> GenerateRequest:
        """The request, unchanged except perhaps for its end tokens. Raises InvalidField."""
        vocab, sampling = info.vocab_size, request.sampling
        table = request.prompt_table
        self._ids("input_ids", request.prompt.token_ids or (), vocab + (table.used if table else 0))
        self._ids("end_id", sampling.stop_token_ids, vocab)
        self._ids("runtime_top_p_reset_ids", (max(0, sampling.top_p_reset_id),), vocab)
        self._ids("bad_words_list", (token for word in sampling.bad_words for token in word), vocab)
        self._ids("stop_words_list", (token for word in sampling.stop_sequences for token in word), vocab)
        if sampling.top_k > vocab:
            raise self._refused("runtime_top_k", f"must be an integer from 0 to {vocab}")
        if request.bias is not None and request.bias.shape != (vocab,):
            raise self._refused("embedding_bias", f"must have the shape [1, {vocab}], the vocabulary's")
        if request.draft is not None:
            self._ids("draft_input_ids", request.draft.token_ids, vocab)
            logits = request.draft.logits
            if logits is not None and logits.shape[1] != vocab:
                raise self._refused("draft_logits", f"must have {vocab} columns, the vocabulary's")
        if self.has_one_end and info.end_token_id is not None:
            sampling = replace(sampling, stop_token_ids=(info.end_token_id,), ignore_eos=True)
            return replace(request, sampling=sampling)
        return request

    def _ids(self, name: str, ids: Iterable[int], vocab: int) -> None:
        if any(not 0 <= token < vocab for token in ids):
            raise self._refused(name, f"token ids must be from 0 to {vocab - 1}")

    def _refused(self, name: str, reason: str) -> Exception:
        return InvalidField(self.names.client_name(name), reason)
