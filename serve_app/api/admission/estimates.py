"""Estimates a request's tokens and the most that it can use, before a model reads the request."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

from serve_app.endpoints.endpoint import Endpoint, Limits
from serve_app.types import GenerateRequest, ModelInfo, Prompt, Usage

BYTES_PER_TOKEN: Final = 4  # an estimate for usual text, which the settlement corrects
TOKENS_PER_MESSAGE: Final = 4  # that the template adds
DEFAULT_OUTPUT: Final = Limits().default_output_tokens


def prompt_tokens(prompt: Prompt) -> int:
    """About how many tokens a prompt has; exact for ids."""
    if prompt.token_ids is not None:
        return len(prompt.token_ids)
    texts = [prompt.text or "", prompt.suffix or ""]
    messages = prompt.messages or ()
    texts += [value for message in messages for value in message.values() if isinstance(value, str)]
    return tokens_in(*texts) + TOKENS_PER_MESSAGE * len(messages)


def tokens_in(*texts: str) -> int:
    """About how many tokens these texts have together."""
    size = sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
    return math.ceil(size / BYTES_PER_TOKEN)


def most_used(
    endpoint: Endpoint, requests: Sequence[GenerateRequest], models: Iterable[ModelInfo | None] = ()
) -> Usage:
    """The most that `requests` can use. `models` may answer; None stands for an unknown model."""
    lengths = [info.max_output_tokens or info.context_window if info else None for info in models]
    known = [length for length in lengths if length is not None]
    longest = max(known, default=None) if len(known) == len(lengths) else None
    return Usage(
        prompt_tokens=sum(prompt_tokens(request.prompt) for request in requests),
        completion_tokens=sum(_output_tokens(endpoint, request, longest) for request in requests),
    )


def _output_tokens(endpoint: Endpoint, request: GenerateRequest, longest: int | None) -> int:
    """`longest`: the largest output limit of the models; requests for more are clamped or refused."""
    default = endpoint.limits.default_output_tokens if endpoint.limits else DEFAULT_OUTPUT
    most = default if request.sampling.max_tokens is None else request.sampling.max_tokens
    most = most if longest is None else min(most, longest)
    return most * max(request.n, request.best_of or 0, request.beam.width if request.beam is not None else 0)
