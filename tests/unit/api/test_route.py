"""The table of routes: entries of one path become one route, and what cannot be told apart is refused."""

import pytest
from starlette.types import Receive, Scope, Send

from serve_app.api.protocol.family import Family
from serve_app.api.route import ByFamily, Entry, paths_of
from serve_app.types import Scope as KeyScope


async def one(scope: Scope, receive: Receive, send: Send) -> None:
    """An app."""


async def other(scope: Scope, receive: Receive, send: Send) -> None:
    """Another app."""


def entry(path: str, family: Family | None = None, app: object = one, **fields: object) -> Entry:
    return Entry(
        **{"method": "POST", "path": path, "app": app, "scope": KeyScope.INFERENCE, **fields}, family=family
    )


def test_the_entries_of_one_path_become_one_route_where_the_path_is_first_named() -> None:
    paths = paths_of([entry("/a", Family.OPENAI), entry("/b"), entry("/a", Family.OVMS, other)])
    assert [path.template for path in paths] == ["/a", "/b"]
    by_family = paths[0].app
    assert isinstance(by_family, ByFamily)
    assert by_family.apps == {Family.OPENAI: one, Family.OVMS: other}
    assert paths[1].app is one


def test_one_path_may_have_a_route_for_each_method() -> None:
    assert len(paths_of([entry("/a"), entry("/a", method="GET")])) == 2


@pytest.mark.parametrize("families", [(Family.OVMS, Family.OVMS), (None, None), (None, Family.OVMS)])
def test_two_entries_that_answer_the_same_requests_are_refused(families: tuple[Family | None, ...]) -> None:
    with pytest.raises(ValueError, match="POST /a: two entries answer the same requests"):
        paths_of(entry("/a", family) for family in families)


def test_entries_of_one_path_need_the_same_scope() -> None:
    with pytest.raises(ValueError, match="POST /a: the entries need different scopes"):
        paths_of([entry("/a", Family.OVMS), entry("/a", Family.OPENAI, scope=None)])
