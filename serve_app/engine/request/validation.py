"""Static checks of a request to an engine, before anything is allocated.

The last check before the batch: dialects check first, with error messages of their own, but here nothing may
pass that could break a step. Does not depend on the load or on other requests.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from serve_app import limits
from serve_app.engine.request.inputs import check_inputs, num_prompt_ids
from serve_app.errors import EngineRefused, InvalidField, PromptTooLong
from serve_app.types import Beam, EngineRequest, SamplingParams


@dataclass(frozen=True, slots=True)
class BeamBounds:
    """The limits of an engine for one beam search."""

    width: int  # beams that fit its batch, its step and its cache
    end_tokens: int  # that the model has itself


def validate(
    request: EngineRequest,
    *,
    vocab_size: int,
    window: int,
    beams: BeamBounds | None = None,
    table_width: int | None = None,
) -> None:
    """Raise InvalidField or PromptTooLong, naming the public field; EngineRefused for a wrong `begun`.

    `window` is the number of prompt and output tokens one sequence may have. Without `beams`, only the
    request's own part of a search is checked. Without `table_width` (the numbers in a row), only the
    request's own part of a prompt table is checked.
    """
    if request.beam is not None:
        _beam(request.beam, request, beams or BeamBounds(limits.MAX_BEAM_WIDTH, 0))
    _prompt(request, vocab_size, window)
    _between("n", request.n, 1, limits.MAX_N)
    _between("logprobs", request.logprobs, 0, limits.MAX_LOGPROBS)
    _between("prompt_logprobs", request.prompt_logprobs, 0, limits.MAX_LOGPROBS)
    _prompt_logprobs(request)
    if request.timeout_s is not None and not request.timeout_s > 0:
        raise InvalidField("timeout", "must be positive.", joint=" ")
    _sampling(request.sampling, vocab_size)
    if request.begun:
        _begun(request, vocab_size, window)
    check_inputs(request, vocab_size=vocab_size, window=window, table_width=table_width)


def _beam(beam: Beam, request: EngineRequest, bounds: BeamBounds) -> None:
    most = min(limits.MAX_BEAM_WIDTH, bounds.width)
    _between("beam_width", beam.width, 2, most)
    _between("beam_groups", beam.groups, 1, beam.width)
    if beam.width % beam.groups:
        raise InvalidField(
            "beam_groups", f"must divide the beam width of {beam.width}; {beam.groups} does not.", joint=" "
        )
    if request.n > beam.width:
        raise InvalidField("n", f"must be at most the beam width of {beam.width}.", joint=" ")
    _between("length_penalty", beam.length_penalty, -limits.MAX_LENGTH_PENALTY, limits.MAX_LENGTH_PENALTY)
    _between("diversity_penalty", beam.diversity_penalty, 0, limits.MAX_DIVERSITY_PENALTY)
    room = limits.MAX_BEAM_CANDIDATES // beam.width - 1 - bounds.end_tokens
    if len(request.sampling.stop_token_ids) + len(request.sampling.stop_sequences) > room:
        raise InvalidField(
            "stop_token_ids",
            f"must hold at most {room} ids, stop_sequences counted, with a beam width of {beam.width}.",
            joint=" ",
        )


def _prompt(request: EngineRequest, vocab_size: int, window: int) -> None:
    length, max_tokens = len(request.token_ids), request.sampling.max_tokens
    if length == 0:
        raise InvalidField("prompt", "The prompt has no tokens.", joint=None)
    if length > window or (length == window and max_tokens != 0):
        raise PromptTooLong.for_window(window, length)
    _tokens("prompt", request.token_ids, num_prompt_ids(request, vocab_size))
    _between("max_tokens", max_tokens, 0, limits.MAX_TOKENS)
    if max_tokens is not None and length + max_tokens > window:
        raise PromptTooLong.beside_output(window, length, max_tokens)


def _prompt_logprobs(request: EngineRequest) -> None:
    """The log-probabilities of all choices go to the gateway in one message."""
    if request.prompt_logprobs is None:
        return
    listed = len(request.token_ids) * (1 + request.prompt_logprobs)
    if request.n * listed > limits.MAX_PROMPT_LOGPROBS:
        raise InvalidField(
            "prompt_logprobs",
            f"{request.n} x {listed} log-probabilities of the prompt are wanted, n counted; an answer holds "
            f"at most {limits.MAX_PROMPT_LOGPROBS}. Ask for fewer, or for fewer choices.",
        )


def _begun(request: EngineRequest, vocab_size: int, window: int) -> None:
    """Raise EngineRefused for a partial answer that no engine with these limits can have made."""
    room = window - len(request.token_ids)
    if request.sampling.max_tokens is not None:
        room = max(1, min(room, request.sampling.max_tokens))  # of 0 tokens one is sampled, and not kept
    open_choices = [choice for choice in request.begun if not choice.finished]
    if (
        request.beam is not None
        or len(request.begun) != request.n
        or not open_choices
        or any(len(choice.token_ids) >= room for choice in open_choices)
        or any(not 0 <= token < vocab_size for choice in open_choices for token in choice.token_ids)
    ):
        raise EngineRefused("The answer cannot go on: what there is of it does not fit the request.")


def _sampling(sampling: SamplingParams, vocab_size: int) -> None:
    _between("temperature", sampling.temperature, 0.0, math.inf)
    _between("top_k", sampling.top_k, 0, limits.MAX_TOKENS)
    _fraction("top_p", sampling.top_p)
    _fraction("typical_p", sampling.typical_p)
    _between("min_p", sampling.min_p, 0.0, 1.0)
    _fraction("top_p_decay", sampling.top_p_decay)
    _between("top_p_min", sampling.top_p_min, 0.0, 1.0)
    _between("top_p_reset_id", sampling.top_p_reset_id, -1, vocab_size - 1)
    _between("seed", sampling.seed, 0, limits.MAX_SEED)
    _between("min_tokens", sampling.min_tokens, 0, limits.MAX_TOKENS)
    for name in ("presence_penalty", "frequency_penalty"):
        _between(name, getattr(sampling, name), -limits.MAX_REPETITION_PENALTY, limits.MAX_REPETITION_PENALTY)
    if not 0 < sampling.repetition_penalty <= limits.MAX_REPETITION_PENALTY:
        raise InvalidField(
            "repetition_penalty", f"must be above 0 and at most {limits.MAX_REPETITION_PENALTY:g}.", joint=" "
        )
    if sampling.penalize_prompt and not sampling.repetition_sees_prompt:
        raise InvalidField("penalize_prompt", "needs repetition_sees_prompt.", joint=" ")
    _between("no_repeat_ngram", sampling.no_repeat_ngram, 0, limits.MAX_NO_REPEAT_NGRAM)
    if (loop := sampling.loop) is not None:
        _between("repetition_detection.most", loop.most, 1, limits.MAX_LOOP_TOKENS)
        _between("repetition_detection.least", loop.least, 1, loop.most)
        _between("repetition_detection.count", loop.count, 2, limits.MAX_LOOP_COUNT)
    _tokens("logit_bias", (token for token, _ in sampling.logit_bias), vocab_size)
    if not all(math.isfinite(bias) for _, bias in sampling.logit_bias):
        raise InvalidField("logit_bias", "values must be finite numbers.", joint=" ")
    _tokens("stop_token_ids", sampling.stop_token_ids, vocab_size)
    _tokens("allowed_token_ids", sampling.allowed_token_ids, vocab_size)
    _words("bad_words", sampling.bad_words, limits.MAX_BAD_WORD_TOKENS, vocab_size)
    if len(sampling.stop_sequences) > limits.MAX_STOP_SEQUENCES:
        raise InvalidField("stop_sequences", f"must hold at most {limits.MAX_STOP_SEQUENCES}.", joint=" ")
    _words("stop_sequences", sampling.stop_sequences, limits.MAX_STOP_SEQUENCE_TOKENS, vocab_size)


def _between(name: str, value: float | None, low: float, high: float) -> None:
    """Raise InvalidField unless `value` is None (unset), or finite and from `low` to `high`."""
    if value is None or (low <= value <= high and value != math.inf):
        return
    bound = f"at least {low:g}" if high == math.inf else f"from {low:g} to {high:g}"
    raise InvalidField(name, f"must be {bound}.", joint=" ")


def _fraction(name: str, value: float) -> None:
    if not 0 < value <= 1:
        raise InvalidField(name, "must be above 0 and at most 1.", joint=" ")


def _words(name: str, words: Iterable[tuple[int, ...]], longest: int, vocab_size: int) -> None:
    for word in words:
        if not word:
            raise InvalidField(name, "must not hold an empty word.", joint=" ")
        if len(word) > longest:
            raise InvalidField(name, f"must hold at most {longest} tokens each.", joint=" ")
        _tokens(name, word, vocab_size)


def _tokens(name: str, token_ids: Iterable[int], vocab_size: int) -> None:
    for token in token_ids:
        if not 0 <= token < vocab_size:
            raise InvalidField(name, f"holds a token id outside the vocabulary of {vocab_size}.", joint=" ")
