"""What the fields of MindIE's bodies do, in words: for the OpenAPI document and docs/protocols.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from serve_app import limits
from serve_app.api.dialects.chat.told import chat_fields
from serve_app.api.dialects.mindie.fields import MAX_ALL_STOP_CHARS
from serve_app.api.protocol.field_doc import FieldDoc
from serve_app.config import MindieConfig

_MINDIE: Final = MindieConfig()

CHAT: Final[Mapping[str, FieldDoc]] = {
    **chat_fields(
        "messages.tool_calls",
        "stream",
        "repetition_penalty",
        "n",
        "logprobs",
        "top_logprobs",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "chat_template_kwargs",
        "stream_options",
    ),
    "model": FieldDoc(
        "the endpoint that answers; an unknown one is a 422",
        accepts=(
            f"1 to {limits.MAX_MODEL_NAME_CHARS} of A-Z a-z 0-9 . _ -, beginning and ending with a "
            "letter or digit; required"
        ),
    ),
    "messages": FieldDoc(
        "any order of roles",
        accepts=(
            f"a list of 1 to {limits.MAX_MESSAGES} messages, of 1 to {_MINDIE.max_input_chars} characters "
            "together (setting `mindie.max_input_chars`); required"
        ),
    ),
    "messages.role": FieldDoc(
        "",
        accepts="system, user, assistant or tool",
    ),
    "messages.content": FieldDoc(
        "parts are joined by line breaks",
        accepts=(
            f"a string or a list of up to {limits.MAX_CONTENT_PARTS} text parts, not empty; "
            "absent, null or empty"
            " beside `tool_calls`"
        ),
    ),
    "messages.tool_call_id": FieldDoc(
        "the call that is answered",
        accepts="a string, not empty; required of role tool",
    ),
    "max_tokens": FieldDoc(
        "default that of the model",
        accepts=", up to the model's `maxIterTimes` (setting `mindie.clamp_max_tokens` lowers it instead)",
    ),
    "presence_penalty": FieldDoc("sees the output", default=0.0),
    "frequency_penalty": FieldDoc("sees the output", default=0.0),
    "seed": FieldDoc("default drawn anew"),
    "temperature": FieldDoc(accepts=" (setting `mindie.allow_zero_temperature`: 0 is greedy)", default=1.0),
    "top_p": FieldDoc(default=1.0),
    "top_k": FieldDoc("default off; −1 and 0 are off, 1 is greedy"),
    "stop": FieldDoc(
        "default none; ends the answer before the match, with the word stop_sequence",
        accepts=f"; {MAX_ALL_STOP_CHARS} characters in all",
    ),
    "stop_token_ids": FieldDoc("default none"),
    "include_stop_str_in_output": FieldDoc(default=False),
    "skip_special_tokens": FieldDoc(default=True),
    "ignore_eos": FieldDoc(default=False),
    "best_of": FieldDoc(
        "default `n`",
        accepts="; at least `n`, equal to it in a stream",
    ),
    "use_beam_search": FieldDoc(
        "the best hypotheses of a search",
        accepts=f"; true needs `n` or `best_of` from 2 to {limits.MAX_BEAM_WIDTH}",
        default=False,
    ),
    "response_format": FieldDoc(
        "default text; the answer matches",
        accepts="an object: `type` is text, json_object, or json_schema with `json_schema`",
    ),
    "stream_options.include_usage": FieldDoc("the last chunk has `usage`", default=False),
    "priority": FieldDoc("1 is the highest", default=5),
    "timeout": FieldDoc("seconds; default the operator's"),
}

TEXT: Final[Mapping[str, FieldDoc]] = {
    "id": FieldDoc(
        "default the header `X-Request-Id`, else made; repeated in every event",
        accepts=" of A-Z a-z 0-9 _ -",
    ),
    "text_input": FieldDoc(
        "goes to the model raw",
        accepts=(
            f"a string of 1 to {_MINDIE.max_input_chars} characters (setting "
            "`mindie.max_input_chars`); required"
        ),
    ),
    "parameters": FieldDoc(
        "default empty; its members follow",
        accepts="an object",
    ),
    "parameters.details": FieldDoc("`details` in every event", default=False),
    "parameters.do_sample": FieldDoc(
        ", greedy (setting `mindie.do_sample_default`: inferred)", default=False
    ),
    "parameters.max_new_tokens": FieldDoc(
        ", or `maxIterTimes` where that is less", accepts=", up to the model's `maxIterTimes`", default=20
    ),
    "parameters.repetition_penalty": FieldDoc(
        "sees prompt and output (setting `mindie.repetition_penalty_scope`)", default=1.0
    ),
    "parameters.seed": FieldDoc("default drawn anew; needs `do_sample`"),
    "parameters.temperature": FieldDoc("needs `do_sample`", default=1.0),
    "parameters.top_k": FieldDoc(
        ", off; needs `do_sample`", accepts=", below the size of the vocabulary", default=0
    ),
    "parameters.top_p": FieldDoc("needs `do_sample`", default=1.0),
    "parameters.batch_size": FieldDoc("a hint that changes no token; events tell the real one"),
    "parameters.typical_p": FieldDoc("default off; needs `do_sample`"),
    "parameters.watermark": FieldDoc("green-list bias, greedy or not", default=False),
    "parameters.perf_stat": FieldDoc("with `details`, the costs of every token", default=False),
    "parameters.priority": FieldDoc("1 is the highest", default=5),
    "parameters.timeout": FieldDoc("seconds; default the operator's"),
    "parameters.stop": FieldDoc(
        "default none",
        accepts=f"; {MAX_ALL_STOP_CHARS} characters in all",
    ),
    "parameters.stop_token_ids": FieldDoc("default none"),
}

_INSIDE: Final = "parameters."
PARAMETERS: Final[Mapping[str, FieldDoc]] = {
    name.removeprefix(_INSIDE): told for name, told in TEXT.items() if name.startswith(_INSIDE)
}

CONTINUE: Final[Mapping[str, FieldDoc]] = {
    "inputs": TEXT["text_input"],
    "stream": FieldDoc("of `/infer` and `/`: an event a token", default=False),
    "parameters": TEXT["parameters"],
    **{
        f"{_INSIDE}{name}": told
        for name, told in PARAMETERS.items()
        if name not in ("details", "do_sample", "max_new_tokens", "seed", "top_k", "batch_size", "perf_stat")
    },
    "parameters.details": FieldDoc(
        "`details` of the answer, and log-probabilities of TGI's tokens", default=False
    ),
    "parameters.do_sample": FieldDoc(
        "default false, greedy (setting `mindie.do_sample_default`: inferred); of TGI's routes inferred from "
        "the other fields"
    ),
    "parameters.max_new_tokens": FieldDoc("more than fits is clamped", default=20),
    "parameters.seed": FieldDoc("default drawn anew; the details tell it"),
    "parameters.top_k": FieldDoc(", off; needs `do_sample`", default=0),
    "parameters.batch_size": FieldDoc("a hint that changes no token"),
    "parameters.perf_stat": FieldDoc("checked, no effect: events tell their times anyway"),
    "parameters.frequency_penalty": FieldDoc("sees the output", default=0.0),
    "parameters.ignore_eos": FieldDoc("goes on behind the end token", default=False),
    "parameters.best_of": FieldDoc(
        "so many are drawn, the likeliest is kept", accepts="; 1 in a stream", default=1
    ),
    "parameters.truncate": FieldDoc("default none; the last so many tokens of the prompt"),
    "parameters.return_full_text": FieldDoc("the prompt before the text", default=False),
    "parameters.decoder_input_details": FieldDoc(
        "the prompt's tokens in the details", accepts="; not in a stream", default=False
    ),
    "parameters.top_n_tokens": FieldDoc(
        "alternatives of each token, of TGI's routes with `details`", default=0
    ),
    "parameters.grammar": FieldDoc(
        "default none; the answer matches", accepts="an object: `type` is json or regex, with its `value`"
    ),
    "parameters.adapter_id": FieldDoc("default none; an adapter of the model"),
}
CONTINUE_PARAMETERS: Final[Mapping[str, FieldDoc]] = {
    name.removeprefix(_INSIDE): told for name, told in CONTINUE.items() if name.startswith(_INSIDE)
}

STOP: Final[Mapping[str, FieldDoc]] = {
    "id": FieldDoc(
        "ends the caller's newest running request of this id",
        accepts=" of A-Z a-z 0-9 _ -; required",
    ),
}
