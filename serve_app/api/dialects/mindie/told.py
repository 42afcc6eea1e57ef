"""What the fields of MindIE's bodies do, in words: for the OpenAPI document and docs/protocols.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from serve_app import limits
from serve_app.api.dialects.chat.told import chat_fields
from serve_app.api.dialects.mindie.fields import MAX_ALL_STOP_CHARS
from serve_app.api.edge.told import Told
from serve_app.config import MindieConfig

_MINDIE: Final = MindieConfig()

CHAT: Final[Mapping[str, Told]] = {
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
    "model": Told(
        "the endpoint that answers; an unknown one is a 422",
        accepts=(
            f"1 to {limits.MAX_MODEL_NAME_CHARS} of A-Z a-z 0-9 . _ -, beginning and ending with a "
            "letter or digit; required"
        ),
    ),
    "messages": Told(
        "any order of roles",
        accepts=(
            f"a list of 1 to {limits.MAX_MESSAGES} messages, of 1 to {_MINDIE.max_input_chars} characters "
            "together (setting `mindie.max_input_chars`); required"
        ),
    ),
    "messages.role": Told(
        "",
        accepts="system, user, assistant or tool",
    ),
    "messages.content": Told(
        "parts are joined by line breaks",
        accepts=(
            f"a string or a list of up to {limits.MAX_CONTENT_PARTS} text parts, not empty; "
            "absent, null or empty"
            " beside `tool_calls`"
        ),
    ),
    "messages.tool_call_id": Told(
        "the call that is answered",
        accepts="a string, not empty; required of role tool",
    ),
    "max_tokens": Told(
        "default that of the model",
        accepts=", up to the model's `maxIterTimes` (setting `mindie.clamp_max_tokens` lowers it instead)",
    ),
    "presence_penalty": Told("sees the output", default=0.0),
    "frequency_penalty": Told("sees the output", default=0.0),
    "seed": Told("default drawn anew"),
    "temperature": Told(accepts=" (setting `mindie.allow_zero_temperature`: 0 is greedy)", default=1.0),
    "top_p": Told(default=1.0),
    "top_k": Told("default off; −1 and 0 are off, 1 is greedy"),
    "stop": Told(
        "default none; ends the answer before the match, with the word stop_sequence",
        accepts=f"; {MAX_ALL_STOP_CHARS} characters in all",
    ),
    "stop_token_ids": Told("default none"),
    "include_stop_str_in_output": Told(default=False),
    "skip_special_tokens": Told(default=True),
    "ignore_eos": Told(default=False),
    "best_of": Told(
        "default `n`",
        accepts="; at least `n`, equal to it in a stream",
    ),
    "use_beam_search": Told(
        "the best hypotheses of a search",
        accepts=f"; true needs `n` or `best_of` from 2 to {limits.MAX_BEAM_WIDTH}",
        default=False,
    ),
    "response_format": Told(
        "default text; the answer matches",
        accepts="an object: `type` is text, json_object, or json_schema with `json_schema`",
    ),
    "stream_options.include_usage": Told("the last chunk has `usage`", default=False),
    "priority": Told("1 is the highest", default=5),
    "timeout": Told("seconds; default the operator's"),
}

TEXT: Final[Mapping[str, Told]] = {
    "id": Told(
        "default the header `X-Request-Id`, else made; repeated in every event",
        accepts=" of A-Z a-z 0-9 _ -",
    ),
    "text_input": Told(
        "goes to the model raw",
        accepts=(
            f"a string of 1 to {_MINDIE.max_input_chars} characters (setting "
            "`mindie.max_input_chars`); required"
        ),
    ),
    "parameters": Told(
        "default empty; its members follow",
        accepts="an object",
    ),
    "parameters.details": Told("`details` in every event", default=False),
    "parameters.do_sample": Told(", greedy (setting `mindie.do_sample_default`: inferred)", default=False),
    "parameters.max_new_tokens": Told(
        ", or `maxIterTimes` where that is less", accepts=", up to the model's `maxIterTimes`", default=20
    ),
    "parameters.repetition_penalty": Told(
        "sees prompt and output (setting `mindie.repetition_penalty_scope`)", default=1.0
    ),
    "parameters.seed": Told("default drawn anew; needs `do_sample`"),
    "parameters.temperature": Told("needs `do_sample`", default=1.0),
    "parameters.top_k": Told(
        ", off; needs `do_sample`", accepts=", below the size of the vocabulary", default=0
    ),
    "parameters.top_p": Told("needs `do_sample`", default=1.0),
    "parameters.batch_size": Told("a hint that changes no token; events tell the real one"),
    "parameters.typical_p": Told("default off; needs `do_sample`"),
    "parameters.watermark": Told("green-list bias, greedy or not", default=False),
    "parameters.perf_stat": Told("with `details`, the costs of every token", default=False),
    "parameters.priority": Told("1 is the highest", default=5),
    "parameters.timeout": Told("seconds; default the operator's"),
    "parameters.stop": Told(
        "default none",
        accepts=f"; {MAX_ALL_STOP_CHARS} characters in all",
    ),
    "parameters.stop_token_ids": Told("default none"),
}

_INSIDE: Final = "parameters."
PARAMETERS: Final[Mapping[str, Told]] = {
    name.removeprefix(_INSIDE): told for name, told in TEXT.items() if name.startswith(_INSIDE)
}

CONTINUE: Final[Mapping[str, Told]] = {
    "inputs": TEXT["text_input"],
    "stream": Told("of `/infer` and `/`: an event a token", default=False),
    "parameters": TEXT["parameters"],
    **{
        f"{_INSIDE}{name}": told
        for name, told in PARAMETERS.items()
        if name not in ("details", "do_sample", "max_new_tokens", "seed", "top_k", "batch_size", "perf_stat")
    },
    "parameters.details": Told(
        "`details` of the answer, and log-probabilities of TGI's tokens", default=False
    ),
    "parameters.do_sample": Told(
        "default false, greedy (setting `mindie.do_sample_default`: inferred); of TGI's routes inferred from "
        "the other fields"
    ),
    "parameters.max_new_tokens": Told("more than fits is clamped", default=20),
    "parameters.seed": Told("default drawn anew; the details tell it"),
    "parameters.top_k": Told(", off; needs `do_sample`", default=0),
    "parameters.batch_size": Told("a hint that changes no token"),
    "parameters.perf_stat": Told("checked, no effect: events tell their times anyway"),
    "parameters.frequency_penalty": Told("sees the output", default=0.0),
    "parameters.ignore_eos": Told("goes on behind the end token", default=False),
    "parameters.best_of": Told(
        "so many are drawn, the likeliest is kept", accepts="; 1 in a stream", default=1
    ),
    "parameters.truncate": Told("default none; the last so many tokens of the prompt"),
    "parameters.return_full_text": Told("the prompt before the text", default=False),
    "parameters.decoder_input_details": Told(
        "the prompt's tokens in the details", accepts="; not in a stream", default=False
    ),
    "parameters.top_n_tokens": Told("alternatives of each token, of TGI's routes with `details`", default=0),
    "parameters.grammar": Told(
        "default none; the answer matches", accepts="an object: `type` is json or regex, with its `value`"
    ),
    "parameters.adapter_id": Told("default none; an adapter of the model"),
}
CONTINUE_PARAMETERS: Final[Mapping[str, Told]] = {
    name.removeprefix(_INSIDE): told for name, told in CONTINUE.items() if name.startswith(_INSIDE)
}

STOP: Final[Mapping[str, Told]] = {
    "id": Told(
        "ends the caller's newest running request of this id",
        accepts=" of A-Z a-z 0-9 _ -; required",
    ),
}
