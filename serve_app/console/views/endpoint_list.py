"""Which endpoints a list shows, and in what order. Does not depend on routes or templates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import urlencode

from serve_app.console.views.endpoints import EndpointView

MOST_ROWS: Final = 100  # of one page
# A sortable column -> its title, and what it sorts by.
SORTS: Final[Mapping[str, tuple[str, Callable[[EndpointView], Any]]]] = {
    "name": ("Name", lambda each: each.name.casefold()),
    "state": ("State", lambda each: each.status.word),
    "task": ("Task", lambda each: each.task),
    "kind": ("Runs on", lambda each: each.kind),
    "updated": ("Changed", lambda each: each.updated),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ListQuery:
    """Which part of the list was requested, and its order."""

    words: str = ""
    sort: str = "name"
    is_descending: bool = False
    page: int = 1

    @classmethod
    def of(cls, query: Mapping[str, str]) -> ListQuery:
        """Parse a page's query. Unknown values fall back to the whole list, sorted by name."""
        sort, page = query.get("sort", ""), query.get("page", "")
        return cls(
            words=query.get("q", "").strip(),
            sort=sort if sort in SORTS else "name",
            is_descending=query.get("order") == "desc",
            page=max(1, int(page)) if page.isascii() and page.isdigit() and len(page) < 7 else 1,
        )

    def link(self, **changes: Any) -> str:
        """The page's query, with some values changed."""
        asked = replace(self, **changes)
        fields = {
            "q": asked.words,
            "sort": "" if asked.sort == "name" else asked.sort,
            "order": "desc" if asked.is_descending else "",
            "page": "" if asked.page == 1 else str(asked.page),
        }
        return urlencode({name: value for name, value in fields.items() if value})

    def link_by(self, column: str) -> str:
        """The query that sorts by a column, or reverses the order if the list is already sorted by it."""
        is_same = column == self.sort
        return self.link(sort=column, is_descending=is_same and not self.is_descending, page=1)

    def direction_of(self, column: str) -> str:
        """For `aria-sort`."""
        if column != self.sort:
            return "none"
        return "descending" if self.is_descending else "ascending"


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointPage:
    """One page of a list."""

    query: ListQuery
    endpoints: Sequence[EndpointView]
    count: int  # of all pages

    @property
    def is_last(self) -> bool:
        return self.query.page * MOST_ROWS >= self.count


def endpoint_page(endpoints: Sequence[EndpointView], query: ListQuery) -> EndpointPage:
    """The endpoints whose name, description, models or tags contain every word of the query."""
    wanted = query.words.casefold().split()
    found = [each for each in endpoints if all(word in _text(each) for word in wanted)]
    _, key = SORTS[query.sort]
    found.sort(key=key, reverse=query.is_descending)
    first = (query.page - 1) * MOST_ROWS
    return EndpointPage(query=query, endpoints=found[first : first + MOST_ROWS], count=len(found))


def _text(endpoint: EndpointView) -> str:
    models = (entity.model for entity in endpoint.newest.entities) if endpoint.newest else ()
    tags = (f"{key}={value}" if value else key for key, value in endpoint.tags)
    return "\n".join((endpoint.name, endpoint.description, *models, *tags)).casefold()
