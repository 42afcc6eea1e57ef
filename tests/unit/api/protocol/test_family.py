"""Which protocol a request speaks: header, then prefix, then route."""

from __future__ import annotations

import pytest

from serve_app.api.error_renderers import RENDERERS
from serve_app.api.protocol.family import Family, family_of, split_prefix
from serve_app.errors import InvalidField
from tests.support.gateway import CHAT, chat_body, gateway


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/openai/v1/chat/completions", (Family.OPENAI, "/v1/chat/completions")),
        ("/v1/chat/completions", (None, "/v1/chat/completions")),
        ("/mindie/v1/chat/completions", (Family.MINDIE, "/v1/chat/completions")),
        ("/mindie/v2", (Family.MINDIE, "/v2")),
        ("/mindie/v2/models/m", (Family.MINDIE, "/v2/models/m")),
        ("/mindie/v20", (None, "/mindie/v20")),
        ("/triton/v2/models/m/infer", (Family.TRITON, "/v2/models/m/infer")),
        ("/ovms/v3/chat/completions", (Family.OVMS, "/v3/chat/completions")),
        ("/ovms/v3", (None, "/ovms/v3")),
        ("/databricks/serving-endpoints/m/x", (Family.DATABRICKS, "/serving-endpoints/m/x")),
        ("/databricks/serving-endpoints", (None, "/databricks/serving-endpoints")),
        ("/openai/livez", (None, "/openai/livez")),
        ("/openai/metrics", (None, "/openai/metrics")),
        ("/openai", (None, "/openai")),
        ("//openai/v1/x", (None, "//openai/v1/x")),
        ("/OpenAI/v1/x", (None, "/OpenAI/v1/x")),
        ("/openai/openai/v1/x", (None, "/openai/openai/v1/x")),
        ("openai/v1/x", (None, "openai/v1/x")),
    ],
)
def test_a_prefix_is_taken_off_once_and_from_routes_alone(
    path: str, expected: tuple[Family | None, str]
) -> None:
    assert split_prefix(path) == expected


def test_an_unknown_header_names_the_known_words() -> None:
    with pytest.raises(InvalidField, match="openai"):
        family_of("nope", None, CHAT, Family.OPENAI)


@pytest.mark.parametrize(
    ("path", "v1", "expected"),
    [
        (CHAT, Family.OPENAI, Family.OPENAI),
        (CHAT, Family.MINDIE, Family.MINDIE),
        ("/v1/messages", Family.OPENAI, Family.ANTHROPIC),
        ("/v1/messages/count_tokens", Family.MINDIE, Family.ANTHROPIC),
        ("/v1/message", Family.MINDIE, Family.MINDIE),
        ("/serving-endpoints/anthropic/v1/messages", Family.OPENAI, Family.ANTHROPIC),
        ("/ai-gateway/anthropic/v1/models", Family.OPENAI, Family.ANTHROPIC),
        ("/v2", Family.OPENAI, Family.TRITON),
        ("/v2/models/m/infer", Family.MINDIE, Family.TRITON),
        ("/v2/models/m", Family.OPENAI, Family.TRITON),
        ("/v2/models/m/generate", Family.OPENAI, Family.MINDIE),  # until the body is read
        ("/v2/models/m/versions/1/generate_stream", Family.OPENAI, Family.MINDIE),
        ("/v2/models/m/stopInfer", Family.OPENAI, Family.MINDIE),
        ("/serving-endpoints/m/invocations", Family.MINDIE, Family.DATABRICKS),
        ("/api/2.0/serving-endpoints", Family.OPENAI, Family.DATABRICKS),
        ("/v3/chat/completions", Family.MINDIE, Family.OVMS),
        ("/v3/v1/models", Family.OPENAI, Family.OVMS),
        ("/livez", Family.MINDIE, Family.OPENAI),
    ],
)
def test_without_a_word_the_route_decides(path: str, v1: Family, expected: Family) -> None:
    assert family_of(None, None, path, v1) is expected
    assert family_of("openai", Family.MINDIE, path, v1) is Family.OPENAI
    assert family_of(None, Family.MINDIE, path, v1) is Family.MINDIE


def test_every_protocol_tells_errors() -> None:
    assert set(RENDERERS) == set(Family)


async def test_an_alias_is_the_route() -> None:
    async with gateway() as g:
        plain, alias = [await g.post(prefix + CHAT, chat_body()) for prefix in ("", "/openai")]
        assert plain.status_code == alias.status_code == 200
        assert plain.json()["choices"] == alias.json()["choices"]
        assert (await g.client.get("/openai/v1/models")).status_code == 200
        assert (await g.client.get("/openai/livez")).status_code == 404
