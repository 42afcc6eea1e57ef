"""One row of tensors -> one generation request: sampling or beams, words, adapter, prompt table, draft.

If top-k and top-p are both 0, the likeliest token is taken. If one of the two is set, a token is drawn from
those that it selects. If both are set, top-k is applied first. A beam width of 1 means no beam search.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from serve_app import limits
from serve_app.api.dialects.triton.request.inputs import BAD_WORDS, HINTS, INPUTS, NO_TOKEN, STOP_WORDS, Rank
from serve_app.api.dialects.triton.request.row import BatchRow
from serve_app.api.dialects.triton.request.text import read_biased_words, read_prompt, read_word_texts
from serve_app.api.dialects.triton.request.words import read_words
from serve_app.api.kserve.datatype import floats
from serve_app.config import TrtllmConfig
from serve_app.types import (
    Adapter,
    Beam,
    Draft,
    EarlyStopping,
    GenerateRequest,
    Grammar,
    Prompt,
    PromptTable,
    SamplingParams,
    Tensor,
)
from serve_app.types.adapter import TASK_PREFIX

_EARLY: Final = {0: EarlyStopping.NO, 1: EarlyStopping.YES}  # any other number means `never`


def generate_request(
    row: BatchRow,
    config: TrtllmConfig,
    *,
    grammar: Grammar | None,
    priority: int,
    streaming: bool,
    with_prompt: bool,
) -> GenerateRequest:
    """`with_prompt`: whether the answer begins with the prompt. Raises InvalidField or PromptTooLong."""
    text = read_prompt(row)
    is_text = text is not None
    output_len = _required(row, "request_output_len")
    beam = _beam(row)
    prompt = Prompt(text=text) if is_text else _prompt(row)
    table = _prompt_table(row, prompt)
    _check_hints(row)
    return GenerateRequest(
        id="",
        model="",
        prompt=prompt,
        sampling=_sampling(row, output_len, ends=is_text or config.default_end_id == "tokenizer"),
        n=_sequences(row, beam),
        beam=beam,
        bad_words=read_word_texts(row, BAD_WORDS),
        stop=read_word_texts(row, STOP_WORDS),
        include_stop=True,  # the tokens of stop words stay in the answer
        echo=is_text and with_prompt,
        logprobs=0 if row.flag("return_log_probs") else None,
        context_logits=row.flag("return_context_logits"),
        generation_logits=row.flag("return_generation_logits"),
        bias=_bias(row),
        biased_words=read_biased_words(row),
        prompt_table=table,
        draft=_draft(row, output_len, beam),
        adapter=_adapter(row),
        grammar=grammar,
        stream=streaming,
        priority=priority,
        reasoning=False,
    )


def _required(row: BatchRow, name: str) -> int:
    value = row.integer(name)
    if value is None:
        raise row.refused(name, "is required")
    return value


def _prompt(row: BatchRow) -> Prompt:
    """The tokens of the prompt, without the padding of a batch."""
    ids = row.ids("input_ids")
    if ids is None:
        raise row.refused("input_ids", "is required")
    length = row.integer("input_lengths")
    if length is not None and length > len(ids):
        raise row.refused("input_lengths", f"must be an integer from 1 to {len(ids)}, the width of input_ids")
    if not ids:
        raise row.refused("input_ids", "must hold at least one token")
    extra = row.ids("prompt_table_extra_ids")
    if extra is not None and len(extra) != len(ids):
        raise row.refused("prompt_table_extra_ids", "must have one element for each of input_ids")
    return Prompt(token_ids=ids[:length])


def _sampling(row: BatchRow, output_len: int, *, ends: bool) -> SamplingParams:
    """`ends`: without an `end_id`, the model's own end tokens end the answer."""
    top_k, top_p = row.integer("runtime_top_k") or 0, row.number("runtime_top_p") or 0.0
    temperature = row.number("temperature")
    draws = bool(top_k or top_p) and temperature != 0
    end_id = row.integer("end_id")
    reset = row.integer("runtime_top_p_reset_ids")
    common = SamplingParams(
        temperature=0.0,
        seed=row.integer("random_seed"),
        repetition_penalty=row.number("repetition_penalty") or 1.0,
        presence_penalty=row.number("presence_penalty") or 0.0,
        frequency_penalty=row.number("frequency_penalty") or 0.0,
        penalize_prompt=True,
        no_repeat_ngram=row.integer("no_repeat_ngram_size") or 0,
        bad_words=read_words(row, "bad_words_list", limits.MAX_BAD_WORDS, limits.MAX_BAD_WORD_TOKENS),
        stop_sequences=read_words(
            row, "stop_words_list", limits.MAX_STOP_SEQUENCES, limits.MAX_STOP_SEQUENCE_TOKENS
        ),
        min_tokens=row.integer("min_length") or 0,
        max_tokens=output_len,
        stop_token_ids=() if end_id in (None, NO_TOKEN) else (end_id,),
        ignore_eos=end_id is not None or not ends,
        top_k=top_k,
    )
    decay, least = row.number("runtime_top_p_decay"), row.number("runtime_top_p_min")
    if not draws:
        return replace(common, top_k=0)
    return replace(
        common,
        temperature=1.0 if temperature is None else temperature,
        top_p=top_p or 1.0,
        top_p_decay=1.0 if decay is None else decay,
        top_p_min=least or 0.0,
        top_p_reset_id=NO_TOKEN if reset is None else reset,
    )


def _beam(row: BatchRow) -> Beam | None:
    width = row.integer("beam_width") or 1
    early = row.integer("early_stopping") or 0
    length_penalty = row.number("len_penalty") or 0.0
    rate = row.number("beam_search_diversity_rate") or 0.0
    if width == 1:
        return None
    return Beam(
        width=width,
        length_penalty=length_penalty,
        early_stopping=_EARLY.get(early, EarlyStopping.NEVER),
        groups=width if rate else 1,  # each beam avoids the tokens of the beams before it
        diversity_penalty=rate,
    )


def _sequences(row: BatchRow, beam: Beam | None) -> int:
    asked = row.integer("num_return_sequences")
    if beam is None:
        return asked or 1
    if asked is not None and asked > beam.width:
        raise row.refused(
            "num_return_sequences", f"must be an integer from 1 to {beam.width}, the beam_width"
        )
    return asked or beam.width


def _bias(row: BatchRow) -> Tensor | None:
    """The bias; None if absent or of width 0, which preprocessing produces if there are no words."""
    bias = row.vector("embedding_bias", may_exclude=True)
    if bias is None or not bias.size:
        return None
    if (bias == -np.inf).all():
        raise row.refused("embedding_bias", "must leave a token: not all of it may be -inf")
    return Tensor(dtype="FP32", shape=bias.shape, data=bias.tobytes())


def _check_hints(row: BatchRow) -> None:
    """Check tensors that have no effect. Raises InvalidField for a value of the wrong form."""
    for name in HINTS:
        if INPUTS[name].rank is Rank.VECTOR:
            row.ids(name)
        else:
            row.integer(name)
    row.text("decoder_text_input")
    row.integer("prompt_table_extra_id")
    row.integer("num_draft_tokens")
    row.choice("use_draft_logits")


def _prompt_table(row: BatchRow, prompt: Prompt) -> PromptTable | None:
    rows, used = row.table("prompt_embedding_table"), row.integer("prompt_vocab_size")
    if rows is None:
        if used is not None:
            raise row.refused("prompt_vocab_size", "needs prompt_embedding_table")
        return None
    if prompt.token_ids is None:
        raise row.refused("prompt_embedding_table", "needs input_ids, which alone can address it")
    if not rows.shape[0] or not rows.shape[1]:
        raise row.refused("prompt_embedding_table", "must have at least one row")
    if used is not None and used > rows.shape[0]:
        raise row.refused(
            "prompt_vocab_size", f"must be an integer from 1 to {rows.shape[0]}, the table's rows"
        )
    return PromptTable(rows=rows, used=used or rows.shape[0])


def _adapter(row: BatchRow) -> Adapter | None:
    task = row.integer("lora_task_id")
    weights, config = row.table("lora_weights"), row.table("lora_config")
    if (weights is None) != (config is None):
        missing = "lora_weights" if weights is None else "lora_config"
        raise row.refused(missing, "must be given with the other of lora_weights and lora_config")
    if task is None:
        if weights is not None:
            raise row.refused("lora_task_id", "is required with lora_weights")
        return None
    if weights is not None and config is not None and weights.shape[0] != config.shape[0]:
        raise row.refused("lora_weights", f"must have {config.shape[0]} rows, as lora_config has")
    return Adapter(name=f"{TASK_PREFIX}{task}", config=config, weights=weights)


def _draft(row: BatchRow, output_len: int, beam: Beam | None) -> Draft | None:
    ids, logits = row.ids("draft_input_ids"), row.table("draft_logits", may_exclude=True)
    threshold = row.number("draft_acceptance_threshold")
    if not ids:
        if logits is not None:
            raise row.refused("draft_logits", "needs draft_input_ids")
        return None
    if beam is not None:
        raise row.refused("draft_input_ids", "must not be given with a beam_width above 1")
    if len(ids) >= output_len or len(ids) > limits.MAX_DRAFT_TOKENS:
        most = min(output_len - 1, limits.MAX_DRAFT_TOKENS)
        raise row.refused(
            "draft_input_ids", f"must hold at most {most} tokens, fewer than request_output_len"
        )
    if logits is not None and logits.shape[0] != len(ids):
        raise row.refused("draft_logits", f"must have {len(ids)} rows, one for each of draft_input_ids")
    return Draft(
        token_ids=ids, logits=_single(logits), acceptance_threshold=None if logits is None else threshold
    )


def _single(tensor: Tensor | None) -> Tensor | None:
    """A tensor of any floating type as FP32."""
    if tensor is None or tensor.dtype == "FP32":
        return tensor
    single = floats("draft_logits", tensor, may_exclude=True)
    return Tensor(dtype="FP32", shape=tensor.shape, data=single.tobytes())
