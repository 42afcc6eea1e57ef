"""docs/protocols.md says what the server does: every field, its range, every error row, and their tests."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Final

import pytest

from tests.support.named_tests import REFERENCE, ROOT, find, words_of
from tests.support.protocol_checks import (
    BODIES,
    CHECKS,
    errors_that_differ,
    fields_that_do_not_match,
    known_fields,
    missing_tests,
    tensors_that_differ,
    unrelated_tests,
)
from tests.support.protocol_reference import rewritten
from tests.support.protocol_tables import Row, rows

DOCUMENT: Final = (ROOT / "docs" / "protocols.md").read_text("utf-8")


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_document_has_no(check: Callable[[Iterable[Row]], list[str]]) -> None:
    assert check(list(rows(DOCUMENT))) == []


def test_tests_named_in_the_text_are_there() -> None:
    names = set(REFERENCE.findall(DOCUMENT))
    assert len(names) > 100
    for name in names:
        find(name)


def test_the_tables_of_fields_are_the_codes() -> None:
    assert rewritten(DOCUMENT) == DOCUMENT, "run python -m tests.support.protocol_reference"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("an integer from 0 to 4294967295", "an integer from 0 to 9"),
        ("1 to 524288 characters (setting", "1 to 9 characters (setting"),
        ("default the model's, else 1.0; 0 is greedy", "default 7"),
        ("a list of 1 to 2048 messages", "a list of messages"),
    ],
)
def test_a_stale_table_is_written_anew(old: str, new: str) -> None:
    stale = DOCUMENT.replace(old, new)
    assert stale != DOCUMENT
    assert rewritten(stale) == DOCUMENT


@pytest.mark.parametrize("protocol", BODIES)
def test_the_numbers_of_a_range_are_those_of_the_schema(protocol: str) -> None:
    """A refusal, the tables and the OpenAPI document tell the same bounds of every field."""
    seen = 0
    for route, bodies in BODIES[protocol].items():
        for prefix, body in bodies.items():
            properties = body.model_json_schema()["properties"]
            for name, told in known_fields(protocol, route, {prefix: body}).items():
                name = name.removeprefix(prefix)
                if name not in properties or "names of" in told:  # a list of words, not a range
                    continue
                bounds = set(re.findall(r"-?\d+(?:\.\d+)?", str(properties[name])))
                numbers = {float(each) for each in re.findall(r"-?\d+(?:\.\d+)?", told)}
                assert numbers <= {float(each) for each in bounds}, (protocol, route, name)
                seen += bool(numbers)
    assert seen


# --- the checks can fail -----------------------------------------------------------------------

CHAT_TESTS: Final = "openai_chat/test_chat.py::test_what_is_inside_its_bounds_is_accepted"


@pytest.mark.parametrize(
    ("check", "old", "new", "problem"),
    [
        (missing_tests, CHAT_TESTS, CHAT_TESTS + "_not", "has no test"),
        (missing_tests, CHAT_TESTS, "openai_chat/test_nothing.py::test_x", "there is no file"),
        (missing_tests, "::TestShared::test_the_words", "::TestShared::test_no_words", "has no test"),
        (missing_tests, "::TestShared::test_the_words", "::TestNobody::test_the_words", "no class"),
        (missing_tests, "| bounds, defaults |", "| nonsense |", "nothing is called nonsense"),
        (missing_tests, "| bounds, defaults |", "| |", "names no test"),
        (unrelated_tests, "| `reasoning_effort` |", "| `reasoning_strength` |", "does not mention"),
        (unrelated_tests, "::test_e14_a_body", "::test_e1_a_body_that_is_no_json_object x", "E14"),
        (unrelated_tests, "| `details.batch_size` |", "| `details.step_size` |", "does not mention"),
        (fields_that_do_not_match, "| `top_p` |", "| `top_q` |", "OpenAI, chat: no row for top_p"),
        (fields_that_do_not_match, "| `top_p` |", "| `top_q` |", "OpenAI, completions: no body has top_q"),
        (fields_that_do_not_match, "| `parameters.seed` |", "| `seed` |", "no body has seed"),
        (fields_that_do_not_match, "`guided_grammar`", "`guided_grammer`", "no row for guided_grammar"),
        (fields_that_do_not_match, ".include_usage`", ".exclude_usage`", "no body has stream_options."),
        (fields_that_do_not_match, "### Embeddings", "### Elsewhere", "of no route"),
        (errors_that_differ, "| E14 |", "| E77 |", "OpenAI: no row E14"),
        (errors_that_differ, "| E14 |", "| E77 |", "OpenAI: there is no condition E77"),
        (errors_that_differ, "| 424 Generation Error |", "| 500 Generation Error |", "'424' is not in"),
        (errors_that_differ, "| 404 ENDPOINT_NOT_FOUND |", "| 404 NOT_FOUND |", "'ENDPOINT_NOT_FOUND'"),
        (tensors_that_differ, "| `pad_id` |", "| `pat_id` |", "Triton: no row for pad_id"),
        (tensors_that_differ, "| `pad_id` |", "| `pat_id` |", "Triton: there is no tensor pat_id"),
        (tensors_that_differ, "| `stop_words` |", "| `stopped` |", "Triton: no row for stop_words"),
        (tensors_that_differ, "`acceptance_rate`", "`rate`", "no row for the output acceptance_rate"),
        (tensors_that_differ, "INT32, an integer from 1 to 64", "INT32, an integer from 1 to 9", "'INT32, "),
        (tensors_that_differ, "INT32, [2, n] or [1, 2, n]", "INT32, [n] or [1, n]", "bad_words_list: the"),
        (errors_that_differ, "| 404, NOT_FOUND |", "| 404, INVALID_ARGUMENT |", "'NOT_FOUND' is not in"),
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
    assert {"cache_salt", "guided_grammar"} <= shared
    assert "top_logprobs" not in shared
