"""How deltas become output tensors: one response for each token, for each sequence, or for everything.

Every transport gets the same `InferResponse`s.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from serve_app.api.dialects.triton.answer.output_table import (
    CONTEXT,
    GENERATION,
    OUTPUTS,
    ROW,
    SEQUENCE,
    TEXT,
)
from serve_app.api.dialects.triton.request.inputs import NO_TOKEN
from serve_app.api.kserve.datatype import tensor_of, tensor_of_strings
from serve_app.api.kserve.message import InferResponse
from serve_app.api.protocol.dialect import Choice
from serve_app.types import ModelInfo, Perf, Tensor, TokenDelta


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseForm:
    """The parts of a request that shape its answer."""

    model: str
    id: str | None
    outputs: tuple[str, ...]
    prompts: tuple[
        tuple[int, ...] | None, ...
    ]  # the ids of each row of the batch; None: the prompt is a text
    sequences: int  # the number of beams or samples of each prompt
    is_split: bool  # of many responses, each is about one sequence
    with_prompt: bool  # the tokens of the prompt come before those of the output
    pad_id: int | None  # the client's, or its end token; None: the model's


@dataclass(frozen=True, slots=True)
class _Sequence:
    """The part of a response that is about one sequence, or about one token of a sequence."""

    index: int  # among the sequences of the row
    tokens: Sequence[int]
    logprobs: Sequence[float]
    cum_logprob: float
    generation_logits: npt.NDArray[np.float32] | None
    text: str
    prompt: Sequence[int] = ()  # precedes the tokens


@dataclass(frozen=True, slots=True)
class _Row:
    """The part of a response that is about one row of the batch, or about some of the row's sequences."""

    index: int
    sequences: Sequence[_Sequence]
    num_prompt_tokens: int
    context_logits: npt.NDArray[np.float32] | None
    perf: Perf | None


@dataclass(slots=True)
class _Open:
    """The progress of one row of a stream."""

    running: int  # the number of sequences that have not ended
    cum_logprobs: dict[int, float] = field(default_factory=dict)
    context_logits: npt.NDArray[np.float32] | None = None


class ResponseBuilder:
    """Makes the responses to one request."""

    def __init__(self, answer: ResponseForm, info: ModelInfo) -> None:
        self._answer = answer
        self._version = info.version or "1"
        self._pad_id = info.pad_token_id or 0 if answer.pad_id is None else answer.pad_id
        self._open = [_Open(answer.sequences) for _ in answer.prompts]
        self._running = answer.sequences * len(answer.prompts)

    def push(self, row: int, delta: TokenDelta) -> list[InferResponse]:
        """The responses to a row's delta in a stream, one for each token. The very last one is final.

        The first and the last response of a row contain the logits of the prompt. An end without a token,
        as after a cancellation, is a final response without outputs.
        """
        found: list[InferResponse] = []
        state, count = self._open[row], len(delta.token_ids)
        logits = _array(delta.tensors.get(GENERATION))
        context = _array(delta.tensors.get(CONTEXT))
        if context is not None:
            state.context_logits = context
        if delta.finish is not None:
            state.running -= 1
            self._running -= 1
        for i, token in enumerate(delta.token_ids):
            is_last = i == count - 1 and delta.finish is not None
            is_rows_last = is_last and not state.running
            logprob = _logprob(delta, i)
            cum_logprob = state.cum_logprobs.get(delta.index, 0.0) + logprob
            state.cum_logprobs[delta.index] = cum_logprob
            sequence = _Sequence(
                index=delta.index,
                tokens=(token,),
                logprobs=(logprob,),
                cum_logprob=cum_logprob,
                generation_logits=None if logits is None else logits[i : i + 1],
                text=delta.text if i == count - 1 else "",
            )
            told = _Row(
                index=row,
                sequences=[sequence],
                num_prompt_tokens=delta.usage.prompt_tokens,
                context_logits=state.context_logits if is_rows_last else context if i == 0 else None,
                perf=delta.perf if i == count - 1 else None,
            )
            found.append(self._response(self._outputs([told]), is_final=is_last and not self._running))
        if not count and delta.finish is not None and not self._running:
            found.append(self._response({}, is_final=True))
        return found

    def several(self, choices: Iterable[Choice]) -> list[InferResponse]:
        """The responses of an answer that is not streamed, if the transport can carry many."""
        rows = self._rows(choices)
        if not self._answer.is_split:
            return [self._response(self._outputs(rows), is_final=True)]
        found: list[InferResponse] = []
        for row in rows:
            for i, sequence in enumerate(row.sequences):
                is_last = i == len(row.sequences) - 1
                context = row.context_logits if i == 0 or is_last else None
                told = replace(row, sequences=[sequence], context_logits=context)
                is_final = is_last and row is rows[-1]
                found.append(self._response(self._outputs([told]), is_final=is_final))
        return found

    def whole(self, choices: Iterable[Choice]) -> InferResponse:
        """The single response of an answer without a stream. `choices` are in the order of their index."""
        return self._response(self._outputs(self._rows(choices)), is_final=True)

    def _rows(self, choices: Iterable[Choice]) -> list[_Row]:
        listed, n = list(choices), self._answer.sequences
        return [self._row(start // n, listed[start : start + n]) for start in range(0, len(listed), n)]

    def _row(self, index: int, choices: Sequence[Choice]) -> _Row:
        prompt = self._answer.prompts[index]
        return _Row(
            index=index,
            sequences=[self._sequence(index, i, choice) for i, choice in enumerate(choices)],
            num_prompt_tokens=choices[0].num_prompt_tokens if prompt is None else len(prompt),
            context_logits=_joined(choices[0].tensors, CONTEXT),
            perf=choices[0].perf,
        )

    def _sequence(self, row: int, index: int, choice: Choice) -> _Sequence:
        logprobs = [each.logprob or 0.0 for each in choice.logprobs]
        return _Sequence(
            index=index,
            tokens=choice.token_ids,
            logprobs=logprobs,
            cum_logprob=sum(logprobs),
            generation_logits=_joined(choice.tensors, GENERATION),
            text=(choice.prompt_text or "") + choice.text,
            prompt=self._prompt(row, choice.prompt_token_ids),
        )

    def _prompt(self, row: int, told: Sequence[int] | None) -> Sequence[int]:
        if not self._answer.with_prompt:
            return ()
        return self._answer.prompts[row] or told or ()

    def _outputs(self, rows: Sequence[_Row]) -> dict[str, Tensor]:
        """All wanted tensors that are not empty. The sequences of a row are padded on their right."""
        outputs: dict[str, Tensor] = {}
        for name in self._answer.outputs:
            if name == TEXT:
                texts = [sequence.text for row in rows for sequence in row.sequences]
                outputs[TEXT] = tensor_of_strings(texts, (len(texts),))
                continue
            array = self._output(name, rows)
            if array is not None:
                outputs[name] = tensor_of(OUTPUTS[name].datatype, array, array.shape)
        return outputs

    def _output(self, name: str, rows: Sequence[_Row]) -> npt.NDArray[Any] | None:
        match name:
            case "output_ids":
                return _padded(
                    [[[*s.prompt, *s.tokens] for s in row.sequences] for row in rows], self._pad_id
                )
            case "sequence_length":
                return np.asarray([[len(s.prompt) + len(s.tokens) for s in row.sequences] for row in rows])
            case "output_log_probs":
                return _padded([[s.logprobs for s in row.sequences] for row in rows], 0.0)
            case "cum_log_probs":
                return np.asarray([[s.cum_logprob for s in row.sequences] for row in rows])
            case "context_logits":
                context = [row.context_logits for row in rows]
                return None if context[0] is None else _stacked([context])[0]
            case "generation_logits":
                return _stacked([[s.generation_logits for s in row.sequences] for row in rows])
            case "num_input_tokens":
                return np.asarray([[row.num_prompt_tokens] for row in rows])
            case "num_output_tokens":
                return np.asarray([[len(s.tokens) for s in row.sequences] for row in rows])
        if name == ROW:
            return np.asarray([[row.index] for row in rows])
        if name == SEQUENCE:
            return np.asarray([[s.index for s in row.sequences] for row in rows])
        perf = [row.perf for row in rows]
        return None if perf[0] is None else np.asarray([[_measured(name, each)] for each in perf])

    def _response(self, outputs: dict[str, Tensor], *, is_final: bool) -> InferResponse:
        answer = self._answer
        return InferResponse(
            model=answer.model, version=self._version, id=answer.id, outputs=outputs, is_final=is_final
        )


def _logprob(delta: TokenDelta, i: int) -> float:
    return (delta.logprobs[i].logprob or 0.0) if delta.logprobs else 0.0


def _padded(rows: Sequence[Sequence[Sequence[float]]], pad: float) -> npt.NDArray[Any]:
    """Rows, each a list of sequences, as one array. Shorter sequences are filled on their right."""
    width = max((len(sequence) for row in rows for sequence in row), default=0)
    return np.asarray([[[*s, *[pad] * (width - len(s))] for s in row] for row in rows]).reshape(
        len(rows), len(rows[0]), width
    )


def _stacked(
    rows: Sequence[Sequence[npt.NDArray[np.float32] | None]],
) -> npt.NDArray[np.float32]:
    """Rows, each a list of matrices, as one array. Shorter matrices are filled with zeros below."""
    found = [array for row in rows for array in row if array is not None]
    height = max((len(array) for array in found), default=0)
    width = found[0].shape[1] if found else 0
    stack = np.zeros((len(rows), len(rows[0]), height, width), np.float32)
    for i, row in enumerate(rows):
        for j, array in enumerate(row):
            if array is not None:
                stack[i, j, : len(array)] = array
    return stack


def _array(tensor: Tensor | None) -> npt.NDArray[np.float32] | None:
    return None if tensor is None else np.frombuffer(tensor.data, "<f4").reshape(tensor.shape)


def _joined(tensors: Sequence[Mapping[str, Tensor]], name: str) -> npt.NDArray[np.float32] | None:
    found = [array for each in tensors if (array := _array(each.get(name))) is not None]
    return np.concatenate(found) if found else None


def _measured(name: str, perf: Perf | None) -> float:
    """One performance figure of a sequence, by the name of its output."""
    if perf is None:
        return NO_TOKEN
    drafted, accepted = perf.draft_tokens, perf.accepted_tokens
    return {
        "arrival_time_ns": perf.arrival_ns,
        "first_scheduled_time_ns": perf.first_scheduled_ns,
        "first_token_time_ns": perf.first_token_ns,
        "last_token_time_ns": perf.last_token_ns,
        "kv_cache_alloc_new_blocks": perf.blocks_new,
        "kv_cache_reused_blocks": perf.blocks_reused,
        "kv_cache_alloc_total_blocks": perf.blocks_total,
        "total_accepted_draft_tokens": accepted,
        "total_draft_tokens": drafted,
        "acceptance_rate": accepted / drafted if drafted else 0.0,
    }[name]
