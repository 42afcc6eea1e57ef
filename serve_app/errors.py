"""One tree of public errors, with the conditions that each dialect maps to a status.

    ServeError
    ├── InvalidBody              not JSON, not an object, not one for the route
    ├── FieldError               one field is at fault: `param` names it, `reason` says why
    │   ├── InvalidField         missing, mistyped or out of range
    │   │   └── UnsupportedField  a feature this server or model does not have
    │   ├── ModelNotFound
    │   │   └── NotKept          a response or an item of one that is not kept for the caller's key
    │   ├── VersionNotFound
    │   └── PromptTooLong
    ├── Unauthenticated          no key, or an unknown key
    ├── PermissionDenied         a good key without the right scope
    ├── QuotaExceeded            the caller's own limit
    │   ├── LargerThanQuota      one request above the whole limit: waiting does not help
    │   └── BudgetSpent          what the key may cost in a month is spent: only its owner can help
    ├── Overloaded               our capacity
    ├── Unavailable              loading, draining, not ready
    │   └── InDoubt              what was asked for may be done: only a look can tell
    ├── DeadlineExceeded
    ├── EngineRefused            the engine could not accept the request
    ├── GenerationFailed         the engine failed while generating
    │   └── NumericalError       logits were not finite
    ├── AlreadyExists            what is to be made is there
    ├── Conflict                 what is to be changed is changing, or is not to be changed here
    ├── GuardrailTriggered       the prompt or the answer has what the endpoint does not let through
    ├── MethodNotAllowed
    ├── BodyTooLarge
    ├── ReadTimeout              the body did not arrive in time
    └── RouteNotFound

`message` is public: it names the field and the accepted range, and never holds
a prompt, a path, an address or a class name. Internal detail goes to the log,
through `raise ... from cause`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar, Self

from serve_app.types import ErrorInfo


class Condition(StrEnum):
    """What went wrong: the number used in logs and docs/protocols.md, and the usual HTTP status.

    If a protocol uses another status, its own error module says so.
    """

    status: int

    def __new__(cls, number: str, status: int) -> Self:
        found = str.__new__(cls, number)
        found._value_, found.status = number, status
        return found

    INVALID_BODY = "E1", 400
    INVALID_FIELD = "E2", 400
    MODEL_NOT_FOUND = "E3", 404
    VERSION_NOT_FOUND = "E4", 404
    PROMPT_TOO_LONG = "E5", 400
    UNAUTHENTICATED = "E6", 401
    PERMISSION_DENIED = "E6b", 403
    QUOTA_EXCEEDED = "E7", 429
    OVERLOADED = "E8", 503
    UNAVAILABLE = "E9", 503
    DEADLINE_EXCEEDED = "E10", 504
    ENGINE_REFUSED = "E11", 500
    GENERATION_FAILED = "E12", 500
    METHOD_NOT_ALLOWED = "E13", 405
    BODY_TOO_LARGE = "E14", 413
    READ_TIMEOUT = "E14b", 408
    ROUTE_NOT_FOUND = "E15", 404
    ALREADY_EXISTS = "E16", 409
    CONFLICT = "E17", 409
    GUARDRAIL_TRIGGERED = "E18", 400


class ServeError(Exception):
    """Base of everything that may be shown to a client."""

    condition: ClassVar[Condition] = Condition.GENERATION_FAILED
    retryable: ClassVar[bool] = False

    param: str | None = None  # the field at fault, by the client's name

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after_s = retry_after_s

    def info(self) -> ErrorInfo:
        """The error as a plain value that can be sent to another process."""
        return ErrorInfo(kind=type(self).__name__, reason=self.message, retry_after_s=self.retry_after_s)

    # Exceptions with keyword arguments need this to survive Ray's serialisation.
    def __reduce__(self) -> tuple[object, tuple[ErrorInfo]]:
        return from_info, (self.info(),)


class InvalidBody(ServeError):
    condition = Condition.INVALID_BODY


class FieldError(ServeError):
    """One field of the request is at fault.

    Only this class composes the message: `InvalidField("n", "must be an integer")` says "n: must be an
    integer".
    """

    def __init__(self, param: str | None, reason: str, *, joint: str | None = ": ") -> None:
        """`joint` stands between the name and the reason. If it is None, the message is the reason alone.

        `param` is None if the fault is not in a named field, for example if it is in a header.
        """
        super().__init__(reason if param is None or joint is None else f"{param}{joint}{reason}")
        self.param = param
        self.reason = reason
        self.joint = joint

    def renamed(self, param: str) -> Self:
        """The same error, with another name for the field."""
        return type(self)(param, self.reason, joint=self.joint)

    def info(self) -> ErrorInfo:
        return ErrorInfo(kind=type(self).__name__, reason=self.reason, param=self.param, joint=self.joint)


class InvalidField(FieldError):
    condition = Condition.INVALID_FIELD


class UnsupportedField(InvalidField):
    """A known field for a feature that this server or this model does not support."""


class ModelNotFound(FieldError):
    condition = Condition.MODEL_NOT_FOUND


class NotKept(ModelNotFound):
    """No response or response item with this id is stored for the caller's key."""


class VersionNotFound(FieldError):
    condition = Condition.VERSION_NOT_FOUND


class PromptTooLong(FieldError):
    """The prompt does not fit in the context window, alone or together with the requested output.

    Clients recognise these words, shorten the prompt and retry: litellm, pi and aider look for the first
    sentence. LangChain reads only the message, and looks at its end for the code of OpenAI's protocol.
    """

    condition = Condition.PROMPT_TOO_LONG

    @classmethod
    def for_window(
        cls,
        window: int,
        tokens: int,
        *,
        what: str = "prompt",
        param: str = "prompt",
        at_least: bool = False,
        joint: str | None = None,
    ) -> Self:
        """A prompt of `tokens` leaves no room in `window`. `what`: prompt, messages or input.

        `at_least`: counting stopped early, so `tokens` is only a lower bound. `joint`: as in FieldError.
        """
        count = f"at least {tokens}" if at_least else f"{tokens}"
        full = ", which leaves no room for an answer" if tokens == window else ""
        return cls(
            param,
            f"This model's maximum context length is {window} tokens. However, your {what} resulted in "
            f"{count} tokens{full}. Please reduce the length of the {what}. "
            "(context_length_exceeded)",
            joint=joint,
        )

    @classmethod
    def of_chars(cls, param: str, most: int) -> Self:
        """The text is longer than any tokenizer here accepts."""
        return cls(param, f"The prompt is too long: it must hold at most {most} characters.", joint=None)

    @classmethod
    def beside_output(cls, window: int, tokens: int, output: int, *, what: str = "prompt") -> Self:
        """A prompt of `tokens` fits `window`, but not together with an output of `output` tokens."""
        return cls(
            "max_tokens",
            f"This model's maximum context length is {window} tokens. However, you requested "
            f"{tokens + output} tokens ({tokens} in the {what}, {output} in the completion). Please reduce "
            f"the length of the {what} or completion. (context_length_exceeded)",
            joint=None,
        )


class Unauthenticated(ServeError):
    condition = Condition.UNAUTHENTICATED


class PermissionDenied(ServeError):
    condition = Condition.PERMISSION_DENIED


class QuotaExceeded(ServeError):
    condition = Condition.QUOTA_EXCEEDED
    retryable = True


class LargerThanQuota(QuotaExceeded):
    """One request needs more than the limit ever allows."""

    retryable = False


class BudgetSpent(QuotaExceeded):
    """The budget of the caller's key is spent."""

    retryable = False


class Overloaded(ServeError):
    condition = Condition.OVERLOADED
    retryable = True


class Unavailable(ServeError):
    condition = Condition.UNAVAILABLE
    retryable = True


class InDoubt(Unavailable):
    """A change whose answer was lost. Sending it again may apply it twice."""

    retryable = False


class DeadlineExceeded(ServeError):
    condition = Condition.DEADLINE_EXCEEDED
    retryable = True


class EngineRefused(ServeError):
    condition = Condition.ENGINE_REFUSED


class GenerationFailed(ServeError):
    condition = Condition.GENERATION_FAILED
    retryable = True


class NumericalError(GenerationFailed):
    """The model produced logits that are not finite numbers."""


class AlreadyExists(ServeError):
    condition = Condition.ALREADY_EXISTS


class Conflict(ServeError):
    condition = Condition.CONFLICT


class GuardrailTriggered(ServeError):
    """`side`: "input" or "output"; `check`: the rule of `ai_gateway.guardrails` that found something."""

    condition = Condition.GUARDRAIL_TRIGGERED

    def __init__(
        self, message: str, *, side: str = "input", check: str = "", retry_after_s: float | None = None
    ) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.side = side
        self.check = check


class MethodNotAllowed(ServeError):
    condition = Condition.METHOD_NOT_ALLOWED


class BodyTooLarge(ServeError):
    condition = Condition.BODY_TOO_LARGE


class ReadTimeout(ServeError):
    condition = Condition.READ_TIMEOUT
    retryable = True


class RouteNotFound(ServeError):
    condition = Condition.ROUTE_NOT_FOUND


def _tree(base: type[ServeError]) -> dict[str, type[ServeError]]:
    found = {base.__name__: base}
    for sub in base.__subclasses__():
        found |= _tree(sub)
    return found


KINDS: dict[str, type[ServeError]] = _tree(ServeError)


def from_info(info: ErrorInfo) -> ServeError:
    """The exception that `info` was made from; an unknown kind becomes GenerationFailed."""
    kind = KINDS.get(info.kind, GenerationFailed)
    if issubclass(kind, FieldError):
        return kind(info.param, info.reason, joint=info.joint)
    return kind(info.reason, retry_after_s=info.retry_after_s)
