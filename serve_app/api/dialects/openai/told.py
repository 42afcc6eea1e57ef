"""What the fields of OpenAI's bodies do, in words: for the OpenAPI document and docs/protocols.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from serve_app import limits
from serve_app.api.dialects.chat.messages import MAX_NAME_CHARS, MAX_TOOL_CALLS
from serve_app.api.dialects.chat.told import (
    ANSWER,
    TEMPLATING,
    THINKING_TOKENS,
    chat_fields,
    embedding_fields,
)
from serve_app.api.protocol.field_doc import FieldDoc

SHARED: Final[Mapping[str, FieldDoc]] = {
    **ANSWER,
    **chat_fields(
        "n",
        "stream_options",
        "stream_options.include_usage",
        "response_format",
    ),
    "best_of": FieldDoc(
        "default `n`; so many are drawn, the likeliest are kept; the width with `use_beam_search`",
        accepts="; at least `n`, equal to it in a stream",
    ),
    "use_beam_search": FieldDoc(
        "the best hypotheses of a search, in order",
        accepts=f"; true needs `n` or `best_of` from 2 to {limits.MAX_BEAM_WIDTH}",
        default=False,
    ),
    "length_penalty": FieldDoc("score ÷ length^p, with a search; else ignored and listed", default=1.0),
    "early_stopping": FieldDoc("default false, with a search; else ignored and listed"),
    "num_beam_groups": FieldDoc(
        "default 1, with a search; else ignored and listed",
        accepts=", a divisor of the width",
    ),
    "diversity_penalty": FieldDoc("between groups, with a search; else ignored and listed", default=0),
    "prompt_logprobs": FieldDoc(
        "default none; log-probabilities of the prompt's tokens, so many alternatives each, in vLLM's form",
        accepts="; not in a stream",
    ),
    "stream_options.continuous_usage_stats": FieldDoc(
        "beside `include_usage`: every chunk has the usage so far", default=False
    ),
    "repetition_detection": FieldDoc(
        "default none; an answer that repeats itself ends, with the finish reason repetition",
        accepts="an object; see its members; not beside `use_beam_search`",
    ),
    "repetition_detection.max_pattern_size": FieldDoc("tokens of a pattern at most; 0 is off", default=0),
    "repetition_detection.min_pattern_size": FieldDoc(
        "tokens of a pattern at least; 0 counts as 1", default=0
    ),
    "repetition_detection.min_count": FieldDoc(
        "so often in a row a pattern ends the answer",
        accepts="; at least 2 where `max_pattern_size` is not 0",
    ),
    "truncate_prompt_tokens": FieldDoc(
        "default none; the last so many tokens of the prompt, −1 as many as fit beside the length"
    ),
    "cache_salt": FieldDoc(
        "default none; only requests with the same one share cached prefixes, within a key"
    ),
    "return_token_ids": FieldDoc("tells `prompt_token_ids` and each choice's `token_ids`", default=False),
    "return_tokens_as_token_ids": FieldDoc("log-probabilities name a token `token_id:7`", default=False),
    "guided_json": FieldDoc(
        "the answer matches it; one such field at a time",
        accepts="a JSON Schema, as an object or as text",
    ),
    "guided_regex": FieldDoc(
        "the answer matches it",
        accepts=f"a string of 1 to {limits.MAX_REGEX_CHARS} characters",
    ),
    "guided_choice": FieldDoc(
        "the answer is one of them",
        accepts=f"a list of 1 to {limits.MAX_GRAMMAR_CHOICES} strings",
    ),
    "guided_grammar": FieldDoc(
        "the answer matches the Lark or GBNF grammar; `<name>` outside of quotes is a token of the model",
        accepts=f"a string of 1 to {limits.MAX_GRAMMAR_CHARS} characters",
    ),
    "structured_outputs": FieldDoc(
        "as the `guided_` field of that name; true: compact",
        accepts=(
            "an object with one of `json`, `json_object`, `regex`, `choice`, `grammar`; "
            "with JSON also `disable_any_whitespace` or `whitespace_pattern`"
        ),
    ),
    "guided_whitespace_pattern": FieldDoc(
        'default: as under "JSON by a schema"; what may stand between tokens of JSON',
        accepts="a regex of up to 8 blanks or classes of blanks, each perhaps with ?, *, + or {m,n}",
    ),
}

CHAT: Final[Mapping[str, FieldDoc]] = {
    **TEMPLATING,
    **chat_fields(
        "max_completion_tokens",
        "logprobs",
        "parallel_tool_calls",
        "functions",
        "function_call",
    ),
    "messages": FieldDoc(
        "any order of roles",
        accepts=f"a list of 1 to {limits.MAX_MESSAGES} messages; required",
    ),
    "messages.role": FieldDoc(
        "developer counts as system, function as tool",
        accepts="system, developer, user, assistant, tool or function",
    ),
    "messages.content": FieldDoc(
        "parts are joined by line breaks; null only beside calls",
        accepts=f"a string or a list of up to {limits.MAX_CONTENT_PARTS} text parts",
    ),
    "messages.tool_calls": FieldDoc(
        "earlier calls, of custom tools too, given to the template",
        accepts=f"a list of up to {MAX_TOOL_CALLS} calls; of an assistant",
    ),
    "messages.tool_call_id": FieldDoc(
        "the call that is answered",
        accepts=f"a string of 1 to {MAX_NAME_CHARS} characters; required of role tool",
    ),
    "max_tokens": FieldDoc("default the model's, else up to the window; more than fits is clamped"),
    "top_logprobs": FieldDoc("alternatives a token", accepts="; above 0 needs `logprobs: true`", default=0),
    "tools": FieldDoc(
        "default none; the model may call them",
        accepts=f"a list of up to {limits.MAX_TOOLS} function and custom tools",
    ),
    "tools.custom.format": FieldDoc(
        "default text; forced calls match the regular expression or the Lark grammar; with calls that are "
        "not forced it is ignored and listed",
        accepts="an object: `type` is text or grammar; then `grammar` has `syntax` and `definition`",
    ),
    "tool_choice": FieldDoc(
        "default auto; required and a name force a call",
        accepts="none, auto, required, an object that names a tool, or allowed_tools",
    ),
    "reasoning_effort": FieldDoc(
        "variable `reasoning_effort` of the model's template; none also sets `enable_thinking` to false"
    ),
    "thinking_token_budget": FieldDoc(THINKING_TOKENS),
    "include_reasoning": FieldDoc("false leaves `reasoning_content` out of the answer", default=True),
    "documents": FieldDoc(
        "default none; given to the model's template; an error where it shows none",
        accepts=f"a list of up to {limits.MAX_DOCUMENTS} objects of strings, such as `title` and `text`",
    ),
}

COMPLETIONS: Final[Mapping[str, FieldDoc]] = {
    "prompt": FieldDoc(
        "goes to the model raw; a list is a batch",
        accepts=f"a string, token ids, or a list of up to {limits.MAX_PROMPTS} of either; required",
    ),
    "max_tokens": FieldDoc("more than fits is clamped", accepts="; 0 only with `echo`", default=16),
    "logprobs": FieldDoc("default none; four lists, so many alternatives a token"),
    "echo": FieldDoc("the prompt goes before the text, and into `logprobs`", default=False),
    "suffix": FieldDoc(
        "default none; fill-in-the-middle, an error of models without it",
        accepts="; needs text prompts",
    ),
}

EMBEDDINGS: Final[Mapping[str, FieldDoc]] = {
    **embedding_fields("model", "input", "encoding_format", "dimensions", "user"),
    "timeout": FieldDoc("seconds; default the operator's"),
}
