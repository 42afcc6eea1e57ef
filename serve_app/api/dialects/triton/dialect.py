"""TensorRT-LLM's `InferenceRequest`: named tensors in, generation requests and the form of their answer out.

The same for all transports. With the `InferRequest` of an HTTP body or a gRPC message, a transport does this:

    parsed = parse(request, config, can_stream=...)      # InvalidField; UnsupportedField: cannot stream
    if isinstance(parsed, Stop): ...                     # end the running request of parsed.id
    call = parsed.call(endpoint, renderer, stream=...)   # `Call`, as every dialect makes one
    answers = ResponseBuilder(parsed.answer, info)               # info: of the model that answers
    answers.push(row, delta) -> list[InferResponse]      # streaming: one a token, the last `is_final`
    answers.several(choices) -> list[InferResponse]      # otherwise, where there may be many: one a sequence
    answers.whole(choices) -> InferResponse              # and where there may not: one

Every row of a batch is a request. Depends neither on JSON or protobuf nor on the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from serve_app.api.dialects.triton.answer.output_table import IDS, wanted_outputs
from serve_app.api.dialects.triton.answer.outputs import ResponseForm
from serve_app.api.dialects.triton.request.batch import check_alike, rows_of
from serve_app.api.dialects.triton.request.fit import Fit
from serve_app.api.dialects.triton.request.guides import read_guide
from serve_app.api.dialects.triton.request.inputs import NO_TOKEN, TEXT_INPUT
from serve_app.api.dialects.triton.request.request import generate_request
from serve_app.api.dialects.triton.request.row import BatchRow, own_names
from serve_app.api.dialects.triton.role import Role
from serve_app.api.kserve.datatype import booleans, check_datatype
from serve_app.api.kserve.message import InferRequest, engine_priority, timeout_s
from serve_app.api.protocol.dialect import Call, Renderer
from serve_app.config import TrtllmConfig
from serve_app.endpoints.endpoint import Task
from serve_app.errors import InvalidField, UnsupportedField
from serve_app.types import GenerateRequest, ModelInfo, Tensor

# Names of fields in a replica's errors -> names of tensors.
_TENSORS: Final[Mapping[str, str]] = {
    "prompt": "input_ids",
    "max_tokens": "request_output_len",
    "beam_width": "beam_width",
    "length_penalty": "len_penalty",
    "diversity_penalty": "beam_search_diversity_rate",
    "n": "num_return_sequences",
    "top_k": "runtime_top_k",
    "top_p": "runtime_top_p",
    "top_p_min": "runtime_top_p_min",
    "top_p_decay": "runtime_top_p_decay",
    "top_p_reset_id": "runtime_top_p_reset_ids",
    "seed": "random_seed",
    "min_tokens": "min_length",
    "no_repeat_ngram": "no_repeat_ngram_size",
    "stop_token_ids": "end_id",
    "stop_sequences": "stop_words_list",
    "bad_words": "bad_words_list",
    "stop": "stop_words_list",
    "bias": "embedding_bias",
    "biased_words": "embedding_bias_words",
    "prompt_table": "prompt_embedding_table",
    "adapter": "lora_task_id",
    "draft": "draft_input_ids",
    "echo": "exclude_input_in_output",
    "logprobs": "return_log_probs",
    "context_logits": "return_context_logits",
    "generation_logits": "return_generation_logits",
    "response_format": "guided_decoding_guide",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """A request to end the running request with this id. This request gets an empty answer."""

    model: str
    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Inference:
    """A checked request."""

    version: str | None
    requests: tuple[GenerateRequest, ...]  # one for each row of the batch
    streaming: bool  # the client wants a response for each token
    timeout_s: float | None
    answer: ResponseForm
    fit: Callable[[GenerateRequest, ModelInfo], GenerateRequest]
    names: Mapping[str, str] = field(default_factory=dict)  # the replica's name of a field -> the client's
    ignored: tuple[str, ...] = ()  # keywords of a schema that are not enforced

    def call(self, endpoint: str, renderer: Callable[[str, ModelInfo], Renderer], *, stream: bool) -> Call:
        """The call to `endpoint`, which the model's name stands for. `stream`: the transport gets deltas."""
        return Call(
            model=endpoint,
            task=Task.COMPLETIONS,
            version=self.version,
            client_id=self.answer.id,
            requests=self.requests,
            stream=stream,
            timeout_s=self.timeout_s,
            ignored=self.ignored,  # unknown tensors are refused, and unknown parameters ignored
            renderer=renderer,
            names=self.names,
            fit=self.fit,
            shows_ids=IDS if IDS in self.answer.outputs else None,
        )


def parse(
    request: InferRequest, config: TrtllmConfig, *, can_stream: bool, role: Role = Role.TENSORS
) -> Inference | Stop:
    """The checked form of `request`. `can_stream`: whether the transport can carry more than one response.

    `role`: the part of the model that its name stands for. Raises InvalidField, which names the tensor, or
    PromptTooLong. Raises UnsupportedField for a stream over a transport that can carry only one response.
    """
    tensors, names = own_names(request.inputs, request.model)
    if _is_stop(tensors):
        if request.id is None:
            raise InvalidField("stop", "needs the id of the request that is to end")
        return Stop(model=request.model, id=request.id)
    with_text = TEXT_INPUT in tensors
    if role is Role.ENSEMBLE and not with_text:
        raise InvalidField(TEXT_INPUT, "is required")
    rows = [
        BatchRow(each, names) for each in rows_of(tensors, names, TEXT_INPUT if with_text else "input_ids")
    ]
    check_alike(rows)
    row = rows[0]
    streaming = row.flag("streaming")
    _check_stream(row, streaming, can_stream)
    excludes = row.choice("exclude_input_in_output")
    # As in the product, a stream never repeats the prompt.
    with_prompt = not (config.exclude_input_in_output if excludes is None else excludes) and not streaming
    priority = engine_priority(request.parameters)
    forms = [read_guide(each) for each in rows]
    requests = tuple(
        generate_request(
            each,
            config,
            grammar=form.grammar,
            priority=priority,
            streaming=streaming,
            with_prompt=with_prompt,
        )
        for each, form in zip(rows, forms, strict=True)
    )
    sequences = requests[0].n
    # All beams are in one response, because they change ranks together.
    is_split = can_stream and requests[0].beam is None and len(rows) * sequences > 1
    outputs = wanted_outputs(
        row, request.outputs, request.model, with_text=with_text, is_split=is_split, role=role
    )
    pad_id = _pad_id(row)
    answer = ResponseForm(
        model=request.model,
        id=request.id,
        outputs=outputs,
        prompts=tuple(each.prompt.token_ids for each in requests),
        sequences=sequences,
        is_split=is_split,
        with_prompt=with_prompt,
        pad_id=pad_id,
    )
    return Inference(
        version=request.version,
        requests=requests,
        streaming=streaming,
        timeout_s=timeout_s(request.parameters),
        answer=answer,
        # The preprocessing of an ensemble sets one end token, so there is no other.
        fit=Fit(BatchRow({}, names), has_one_end=role is Role.ENSEMBLE and "end_id" not in row),
        names={ours: names.get(tensor, tensor) for ours, tensor in _TENSORS.items()},
        ignored=tuple(dict.fromkeys(name for form in forms for name in form.ignored)),
    )


def _check_stream(row: BatchRow, streaming: bool, can_stream: bool) -> None:
    """Raises InvalidField or UnsupportedField."""
    if not streaming:
        return
    name = row.client_name("streaming")
    if not can_stream:
        raise UnsupportedField(
            name,
            "must be false here, where a request has one response; "
            "generate_stream and ModelStreamInfer stream",
        )
    if (row.integer("beam_width") or 1) > 1:
        raise row.refused("streaming", "must be false with a beam_width above 1")


def _is_stop(tensors: Mapping[str, Tensor]) -> bool:
    """Whether the request is to end another one. If so, all tensors but `stop` are ignored."""
    tensor = tensors.get("stop")
    if tensor is None:
        return False
    check_datatype("stop", tensor, "BOOL")
    return any(booleans("stop", tensor))


def _pad_id(row: BatchRow) -> int | None:
    """The client's padding token, else its end token; None: the model's own padding token is used."""
    given = [each for each in (row.integer("pad_id"), row.integer("end_id")) if each not in (None, NO_TOKEN)]
    return given[0] if given else None
