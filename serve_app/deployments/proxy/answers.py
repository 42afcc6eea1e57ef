"""The answers of HAProxy itself, in the format of the request's protocol.

HAProxy answers when no gateway can: while the server starts, while a gateway is replaced, and when one dies
with a request. `api.dialects` defines the shapes of errors. This module writes these shapes where HAProxy
finds them: a file for each condition, with the body of each protocol on its own line. Not covered: requests
that HAProxy cannot parse (400), and headers that come too slowly (408). Before any rule applies, HAProxy
answers both with a page of its own, which `http-error 400` does not change; and their protocol is unknown.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from serve_app.api.error_renderers import render_error
from serve_app.api.protocol.error_reply import SHOULD_RETRY
from serve_app.api.protocol.family import (
    ANTHROPIC,
    ANTHROPIC_VERSION,
    CONTINUE,
    DATABRICKS,
    HEADER,
    MINDIE_ENDS,
    OWNED,
    V1,
    V2,
    V2_PAGE,
    V3,
    WORDS,
    Family,
)
from serve_app.deployments.proxy.repeats import CHANGE
from serve_app.errors import (
    GenerationFailed,
    InDoubt,
    InvalidBody,
    ReadTimeout,
    RouteNotFound,
    ServeError,
    Unavailable,
)

RETRY_AFTER_S: Final = 2  # a new gateway takes some seconds
STARTING: Final = Unavailable("the server is starting; try again soon", retry_after_s=RETRY_AFTER_S)
UNREADY: Final = Unavailable("no gateway is ready; try again soon", retry_after_s=RETRY_AFTER_S)
# Not a 502: clients such as Databricks' SDK retry a 503 with Retry-After by themselves.
LOST: Final = Unavailable("the gateway ended before it answered; try again soon", retry_after_s=RETRY_AFTER_S)
UNSURE: Final = InDoubt(
    "the gateway ended before it answered, and the change may be made; look, then ask again if it is not"
)
BROKEN: Final = GenerationFailed("the gateway could not be asked; the request may be retried")
SLOW: Final = ReadTimeout("the body did not arrive in time")  # a gateway's words
NOT_HTTP: Final = InvalidBody("the request is not valid HTTP")
MISSING: Final = RouteNotFound("there is no such route")

_PROTOCOL: Final = "txn.serve_app_protocol"
_PATH: Final = "path,url_dec"


def request_rules(v1: Family) -> Iterator[str]:
    """Rules of a frontend that store the protocol of a request, as `family_of` finds it.

    Later rules win. `v1`: the family of paths below /v1. An unknown word in the header is ignored here, since
    a gateway refuses such a request anyway.
    """
    yield _note(Family.OPENAI)
    yield _note(Family.TRITON, f"{{ {_PATH} -m str {V2_PAGE} }} || {{ {_PATH} -m beg {V2} }}")
    yield _note(Family.MINDIE, f"{{ {_PATH} -m beg {V2} }} {{ {_PATH} -m end {' '.join(MINDIE_ENDS)} }}")
    yield _note(Family.MINDIE, f"{{ {_PATH} -m str {' '.join(CONTINUE)} }}")
    yield _note(Family.OVMS, f"{{ {_PATH} -m beg {V3} }}")
    yield _note(Family.DATABRICKS, f"{{ {_PATH} -m beg {' '.join(DATABRICKS)} }}")
    yield _note(v1, f"{{ {_PATH} -m beg {V1} }}")
    yield _note(Family.ANTHROPIC, f"{{ {_PATH} -m beg {' '.join(ANTHROPIC)} }}")
    yield _note(Family.ANTHROPIC, f"{{ req.hdr({ANTHROPIC_VERSION}) -m found }}")
    for word, family in WORDS.items():
        below = " ".join(f"/{word}{path}" for path in OWNED)
        yield _note(family, f"{{ {_PATH} -m beg {below} }} || {{ {_PATH} -m str /{word}{V2_PAGE} }}")
    for word, family in WORDS.items():
        yield _note(family, f"{{ req.fhdr({HEADER},1) -m str {word} }}")
    # Only we answer with a status 502: gateways never do.
    for change in ("del-header retry-after", f"set-header {SHOULD_RETRY} false"):
        yield f"http-after-response {change} if {{ status 502 }} {{ var({CHANGE}) -m found }}"
    yield "http-after-response set-status 503 if { status 502 }"


def foreign_rules(folder: Path) -> Iterator[str]:
    """Rules of a frontend that replace plain-text errors of a gateway's HTTP server with our own errors."""
    bodies = _bodies(folder / "not-http.map", NOT_HTTP)
    foreign = "{ status 400 } { res.hdr(content-type) -m beg text/plain }"
    yield f"http-response return status 400 {_headers(NOT_HTTP)} lf-string {bodies} if {foreign}"


def errors(folder: Path) -> Iterator[str]:
    """Lines of the section `defaults`: the answers of HAProxy itself. Their bodies are files in `folder`."""
    for status, name, error, of_change in (
        (503, "unready", UNREADY, UNREADY),
        (502, "lost", LOST, UNSURE),
        (500, "broken", BROKEN, BROKEN),
        (504, "broken", BROKEN, BROKEN),
        (408, "slow", SLOW, SLOW),
    ):
        bodies = _bodies(folder / f"{name}.map", error, of_change)
        yield f"http-error status {status} {_headers(error)} lf-string {bodies}"


def starting_rules(folder: Path) -> Iterator[str]:
    """Rules of a backend that answers while the server has no application yet."""
    bodies = _bodies(folder / "starting.map", STARTING)
    yield f"http-request return status 503 {_headers(STARTING)} lf-string {bodies}"


def missing_rules(folder: Path) -> Iterator[str]:
    """Rules of a backend that answers requests for paths without an application."""
    bodies = _bodies(folder / "missing.map", MISSING)
    yield f"http-request return status 404 {_headers(MISSING)} lf-string {bodies}"


def _note(family: Family, condition: str = "") -> str:
    return f"http-request set-var({_PROTOCOL}) str({family})" + (f" if {condition}" if condition else "")


def _headers(error: ServeError) -> str:
    """HAProxy's arguments for the headers of `error`; the headers are the same in all protocols."""
    headers = dict(render_error(Family.OPENAI, error).headers)
    return " ".join(
        [
            f"content-type {headers.pop('content-type')}",
            *(f"hdr {name} {text}" for name, text in headers.items()),
        ]
    )


def _bodies(file: Path, error: ServeError, of_change: ServeError | None = None) -> str:
    """Writes the body of `error` in each protocol to `file`. Returns HAProxy's expression for one body.

    `of_change`: the error for a management request; None: the same error as for others.
    """
    errors_by_kind = {"": error, "-change": of_change or error}
    lines = (
        f"{family}{kind} {render_error(family, each).body.decode('ascii')}\n"
        for family in Family
        for kind, each in errors_by_kind.items()
    )
    file.write_text("".join(lines))
    return f'"%[var({_PROTOCOL}),concat(,{CHANGE}),map_str({file})]"'
