"""Requests from a gateway to a model replica."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from serve_app.types.account import UsageRecord
from serve_app.types.adapter import Adapter
from serve_app.types.inputs import Draft, PromptTable
from serve_app.types.result import Tensor
from serve_app.types.resume import Resume
from serve_app.types.sampling import DEFAULT_SAMPLING, Beam, Grammar, SamplingParams

# Names that the server passes to templates, or that transformers reserves.
RESERVED_VARIABLES: Final = frozenset(
    {"messages", "conversation", "tools", "documents", "chat_template", "tokenize", "return_dict"}
    | {"add_generation_prompt", "continue_final_message"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Templating:
    """How the model's chat template is applied to messages."""

    variables: dict[str, Any] = field(default_factory=dict)  # plain JSON; no name is a reserved one
    add_generation_prompt: bool = True  # end where the assistant's next turn begins
    continue_final_message: bool = False  # end inside of the last message instead, which goes on
    documents: tuple[dict[str, str], ...] = ()  # sources for the answer, for templates that show them


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """Exactly one of `text`, `messages` and `token_ids` is set.

    `messages` are plain `{"role": ..., "content": str, ...}` mappings, already
    checked and flattened to text by the dialect; `tools` are handed to the
    model's own chat template. `suffix` asks for fill-in-the-middle.
    """

    text: str | None = None
    messages: tuple[dict[str, Any], ...] | None = None
    token_ids: tuple[int, ...] | None = None
    tools: tuple[dict[str, Any], ...] = ()
    templating: Templating = Templating()  # of `messages`
    suffix: str | None = None


class Overflow(StrEnum):
    """How to treat a request that is larger than the model's window or output limit."""

    OPERATOR = "operator"  # CLAMP or ERROR, as the gateway's setting says; ERROR where there is no gateway
    ERROR = "error"  # prompt and output together must fit
    WINDOW = "window"  # the output may run into the end of the window; above its own limit is an error
    CLAMP = "clamp"  # the output is shortened to what fits
    TRUNCATE = "truncate"  # the prompt is shortened too, and an answer ends at the deadline


class ToolMode(StrEnum):
    """Whether the model may, must or must not call tools."""

    AUTO = "auto"
    NONE = "none"
    REQUIRED = "required"
    NAMED = "named"  # exactly one: `ToolChoice.name`


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolChoice:
    """The client's choice about tool calls. The tools are in `Prompt.tools`."""

    mode: ToolMode = ToolMode.AUTO
    name: str | None = None
    parallel: bool = True  # more than one call in an answer


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """A request from a gateway to a model replica: one prompt, `n` choices."""

    id: str  # made by us at the gateway, never the client's
    model: str  # the Serve application that serves it
    prompt: Prompt
    sampling: SamplingParams = DEFAULT_SAMPLING
    left_to_model: tuple[str, ...] = ()  # fields of `sampling`, of LEFT_TO_MODEL, that the client did not set
    n: int = 1  # choices returned, numbered 0 .. n-1
    best_of: int | None = None  # sequences generated (>= n); None: n
    stop: tuple[str, ...] = ()  # stop strings, none empty
    include_stop: bool = False  # keep the matched stop string in the text
    skip_special_tokens: bool = True
    bad_words: tuple[str, ...] = ()  # as text; the replica tokenises them
    echo: bool = False  # the text starts with the prompt
    logprobs: int | None = None  # None: off; k: the chosen token and the k likeliest
    prompt_logprobs: int | None = None  # the same for every prompt token
    prompt_ids: bool = False  # also return the prompt's token ids
    context_logits: bool = False  # raw logits after each prompt token, see TokenDelta.tensors
    generation_logits: bool = False  # and those that each output token was chosen from
    bias: Tensor | None = None  # FP32 (vocab,): added to the logits before everything else; -inf excludes
    biased_words: tuple[tuple[str, float], ...] = ()  # added to all tokens of a word; -inf excludes them
    prompt_table: PromptTable | None = None  # of a prompt of token ids
    draft: Draft | None = None  # not with a beam
    stream: bool = True  # False: one delta a choice, at the end
    progress: bool = False  # send progress deltas while there is no text to send
    beam: Beam | None = None  # n <= beam.width; best_of is not used
    rank_length_penalty: float | None = None  # of best_of: sum / length ** this; None: the sum alone
    grammar: Grammar | None = None
    tool_choice: ToolChoice = ToolChoice()
    reasoning: bool = True  # separate the model's thoughts, if their format is known
    thinking_tokens: int | None = None  # limit of thoughts, if their marks are tokens; None: no limit
    truncate_prompt: int | None = None  # keep this many last tokens; -1: as many as fit
    overflow: Overflow = Overflow.OPERATOR
    per_token: bool = False  # one delta a token, each with its `step`
    priority: int = 0  # larger runs earlier
    timeout_s: float | None = None  # from the moment the replica has the request
    # Tenant salt of the prefix cache and of task adapters. In a dialect's request: what a client divides
    # its own cache by, to which the gateway adds the tenant's.
    salt: str = ""
    adapter: Adapter | None = None
    parent_id: str | None = None  # the body this request was split from
    resume: Resume | None = None  # the part of the answer that the client has, from a former replica
    record: UsageRecord | None = None  # of a stream: the record that its replica settles if the gateway dies
