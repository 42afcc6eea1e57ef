"""Every output tensor, and how deltas become them: one response a token, or one of everything.

The same for all transports: what comes out are `InferResponse`s.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from serve_app.api.dialects.base import Choice
from serve_app.api.dialects.trtllm_inputs import NO_TOKEN
from serve_app.api.dialects.trtllm_row import Row
from serve_app.api.kserve.datatype import refused, tensor_of, tensor_of_strings
from serve_app.api.kserve.message import InferResponse
from serve_app.errors import InvalidField
from serve_app.types import ModelInfo, Perf, Tensor, TokenDelta, Usage

TEXT_OUTPUT: Final = "text_output"  # of prompts that are texts
CONTEXT: Final = "context_logits"
GENERATION: Final = "generation_logits"


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """One tensor. It is there if the input `flag` asks for it; None: always."""

    datatype: str
    shape: tuple[int, ...]  # the batch first; -1: any
    flag: str | None = None


_PERF: Final = "return_perf_metrics"
_PERF_INT64: Final = (
    "arrival_time_ns",
    "first_scheduled_time_ns",
    "first_token_time_ns",
    "last_token_time_ns",
)
_PERF_INT32: Final = (
    "kv_cache_alloc_new_blocks",
    "kv_cache_reused_blocks",
    "kv_cache_alloc_total_blocks",
    "total_accepted_draft_tokens",
    "total_draft_tokens",
)

OUTPUTS: Final[Mapping[str, Output]] = MappingProxyType(
    {
        "output_ids": Output(datatype="INT32", shape=(-1, -1, -1)),
        "sequence_length": Output(datatype="INT32", shape=(-1, -1)),
        "output_log_probs": Output(datatype="FP32", shape=(-1, -1, -1), flag="return_log_probs"),
        "cum_log_probs": Output(datatype="FP32", shape=(-1, -1), flag="return_log_probs"),
        CONTEXT: Output(datatype="FP32", shape=(-1, -1, -1), flag="return_context_logits"),
        GENERATION: Output(datatype="FP32", shape=(-1, -1, -1, -1), flag="return_generation_logits"),
        "num_input_tokens": Output(datatype="INT32", shape=(-1, 1), flag="return_num_input_tokens"),
        "num_output_tokens": Output(datatype="INT32", shape=(-1, -1), flag="return_num_output_tokens"),
        **{name: Output(datatype="INT64", shape=(-1, 1), flag=_PERF) for name in _PERF_INT64},
        **{name: Output(datatype="INT32", shape=(-1, 1), flag=_PERF) for name in _PERF_INT32},
        "acceptance_rate": Output(datatype="FP32", shape=(-1, 1), flag=_PERF),
    }
)


def wanted_outputs(row: Row, asked: Sequence[str] | None, model: str) -> tuple[str, ...]:
    """The outputs of a request: those asked for, or all that its flags ask for. Raises InvalidField."""
    if asked is None:
        return tuple(name for name, each in OUTPUTS.items() if each.flag is None or row.flag(each.flag))
    for name in asked:
        if name not in OUTPUTS:
            raise InvalidField(
                f"unexpected inference output '{name[:256]}' for model '{model[:256]}'", param=name[:256]
            )
        flag = OUTPUTS[name].flag
        if flag is not None and not row.flag(flag):
            raise refused(name, f"needs the input {flag} to be true")
    return tuple(asked)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What an answer repeats of its request, and what it shall tell."""

    model: str
    id: str | None
    outputs: tuple[str, ...]
    prompts: tuple[tuple[int, ...] | None, ...]  # one a row of the batch; None: it is a text
    sequences: int  # of each prompt: beams, or samples
    with_prompt: bool  # its tokens stand before those of the output
    with_text: bool
    pad_id: int | None  # as the client has it, or its end token; None: the model's


@dataclass(frozen=True, slots=True)
class _Sequence:
    """What an answer tells of one sequence, or of one token of it."""

    tokens: Sequence[int]
    logprobs: Sequence[float]
    cum_logprob: float
    generation_logits: npt.NDArray[np.float32] | None
    text: str
    prompt: Sequence[int]  # before the tokens


class Answers:
    """Makes the responses to one request."""

    def __init__(self, answer: Answer, info: ModelInfo) -> None:
        self._answer = answer
        self._version = info.version or "1"
        self._pad_id = info.pad_token_id or 0 if answer.pad_id is None else answer.pad_id
        self._cum_logprob = 0.0
        self._is_first = True

    def push(self, delta: TokenDelta) -> list[InferResponse]:
        """The responses of a delta of a stream, one a token; the last token's is final.

        An end without a token, as after a cancellation, is a final response without outputs.
        """
        found: list[InferResponse] = []
        count = len(delta.token_ids)
        logits = _array(delta.tensors.get(GENERATION))
        for i, token in enumerate(delta.token_ids):
            is_last = i == count - 1
            logprob = _logprob(delta, i)
            self._cum_logprob += logprob
            sequence = _Sequence(
                tokens=(token,),
                logprobs=(logprob,),
                cum_logprob=self._cum_logprob,
                generation_logits=None if logits is None else logits[i : i + 1],
                text=((delta.prompt_text or "") if self._is_first else "") + (delta.text if is_last else ""),
                prompt=self._prompt(0, delta.prompt_token_ids) if self._is_first else (),
            )
            context = _array(delta.tensors.get(CONTEXT)) if self._is_first else None
            perf = delta.perf if is_last else None
            outputs = self._outputs([[sequence]], [context], [perf], [delta.usage.prompt_tokens])
            found.append(self._response(outputs, is_final=is_last and delta.finish is not None))
            self._is_first = False
        if not count and delta.finish is not None:
            found.append(self._response({}, is_final=True))
        return found

    def whole(self, choices: Iterable[Choice], usage: Usage) -> InferResponse:
        """The response of an answer that is not streamed; `choices` in the order of their index."""
        listed, n = list(choices), self._answer.sequences
        rows = [listed[start : start + n] for start in range(0, len(listed), n)]
        lengths = [usage.prompt_tokens if prompt is None else len(prompt) for prompt in self._answer.prompts]
        outputs = self._outputs(
            [[self._sequence(i, choice) for choice in row] for i, row in enumerate(rows)],
            [_joined(row[0].tensors, CONTEXT) for row in rows],
            [row[0].perf for row in rows],
            lengths,
        )
        return self._response(outputs, is_final=True)

    def _sequence(self, row: int, choice: Choice) -> _Sequence:
        logprobs = [each.logprob or 0.0 for each in choice.logprobs]
        return _Sequence(
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

    def _outputs(
        self,
        rows: Sequence[Sequence[_Sequence]],
        context: Sequence[npt.NDArray[np.float32] | None],
        perf: Sequence[Perf | None],
        prompt_lengths: Sequence[int],
    ) -> dict[str, Tensor]:
        """All wanted tensors that have something to tell; sequences of a row padded on their right."""
        outputs: dict[str, Tensor] = {}
        for name in self._answer.outputs:
            array = self._output(name, rows, context, perf, prompt_lengths)
            if array is not None:
                outputs[name] = tensor_of(OUTPUTS[name].datatype, array, array.shape)
        if self._answer.with_text:
            texts = [sequence.text for row in rows for sequence in row]
            outputs[TEXT_OUTPUT] = tensor_of_strings(texts, (len(rows), len(rows[0])))
        return outputs

    def _output(
        self,
        name: str,
        rows: Sequence[Sequence[_Sequence]],
        context: Sequence[npt.NDArray[np.float32] | None],
        perf: Sequence[Perf | None],
        prompt_lengths: Sequence[int],
    ) -> npt.NDArray[Any] | None:
        match name:
            case "output_ids":
                return _padded([[[*s.prompt, *s.tokens] for s in row] for row in rows], self._pad_id)
            case "sequence_length":
                return np.asarray([[len(s.prompt) + len(s.tokens) for s in row] for row in rows])
            case "output_log_probs":
                return _padded([[s.logprobs for s in row] for row in rows], 0.0)
            case "cum_log_probs":
                return np.asarray([[s.cum_logprob for s in row] for row in rows])
            case "context_logits":
                return None if context[0] is None else _stacked([context])[0]
            case "generation_logits":
                return _stacked([[s.generation_logits for s in row] for row in rows])
            case "num_input_tokens":
                return np.asarray([[length] for length in prompt_lengths])
            case "num_output_tokens":
                return np.asarray([[len(s.tokens) for s in row] for row in rows])
        return None if perf[0] is None else np.asarray([[_measured(name, each)] for each in perf])

    def _response(self, outputs: dict[str, Tensor], *, is_final: bool) -> InferResponse:
        answer = self._answer
        return InferResponse(
            model=answer.model, version=self._version, id=answer.id, outputs=outputs, is_final=is_final
        )


def _logprob(delta: TokenDelta, i: int) -> float:
    return (delta.logprobs[i].logprob or 0.0) if delta.logprobs else 0.0


def _padded(rows: Sequence[Sequence[Sequence[float]]], pad: float) -> npt.NDArray[Any]:
    """Rows of sequences of numbers as one array, the shorter ones filled on their right."""
    width = max((len(sequence) for row in rows for sequence in row), default=0)
    return np.asarray([[[*s, *[pad] * (width - len(s))] for s in row] for row in rows]).reshape(
        len(rows), len(rows[0]), width
    )


def _stacked(
    rows: Sequence[Sequence[npt.NDArray[np.float32] | None]],
) -> npt.NDArray[np.float32]:
    """Rows of matrices as one array, the lower ones filled with zeros below."""
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
    """One number of how a sequence was served, under its name among the outputs."""
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
