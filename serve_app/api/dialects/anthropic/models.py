"""Models as Anthropic lists them: pages of entries, each with its time of creation.

Depends neither on endpoints nor on routes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import parse_qs

from serve_app.api.dialects.anthropic.answers import AnthropicModel, AnthropicModels
from serve_app.api.edge.query import integer
from serve_app.errors import InvalidField

MAX_PAGE: Final = 1_000  # entries; Anthropic's own bound

Entry = Mapping[str, Any]  # as OpenAI has it: `id`, `created`, and the window where it is known


def model_fields(entry: Entry) -> AnthropicModel:
    """One model."""
    return {
        "type": "model",
        "id": entry["id"],
        "display_name": entry["id"],
        "created_at": datetime.fromtimestamp(entry["created"], UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lifecycle": "active",
        "max_input_tokens": entry.get("max_model_len"),
    }


def models_page(entries: Sequence[Entry], query: str) -> AnthropicModels:
    """The page of `entries` that `limit`, `after_id` and `before_id` select. Raises InvalidField."""
    asked = {name: values[-1] for name, values in parse_qs(query).items()}
    limit, ids = integer(asked, "limit", 1, MAX_PAGE) or MAX_PAGE, [entry["id"] for entry in entries]
    before, after = asked.get("before_id"), asked.get("after_id")
    if before is not None:
        end = _place(before, ids, "before_id")
        start = max(0, end - limit)
        has_more = start > 0
    else:
        start = 0 if after is None else _place(after, ids, "after_id") + 1
        end = min(len(ids), start + limit)
        has_more = end < len(ids)
    page = [model_fields(entry) for entry in entries[start:end]]
    ends = (page[0]["id"], page[-1]["id"]) if page else (None, None)
    return {"data": page, "has_more": has_more, "first_id": ends[0], "last_id": ends[1]}


def _place(id: str, ids: list[str], field: str) -> int:
    if id not in ids:
        raise InvalidField(field, "must be the id of a listed model")
    return ids.index(id)
