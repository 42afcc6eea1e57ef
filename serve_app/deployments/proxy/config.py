"""The configuration that Ray writes for HAProxy -> the one that HAProxy runs with. Text to text.

Ray's file is read by section; lines that are not named here stay as they are. A later Ray may write
other lines: a line that cannot be found raises ValueError, because HAProxy would otherwise listen
where it must not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from serve_app.deployments.proxy.settings import HaproxySettings

LOOPBACK: Final = "127.0.0.1"
HTTP: Final = "frontend http_frontend"
PUBLIC: Final = frozenset({HTTP, "frontend grpc_frontend"})
UNROUTED: Final = "backend default_backend"  # Ray's, for paths that no application has
INDENT: Final = "    "

# One client may have as many addresses as it likes below a prefix of IPv6.
_SOURCE: Final = "src,ipmask(32,64)"

_BIND: Final = re.compile(r"bind (?P<address>\S*):(?P<port>\d+)(?P<options>.*)")
_ADMIN: Final = re.compile(r"stats socket (?P<path>\S+)(?P<options>.*)")
# Splicing moves large bodies without a copy, for two more files a connection: answers here are small.
_DROPPED: Final = ("errorfile ", "timeout http-request ", "timeout client ", "option splice-")
_FALLBACK: Final = re.compile(r"server \S+ \S+ check backup")


@dataclass
class Section:
    """One section of a configuration: its first line, and the others without indentation."""

    head: str
    lines: list[str] = field(default_factory=list)


def admin_socket(text: str) -> str:
    """The path of the socket that Ray asks HAProxy at. Raises ValueError where there is none."""
    found = _ADMIN.search(text)
    if found is None:
        raise ValueError("the configuration has no admin socket")
    return found["path"]


def adapted(text: str, settings: HaproxySettings, admin: str, former: str = "") -> str:
    """Ray's `text` with `settings`, and `admin` as the path of HAProxy's own admin socket.

    A backend without a server of its own keeps those that it had in `former`, an adapted text: while a
    gateway takes new endpoints Ray counts it out, though it answers. One that is gone refuses the
    connection, and that is told as if it were not there. Raises ValueError when `text` is not as Ray
    2.60 writes it.
    """
    sections = list(_sections(text))
    heads = {section.head for section in sections}
    if missing := {"global", "defaults", HTTP, UNROUTED} - heads:
        raise ValueError(f"the configuration has no section: {', '.join(sorted(missing))}")
    served = {section.head: list(_servers(section)) for section in _sections(former)}
    has_routes = any(line.startswith("use_backend ") for s in sections if s.head == HTTP for line in s.lines)
    for section in sections:
        host = settings.host if section.head in PUBLIC else LOOPBACK
        section.lines = [_bound(line, host) for line in section.lines]
        if section.head == "global":
            section.lines = list(_global(section.lines, admin))
        elif section.head == "defaults":
            section.lines = list(_defaults(section.lines, settings))
        elif section.head == HTTP:
            section.lines[:0] = [*_budget(sections), *settings.request_rules]
        elif section.head == UNROUTED:
            rules = settings.missing_rules if has_routes else settings.starting_rules
            section.lines = list(rules) or section.lines
        elif section.head.startswith("backend "):
            # Serve's Python proxy would answer in its place, or let the client wait: it stays a server
            # that Ray can count, and gets no request.
            kept = [] if any(_servers(section)) else served.get(section.head, [])
            section.lines = [f"{x} disabled" if _FALLBACK.fullmatch(x) else x for x in section.lines] + kept
    return "".join(_text(sections))


def _sections(text: str) -> Iterator[Section]:
    section: Section | None = None
    for raw in text.splitlines():
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        if not raw[0].isspace():
            if section is not None:
                yield section
            section = Section(line)
        elif section is not None:
            section.lines.append(line)
        else:
            raise ValueError(f"a line outside of any section: {line}")
    if section is not None:
        yield section


def _servers(section: Section) -> Iterator[str]:
    """The lines of a backend's own servers."""
    return (line for line in section.lines if line.startswith("server ") and " backup" not in line)


def _text(sections: Iterable[Section]) -> Iterator[str]:
    for section in sections:
        yield f"{section.head}\n"
        yield from (f"{INDENT}{line}\n" for line in section.lines)


def _bound(line: str, host: str) -> str:
    """A `bind` line at `host`; any other line as it is."""
    if not line.startswith("bind "):
        return line
    found = _BIND.fullmatch(line)
    if found is None:
        raise ValueError(f"not an address and a port: {line}")
    both = " v4v6" if host == "::" else ""
    return f"bind {host}:{found['port']}{both}{found['options']}"


def _global(lines: list[str], admin: str) -> Iterator[str]:
    for line in lines:
        if _ADMIN.match(line):
            yield f"stats socket {admin} mode 600 level admin expose-fd listeners"
        else:
            yield line


def _defaults(lines: list[str], settings: HaproxySettings) -> Iterator[str]:
    for line in lines:
        if not line.startswith(_DROPPED):
            yield line
    yield f"timeout http-request {settings.headers_s}s"
    yield f"timeout client {settings.client_s}s"
    yield from settings.errors


def _budget(sections: list[Section]) -> Iterator[str]:
    """One client has at most half of the connections: the others are for the others."""
    lines = (line for section in sections if section.head == "global" for line in section.lines)
    maxconn = next((int(line.split()[1]) for line in lines if line.startswith("maxconn ")), None)
    if maxconn is None:
        raise ValueError("the configuration does not say how many connections there may be")
    yield "stick-table type ipv6 size 100k expire 1m store conn_cur"
    yield f"tcp-request connection track-sc0 {_SOURCE}"
    yield f"tcp-request connection reject if {{ sc0_conn_cur gt {maxconn // 2} }}"
