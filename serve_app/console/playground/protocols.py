"""The protocols of the Playground: the path of a request, and the member that has the prompt.

Covers paths and names of members, but not their ranges, which come from the OpenAPI document.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import quote

Mode = Literal["chat", "text"]
# How a body holds a conversation: OpenAI's chats, Anthropic's messages, OpenAI's responses, or one text.
Shape = Literal["chat", "messages", "responses", "text"]

CHAT_TASK: Final = "llm/v1/chat"
COMPLETIONS_TASK: Final = "llm/v1/completions"


@dataclass(frozen=True, slots=True)
class Protocol:
    """How to request text in one protocol.

    `path` may have the placeholder `{model}`; otherwise the body names the endpoint. `schema` names the body
    in the OpenAPI document; None means the alternative that has both `text_input` and `max_tokens`.
    """

    id: str
    title: str
    shape: Shape
    dialect: str
    path: str
    stream_path: str
    schema: str | None
    prompt: str
    tasks: tuple[str, ...]

    @property
    def mode(self) -> Mode:
        """The kind of prompt: a chat, to which the model's template is applied, or text."""
        return "text" if self.shape == "text" else "chat"

    @property
    def names_model(self) -> bool:
        """Whether the body has the member `model`."""
        return "{model}" not in self.path

    def url(self, model: str, *, stream: bool) -> str:
        """The path for requests to `model`, whose name may contain slashes."""
        return (self.stream_path if stream else self.path).replace("{model}", quote(model, safe="/:"))


def _chat(dialect: str, shape: Shape, title: str, path: str, schema: str) -> Protocol:
    prompt = "input" if shape == "responses" else "messages"
    return Protocol(f"{dialect}-{shape}", title, shape, dialect, path, path, schema, prompt, (CHAT_TASK,))


def _text(dialect: str, title: str, path: str, schema: str | None, prompt: str = "prompt") -> Protocol:
    # Only Databricks' protocol requires the task of the endpoint.
    tasks = (COMPLETIONS_TASK,) if dialect == "databricks" else (CHAT_TASK, COMPLETIONS_TASK)
    streamed = f"{path}_stream" if path.endswith("/generate") else path
    return Protocol(f"{dialect}-text", title, "text", dialect, path, streamed, schema, prompt, tasks)


PROTOCOLS: Final = (
    _chat("openai", "chat", "OpenAI", "/v1/chat/completions", "OpenAIChatBody"),
    _chat("databricks", "chat", "Databricks", "/serving-endpoints/{model}/invocations", "DatabricksChatBody"),
    _chat("mindie", "chat", "MindIE", "/v1/chat/completions", "MindIEChatBody"),
    _chat("ovms", "chat", "OpenVINO Model Server", "/v3/chat/completions", "OpenVINOChatBody"),
    _chat("anthropic", "messages", "Anthropic", "/v1/messages", "MessageBody"),
    _chat("openai", "responses", "OpenAI responses", "/v1/responses", "ResponsesResponseBody"),
    _chat(
        "databricks",
        "responses",
        "Databricks responses",
        "/serving-endpoints/responses",
        "ResponsesResponseBody",
    ),
    _chat("ovms", "responses", "OpenVINO Model Server responses", "/v3/responses", "OpenVINOResponseBody"),
    _text("openai", "OpenAI", "/v1/completions", "OpenAICompletionBody"),
    _text("databricks", "Databricks", "/serving-endpoints/{model}/invocations", "DatabricksCompletionBody"),
    _text("ovms", "OpenVINO Model Server", "/v3/completions", "OpenVINOCompletionBody"),
    _text("mindie", "MindIE generate", "/v2/models/{model}/generate", "TextBody", "text_input"),
    _text("triton", "Triton generate", "/v2/models/{model}/generate", None, "text_input"),
)


def protocols_of(task: str) -> Sequence[Protocol]:
    """The protocols for an endpoint with this task; empty for embeddings."""
    return [each for each in PROTOCOLS if task in each.tasks]


def protocol_named(name: str) -> Protocol | None:
    """The protocol with this `id`."""
    return next((each for each in PROTOCOLS if each.id == name), None)
