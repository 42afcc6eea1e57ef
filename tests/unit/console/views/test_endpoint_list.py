"""Which endpoints the list shows, and the code of the tab Query."""

from __future__ import annotations

from typing import Any

import pytest

from serve_app.console.views.endpoint_list import MOST_ROWS, ListQuery, endpoint_page
from serve_app.console.views.endpoints import endpoint_views


def endpoint(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "state": {"ready": "READY"}, **fields}


ENDPOINTS = endpoint_views(
    {
        "endpoints": [
            endpoint("Bravo", tags=[{"key": "team", "value": "sea"}], last_updated_timestamp=3),
            endpoint("alpha", description="for the harbor", last_updated_timestamp=1),
            endpoint(
                "charlie",
                config={"served_entities": [{"name": "c", "entity_name": "llama"}]},
                last_updated_timestamp=2,
            ),
        ]
    }
)


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ({}, ["alpha", "Bravo", "charlie"]),
        ({"order": "desc"}, ["charlie", "Bravo", "alpha"]),
        ({"sort": "updated"}, ["alpha", "charlie", "Bravo"]),
        ({"q": "team=sea"}, ["Bravo"]),
        ({"q": "HARBOR for"}, ["alpha"]),
        ({"q": "llama"}, ["charlie"]),
        ({"q": "llama harbor"}, []),
        ({"sort": "nothing", "page": "x"}, ["alpha", "Bravo", "charlie"]),
        ({"page": "2"}, []),
    ],
)
def test_a_query_finds_and_sorts(query: dict[str, str], names: list[str]) -> None:
    page = endpoint_page(ENDPOINTS, ListQuery.of(query))
    assert [each.name for each in page.endpoints] == names


def test_links_keep_the_rest_of_the_query() -> None:
    query = ListQuery.of({"q": "a b", "sort": "task"})
    assert query.link_by("task") == "q=a+b&sort=task&order=desc"
    assert query.link_by("name") == "q=a+b"
    assert (query.direction_of("task"), query.direction_of("name")) == ("ascending", "none")


def test_a_long_list_has_pages() -> None:
    many = endpoint_views({"endpoints": [endpoint(f"e{number:04}") for number in range(MOST_ROWS + 1)]})
    first, last = (endpoint_page(many, ListQuery(page=page)) for page in (1, 2))
    assert (len(first.endpoints), first.is_last) == (MOST_ROWS, False)
    assert ([each.name for each in last.endpoints], last.is_last) == ([f"e{MOST_ROWS:04}"], True)
