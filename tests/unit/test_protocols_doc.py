"""docs/protocols.md says what the server does: every field, its range, every error row, and their tests."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from itertools import product
from typing import Any, Final

import pytest
from pydantic import ValidationError

from serve_app import errors
from serve_app.api.body import WireModel
from serve_app.api.dialects import (
    databricks_chat,
    databricks_completions,
    databricks_embeddings,
    mindie_chat,
    mindie_errors,
    mindie_generate,
    openai_chat,
    openai_completions,
    openai_embeddings,
    openai_fields,
    openai_grammar,
    ovms_chat,
    ovms_completions,
)
from serve_app.api.dialects.base import ErrorReply
from serve_app.api.dialects.errors import RENDERERS
from serve_app.api.dialects.family import Family
from serve_app.api.mindie import StopBody
from serve_app.config import MindieConfig, OvmsConfig
from serve_app.errors import ServeError
from tests.named_tests import REFERENCE, ROOT, NoSuchTest, find, mentions, words_of
from tests.protocol_tables import Row, rows

DOCUMENT: Final = (ROOT / "docs" / "protocols.md").read_text("utf-8")

# Protocol -> what the heading of a table says -> the bodies whose fields it lists, each below a path.
BODIES: Final[Mapping[str, Mapping[str, Mapping[str, type[WireModel]]]]] = {
    "OpenAI": {
        "chat": {"": openai_chat.ChatBody},
        "completions": {"": openai_completions.CompletionBody},
        "embeddings": {"": openai_embeddings.EmbeddingBody},
    },
    "Databricks": {
        "chat": {"": databricks_chat.ChatBody},
        "completions": {"": databricks_completions.CompletionBody},
        "embeddings": {"": databricks_embeddings.EmbeddingBody},
    },
    "MindIE chat": {"chat": {"": mindie_chat.ChatBody}},
    "MindIE generate": {
        "generate_stream": {"": mindie_generate.TextBody, "parameters.": mindie_generate.Parameters},
        "stopinfer": {"": StopBody},
    },
    "OpenVINO Model Server": {
        "chat": {"": ovms_chat.ChatBody},
        "completions": {"": ovms_completions.CompletionBody},
        "embeddings": {"": openai_embeddings.EmbeddingBody},
    },
}
NESTED: Final[Mapping[str, type[WireModel]]] = {"stream_options.": openai_fields.StreamOptions}

# Fields that a body reads beside those of its model.
BESIDE: Final = {("OpenAI", "chat"): openai_grammar.FIELDS, ("OpenAI", "completions"): openai_grammar.FIELDS}

# Fields whose usual bound is narrower than that of their type.
NARROWER: Final = {
    ("MindIE generate", "text_input"): f"a string of 1 to {MindieConfig().max_input_chars} characters",
    ("OpenVINO Model Server", "best_of"): f"an integer from 1 to {OvmsConfig().best_of_limit}",
    ("OpenVINO Model Server", "n"): "an integer from 1 to `best_of`",
    ("MindIE chat", "model"): "1 to 256 of A-Z a-z 0-9",
}

ERRORS: Final[Mapping[str, Callable[[ServeError], ErrorReply]]] = {
    "OpenAI": RENDERERS[Family.OPENAI],
    "Databricks": RENDERERS[Family.DATABRICKS],
    "MindIE chat": mindie_errors.render_body_error,
    "MindIE generate": mindie_errors.render_error,
    "OpenVINO Model Server": RENDERERS[Family.OVMS],
}
CONDITIONS: Final = {kind.condition: kind for kind in reversed(errors.KINDS.values())}
NUMBERED: Final = {condition for condition in CONDITIONS if condition[1:].isdecimal()}
NOT_THERE: Final = {"OpenAI": {"E4"}, "MindIE chat": {"E4"}}  # rows of conditions that a protocol cannot meet


# --- what is looked for; each finds problems in words ------------------------------------------


def missing_tests(table: Iterable[Row]) -> list[str]:
    problems = []
    for row in table:
        problems += [f"{row.place}: nothing is called {name}" for name in row.unknown]
        if not row.tests:
            problems.append(f"{row.place}: names no test")
        for test in row.tests:
            try:
                find(test)
            except NoSuchTest as error:
                problems.append(f"{row.place}: {error}")
    return problems


def unrelated_tests(table: Iterable[Row]) -> list[str]:
    """A test of a field sends a field of that name; a test of a row of errors has its number in a name."""
    problems = []
    for row in table:
        if row.kind not in ("field", "tensor", "row"):
            continue
        for test, name in product(row.tests, row.names):
            last = name.rpartition(".")[2]
            if not mentions(test, last) and not (row.kind == "row" and mentions(test, last.lower())):
                problems.append(f"{row.place}: {test} does not mention {name}")
    return problems


def fields_that_do_not_match(table: Iterable[Row]) -> list[str]:
    listed = [row for row in table if row.kind == "field"]
    problems = []
    for protocol, routes in BODIES.items():
        for route, bodies in routes.items():
            own = [r for r in listed if r.protocol == protocol and route in r.heading.lower()]
            told = {name for row in own for name in row.names}
            known = set(known_fields(protocol, route, bodies))
            problems += [f"{protocol}, {route}: no row for {name}" for name in sorted(known - told)]
            problems += [
                f"{protocol}, {route}: no body has {name}"
                for name in sorted(told - known)
                if not is_free_form(name, bodies)
            ]
    problems += [
        f"{row.place}: of no route"
        for row in listed
        if not any(route in row.heading.lower() for route in BODIES.get(row.protocol, ()))
    ]
    return problems


def ranges_that_differ(table: Iterable[Row]) -> list[str]:
    listed = [row for row in table if row.kind == "field"]
    problems = []
    for protocol, routes in BODIES.items():
        for route, bodies in routes.items():
            known = known_fields(protocol, route, bodies)
            for row in listed:
                if row.protocol != protocol or route not in row.heading.lower():
                    continue
                for name in row.names:
                    words = NARROWER.get((protocol, name), known.get(name, ""))
                    if words not in row.cells[0]:
                        problems.append(f"{row.place}: the server says {words!r}, not {row.cells[0]!r}")
    return problems


def errors_that_differ(table: Iterable[Row]) -> list[str]:
    listed = [row for row in table if row.kind == "row"]
    problems = []
    for protocol, render in ERRORS.items():
        own = {row.names[0]: row for row in listed if row.protocol == protocol}
        wanted = NUMBERED - NOT_THERE.get(protocol, set())
        problems += [f"{protocol}: no row {name}" for name in sorted(wanted - own.keys())]
        problems += [f"{protocol}: there is no condition {name}" for name in sorted(own.keys() - wanted)]
        for name in sorted(wanted & own.keys()):
            cell = own[name].cells[1]
            problems += [
                f"{own[name].place}: {word!r} is not in {cell!r}"
                for word in words_of_error(render(CONDITIONS[name]("x")))
                if word not in cell
            ]
    return problems


# --- what the server says ----------------------------------------------------------------------


def known_fields(protocol: str, route: str, bodies: Mapping[str, type[WireModel]]) -> dict[str, str]:
    """Every field's path -> the range that a refusal tells; "" where the type alone tells none."""
    found = dict.fromkeys(BESIDE.get((protocol, route), ()), "")
    for prefix, body in bodies.items():
        for name in body.model_fields:
            found[prefix + name] = told_range(body, name)
            for member in NESTED[f"{name}."].model_fields if f"{name}." in NESTED else ():
                found[f"{prefix}{name}.{member}"] = told_range(NESTED[f"{name}."], member)
    return found


def is_free_form(name: str, bodies: Mapping[str, type[WireModel]]) -> bool:
    """Whether a path leads into a field that has no model of its own."""
    head, dot, _ = name.partition(".")
    body = bodies[""]
    return bool(dot) and head in body.model_fields and body.model_fields[head].annotation is Any


@cache
def told_range(body: type[WireModel], name: str) -> str:
    """What the field's own refusal calls acceptable."""
    try:
        body.model_validate({name: object()})
    except ValidationError as error:
        message = next(each["msg"] for each in error.errors() if each["loc"][0] == name)
        return re.sub("^must (be |map )?", "", message) if message.startswith("must ") else ""
    return ""


def words_of_error(reply: ErrorReply) -> list[str]:
    """Its status, and the fixed strings of its body."""
    return [str(reply.status), *_fixed(json.loads(reply.body))]


def _fixed(body: Any) -> list[str]:
    if isinstance(body, dict):
        return [word for value in body.values() for word in _fixed(value)]
    return [body] if isinstance(body, str) and body != "x" else []


# --- the document ------------------------------------------------------------------------------

CHECKS: Final = (
    missing_tests,
    unrelated_tests,
    fields_that_do_not_match,
    ranges_that_differ,
    errors_that_differ,
)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_document_has_no(check: Callable[[Iterable[Row]], list[str]]) -> None:
    assert check(list(rows(DOCUMENT))) == []


def test_tests_named_in_the_text_are_there() -> None:
    names = set(REFERENCE.findall(DOCUMENT))
    assert len(names) > 100
    for name in names:
        find(name)


# --- the checks can fail -----------------------------------------------------------------------

CHAT_TESTS: Final = "openai_chat/test_chat.py::test_what_is_inside_its_bounds_is_accepted"


@pytest.mark.parametrize(
    ("check", "old", "new", "problem"),
    [
        (missing_tests, CHAT_TESTS, CHAT_TESTS + "_not", "has no test"),
        (missing_tests, CHAT_TESTS, "openai_chat/test_nothing.py::test_x", "there is no file"),
        (missing_tests, "::TestShared::test_e3_an", "::TestShared::test_e3_no", "has no test"),
        (missing_tests, "::TestShared::test_e3_an", "::TestNobody::test_e3_an", "no class"),
        (missing_tests, "| bounds, defaults |", "| nonsense |", "nothing is called nonsense"),
        (missing_tests, "| bounds, defaults |", "| |", "names no test"),
        (unrelated_tests, "| `reasoning_effort` |", "| `reasoning_strength` |", "does not mention"),
        (unrelated_tests, "::test_e14_a_body", "::test_e1_a_body_that_is_no_json_object x", "E14"),
        (fields_that_do_not_match, "| `top_p` |", "| `top_q` |", "OpenAI, chat: no row for top_p"),
        (fields_that_do_not_match, "| `top_p` |", "| `top_q` |", "OpenAI, completions: no body has top_q"),
        (fields_that_do_not_match, "| `parameters.seed` |", "| `seed` |", "no body has seed"),
        (fields_that_do_not_match, "`guided_grammar`", "`guided_grammer`", "no row for guided_grammar"),
        (fields_that_do_not_match, ".include_usage`", ".exclude_usage`", "no body has stream_options."),
        (fields_that_do_not_match, "### Embeddings", "### Elsewhere", "of no route"),
        (ranges_that_differ, "an integer from 0 to 4294967295", "an integer from 0 to 9", "the server says"),
        (ranges_that_differ, "1 to 524288 characters (setting", "1 to 9 characters (setting", "524288"),
        (errors_that_differ, "| E14 |", "| E77 |", "OpenAI: no row E14"),
        (errors_that_differ, "| E14 |", "| E77 |", "OpenAI: there is no condition E77"),
        (errors_that_differ, "| 424 Generation Error |", "| 500 Generation Error |", "'424' is not in"),
        (errors_that_differ, "| 404 ENDPOINT_NOT_FOUND |", "| 404 NOT_FOUND |", "'ENDPOINT_NOT_FOUND'"),
    ],
    ids=lambda value: None if callable(value) else str(value)[:40],
)
def test_a_broken_document_is_found(
    check: Callable[[Iterable[Row]], list[str]], old: str, new: str, problem: str
) -> None:
    broken = DOCUMENT.replace(old, new)
    assert broken != DOCUMENT
    assert any(problem in found for found in check(list(rows(broken))))


def test_a_test_mentions_what_it_and_its_tables_send_and_no_more() -> None:
    """A field of another table of the same module, or of a helper, is not tested by this one."""
    assert "temperature" in words_of(
        "databricks/test_databricks_chat_fields.py::test_the_fields_reach_the_model"
    )
    assert "max_n" not in words_of(
        "databricks/test_databricks_chat_fields.py::test_the_fields_reach_the_model"
    )
    shared = words_of("openai_chat/test_chat.py::TestShared::test_what_is_inside_its_bounds_is_accepted")
    assert {"top_p", "guided_grammar"} <= shared
    assert "top_logprobs" not in shared
