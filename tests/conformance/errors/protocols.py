"""The table of errors: shape, status and word of what each protocol answers to conditions E1 to E15.

The words are the protocols' own, not read from the server's tables. E6b is a key without the right.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

Word = str | tuple[str, str | None] | None  # what a body calls its condition, beside the message


@dataclass(frozen=True, slots=True)
class Protocol:
    """The shape of an error's body, and the status and word of each condition."""

    read: Callable[[Any], tuple[str, Word]]  # a body of the right shape -> message, word
    conditions: Mapping[str, tuple[int, Word]]
    begins: Mapping[str, str] = field(default_factory=dict)  # condition -> how its message begins

    def told(self, answer: httpx.Response, condition: str) -> str:
        """The message of `answer`, which must be the protocol's answer to `condition`."""
        if answer.headers["content-type"] != "application/json":
            raise AssertionError(f"{condition}: {answer.headers}")
        message, word = self.read(answer.json())
        if (answer.status_code, word) != self.conditions[condition] or not message:
            raise AssertionError(f"{condition}: {answer.status_code} {answer.text}")
        return message


def _openai(body: Any) -> tuple[str, Word]:
    error = body["error"]
    if list(body) != ["error"] or list(error) != ["message", "type", "param", "code"]:
        raise AssertionError(f"no error of OpenAI's: {body}")
    return error["message"], (error["type"], error["code"])


def _anthropic(body: Any) -> tuple[str, Word]:
    if list(body) != ["type", "error"] or list(body["error"]) != ["type", "message"]:
        raise AssertionError(f"no error of Anthropic's: {body}")
    return body["error"]["message"], body["error"]["type"]


def _databricks(body: Any) -> tuple[str, Word]:
    if list(body) != ["error_code", "message", "error"]:
        raise AssertionError(f"no error of Databricks': {body}")
    return body["message"], body["error_code"]


def _mindie(body: Any) -> tuple[str, Word]:
    if list(body) != ["error", "error_type"]:
        raise AssertionError(f"no error of MindIE's: {body}")
    return body["error"], body["error_type"]


def _one_string(body: Any) -> tuple[str, Word]:
    if list(body) != ["error"] or type(body["error"]) is not str:
        raise AssertionError(f"no error of one string: {body}")
    return body["error"], None


_INVALID: Final = "invalid_request_error"
OPENAI: Final = Protocol(
    _openai,
    {
        "E1": (400, (_INVALID, None)),
        "E2": (400, (_INVALID, None)),
        "E3": (404, (_INVALID, "model_not_found")),
        "E4": (404, (_INVALID, "model_not_found")),
        "E5": (400, (_INVALID, "context_length_exceeded")),
        "E6": (401, (_INVALID, "invalid_api_key")),
        "E6b": (403, (_INVALID, "insufficient_permissions")),
        "E7": (429, ("requests", "rate_limit_exceeded")),
        "E8": (503, ("service_unavailable_error", "server_is_overloaded")),
        "E9": (503, ("service_unavailable_error", "service_unavailable")),
        "E10": (504, ("timeout_error", "deadline_exceeded")),
        "E11": (500, ("server_error", None)),
        "E12": (500, ("server_error", None)),
        "E13": (405, (_INVALID, "method_not_allowed")),
        "E14": (413, (_INVALID, "request_too_large")),
        "E15": (404, (_INVALID, "unknown_url")),
    },
)
ANTHROPIC: Final = Protocol(
    _anthropic,
    {
        "E1": (400, _INVALID),
        "E2": (400, _INVALID),
        "E3": (404, "not_found_error"),
        "E4": (404, "not_found_error"),
        "E5": (400, _INVALID),
        "E6": (401, "authentication_error"),
        "E6b": (403, "permission_error"),
        "E7": (429, "rate_limit_error"),
        "E8": (529, "overloaded_error"),
        "E9": (503, "overloaded_error"),
        "E10": (504, "timeout_error"),
        "E11": (500, "api_error"),
        "E12": (500, "api_error"),
        "E13": (405, _INVALID),
        "E14": (413, "request_too_large"),
        "E15": (404, "not_found_error"),
    },
    begins={"E5": "prompt is too long: "},
)
DATABRICKS: Final = Protocol(
    _databricks,
    {
        "E1": (400, "BAD_REQUEST"),
        "E2": (400, "INVALID_PARAMETER_VALUE"),
        "E3": (404, "RESOURCE_DOES_NOT_EXIST"),
        "E4": (404, "RESOURCE_DOES_NOT_EXIST"),
        "E5": (400, "BAD_REQUEST"),
        "E6": (401, "UNAUTHENTICATED"),
        "E6b": (403, "PERMISSION_DENIED"),
        "E7": (429, "REQUEST_LIMIT_EXCEEDED"),
        "E8": (429, "REQUEST_LIMIT_EXCEEDED"),
        "E9": (503, "TEMPORARILY_UNAVAILABLE"),
        "E10": (504, "DEADLINE_EXCEEDED"),
        "E11": (500, "INTERNAL_ERROR"),
        "E12": (500, "INTERNAL_ERROR"),
        "E13": (405, "METHOD_NOT_ALLOWED"),
        "E14": (413, "MAX_REQUEST_SIZE_EXCEEDED"),
        "E15": (404, "ENDPOINT_NOT_FOUND"),
    },
)
_UNPROCESSABLE: Final = (422, "Input Validation Error")
_MINDIE: Final[Mapping[str, tuple[int, Word]]] = {
    "E1": _UNPROCESSABLE,
    "E2": _UNPROCESSABLE,
    "E3": (404, "NotFoundError"),
    "E4": (404, "NotFoundError"),
    "E5": _UNPROCESSABLE,
    "E6": (401, "Unauthorized"),
    "E6b": (403, "Forbidden"),
    "E7": (429, "Overloaded"),
    "E8": (429, "Overloaded"),
    "E9": (503, "Service Unavailable"),
    "E10": (500, "Incomplete Generation"),
    "E11": (424, "Generation Error"),
    "E12": (500, "Incomplete Generation"),
    "E13": (405, "Method Not Allowed"),
    "E14": _UNPROCESSABLE,
    "E15": (404, "NotFoundError"),
}
MINDIE_GENERATE: Final = Protocol(_mindie, _MINDIE)
# The body names the model, so that an unknown one is a wrong field.
MINDIE_CHAT: Final = Protocol(_mindie, {**_MINDIE, "E3": _UNPROCESSABLE, "E4": _UNPROCESSABLE})
_STATUS: Final = {
    "E1": 400, "E2": 400, "E3": 404, "E4": 404, "E5": 400, "E6": 401, "E6b": 403, "E7": 429, "E8": 503,
    "E9": 503, "E10": 504, "E11": 500, "E12": 500, "E13": 405, "E14": 413, "E15": 404,
}  # fmt: skip
OVMS: Final = Protocol(_one_string, {condition: (status, None) for condition, status in _STATUS.items()})
TRITON: Final = OVMS
