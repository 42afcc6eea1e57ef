"""What the fields of OpenVINO Model Server do, in words: for the OpenAPI document and docs/protocols.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from serve_app import limits
from serve_app.api.dialects.chat.told import TEMPLATE_VARIABLES, chat_fields, embedding_fields
from serve_app.api.dialects.ovms.fields import MAX_IGNORE_EOS_TOKENS
from serve_app.api.dialects.responses.told import FIELDS
from serve_app.api.protocol.field_doc import FieldDoc
from serve_app.config import OvmsConfig

_OVMS: Final = OvmsConfig()

ANSWER: Final[Mapping[str, FieldDoc]] = {
    **chat_fields(
        "stream",
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "user",
    ),
    "model": FieldDoc(
        "the endpoint that answers, whose name the answer repeats",
        accepts="; required",
    ),
    "min_tokens": FieldDoc(default=0),
    "ignore_eos": FieldDoc(
        "goes on behind the end token",
        accepts=f"; then up to {MAX_IGNORE_EOS_TOKENS} tokens",
        default=False,
    ),
    "stop": FieldDoc("default none"),
    "stop_token_ids": FieldDoc("default none"),
    "include_stop_str_in_output": FieldDoc(", in streams too", default=False),
    "n": FieldDoc(
        "the best so many are the answer",
        accepts="an integer from 1 to `best_of`; of a streamed response 1",
        default=1,
    ),
    "best_of": FieldDoc(
        "a beam search of this width where nothing is drawn, else so many samples",
        accepts=f"an integer from 1 to {_OVMS.best_of_limit} (setting `ovms.best_of_limit`)",
        default=1,
    ),
    "use_beam_search": FieldDoc(
        "default by `temperature`",
        accepts="; true needs `best_of` from 2",
    ),
    "length_penalty": FieldDoc("score ÷ length^p, of beams and of samples", default=1.0),
    "early_stopping": FieldDoc(default=False),
    "num_beam_groups": FieldDoc(accepts=", a divisor of `best_of`", default=1),
    "diversity_penalty": FieldDoc("between groups", default=1.0),
    "temperature": FieldDoc(", greedy (1.0 with `ovms.profile: current`)", default=0.0),
    "top_p": FieldDoc(default=1.0),
    "top_k": FieldDoc(", all; −1 too (40 with `ovms.profile: current`, where 0 is an error)", default=0),
    "min_p": FieldDoc(", off (1 is an error with `ovms.profile: current`)", default=0),
    "logit_bias": FieldDoc("default none"),
    "logits_processors": FieldDoc("default none; processors that the operator registered"),
    "seed": FieldDoc(
        ": equal requests are answered equally (drawn anew with `ovms.profile: current`)", default=0
    ),
    "truncate_prompt_tokens": FieldDoc(
        "default none; the last so many tokens of the prompt, −1 as many as fit beside the length"
    ),
    "skip_special_tokens": FieldDoc(default=True),
    "spaces_between_special_tokens": FieldDoc("accepted, no effect: no space is ever put between tokens"),
    "response_format": FieldDoc(
        "default text; the answer matches",
        accepts=(
            "an object: `type` is text, json_object, json_schema with `json_schema` (a "
            "schema, or one with `name` and `strict`), or one of XGrammar's formats: "
            "const_string, any_text, regex, grammar, sequence, or, tag, triggered_tags, "
            "tags_with_separator, structural_tag"
        ),
    ),
}

SHARED: Final[Mapping[str, FieldDoc]] = {
    **ANSWER,
    **chat_fields("stream_options", "stream_options.include_usage", "max_completion_tokens"),
    "prompt_logprobs": FieldDoc(
        "default none; at the top of the answer, by token id",
        accepts="; not in a stream",
    ),
    "detokenize": FieldDoc("false sends `token_ids` and no text", default=True),
}

CHAT: Final[Mapping[str, FieldDoc]] = {
    **chat_fields(
        "messages.tool_calls",
        "logprobs",
        "top_logprobs",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "functions",
        "function_call",
    ),
    "chat_template_kwargs": FieldDoc(
        "variables for the model's template; `add_generation_prompt` is one of them",
        accepts=TEMPLATE_VARIABLES,
    ),
    "max_tokens": FieldDoc("default up to the window; more than fits is clamped; 4000 with `ignore_eos`"),
    "messages": FieldDoc(
        "no order of roles but the template's",
        accepts=f"a list of 1 to {limits.MAX_MESSAGES} messages; required",
    ),
    "messages.role": FieldDoc(
        "",
        accepts="system, developer, user, assistant, tool or function",
    ),
    "messages.content": FieldDoc(
        "without it a message is empty; parts are joined by line breaks",
        accepts=f"a string or a list of up to {limits.MAX_CONTENT_PARTS} text parts; null only beside calls",
    ),
}

RESPONSES: Final[Mapping[str, FieldDoc]] = {
    **FIELDS,
    **chat_fields("logprobs"),
    "chat_template_kwargs": CHAT["chat_template_kwargs"],
    "input": FieldDoc(
        "a string is what the user says; the items of one turn of the assistant are one message, also of "
        "one that only thought",
        accepts=f"a string or a list of 1 to {limits.MAX_MESSAGES} items; required, and not empty",
    ),
    "max_output_tokens": FieldDoc(
        "default up to the window; more than fits is clamped; 4000 with `ignore_eos`"
    ),
    "tools": FieldDoc(
        "default none; a tool may have its members below `function`, as in chats",
        accepts=f"a list of up to {limits.MAX_TOOLS} function tools, and namespaces of them",
    ),
    "reasoning.summary": FieldDoc("thoughts are told as summaries in any case, in full"),
    "reasoning.effort": FieldDoc(
        "variables `reasoning_effort` and `enable_thinking` of the model's template; only none sets the "
        "second one to false"
    ),
    "text.format": FieldDoc(
        "OpenAI's form of `response_format`, and not beside it",
        accepts=FIELDS["text.format"].accepts,
    ),
    "store": FieldDoc("nothing is kept; told with the answer, true is listed as ignored", default=True),
}

COMPLETIONS: Final[Mapping[str, FieldDoc]] = {
    "prompt": FieldDoc(
        "goes to the model raw",
        accepts="one string or one list of token ids; required",
    ),
    "max_tokens": FieldDoc(
        "default up to the window; more than fits is clamped; 4000 with `ignore_eos`",
        accepts="; 0 only with `echo`",
    ),
    "echo": FieldDoc("the prompt goes before the text", default=False),
    "logprobs": FieldDoc("default none; four lists, so many alternatives a token"),
}

EMBEDDINGS: Final[Mapping[str, FieldDoc]] = {
    **embedding_fields("model", "input", "encoding_format", "dimensions", "user"),
}

RERANK: Final[Mapping[str, FieldDoc]] = {
    "model": FieldDoc(
        "the endpoint that answers: one that embeds",
        accepts="; required",
    ),
    "query": FieldDoc(
        "what the documents are compared with",
        accepts="; required",
    ),
    "documents": FieldDoc(
        "are ranked by the cosine of their vectors with the query's",
        accepts="; required",
    ),
    "top_n": FieldDoc("default all; the best so many"),
    "return_documents": FieldDoc("adds `document` with its `text`", default=False),
}

TOKENIZE: Final[Mapping[str, FieldDoc]] = {
    "model": FieldDoc("whose tokenizer it is: an endpoint that generates or embeds", accepts="; required"),
    "text": FieldDoc(
        "a string is answered with one list of tokens, a list with a list of them",
        accepts=(
            f"a string or a list of 1 to {limits.MAX_PROMPTS} strings, of {limits.MAX_QUESTION_CHARS} "
            "characters in all; required"
        ),
    ),
    "max_length": FieldDoc("default none; cut to so many tokens, and those behind every text stay"),
    "pad_to_max_length": FieldDoc(
        "filled up to `max_length`, without one to the longest, with the model's pad token", default=False
    ),
    "padding_side": FieldDoc("default right; where it is filled up", accepts="left or right"),
    "add_special_tokens": FieldDoc("those that the model wants around a text", default=True),
}
