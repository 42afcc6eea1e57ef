"""Turns the configuration that Ray writes for HAProxy into the one that HAProxy uses. Text only.

Ray's file is read section by section; a line that is not mentioned here stays as it is. A later version of
Ray may write different lines. If an expected line is missing, ValueError is raised, since HAProxy might
otherwise listen where it must not.

No request is lost while gateways are replaced. Each configuration has its own HAProxy, and the HAProxy for
the new gateway may start only after the old gateway has left. So a request waits up to `wait_s` for a
gateway. A HAProxy that is ending, or whose gateways refuse connections, hands requests on to the HAProxy that
is listening now.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from serve_app.deployments.proxy.settings import HaproxySettings
from serve_app.loopback import LOOPBACK

HTTP: Final = "frontend http_frontend"
PUBLIC: Final = frozenset({HTTP, "frontend grpc_frontend"})
UNROUTED: Final = "backend default_backend"  # Ray's, for paths that no application has
INDENT: Final = "    "

# With IPv6, one client may have any number of addresses below its prefix.
_SOURCE: Final = "src,ipmask(32,64)"

_BIND: Final = re.compile(r"bind (?P<address>\S*):(?P<port>\d+)(?P<options>.*)")
_ADMIN: Final = re.compile(r"stats socket (?P<path>\S+)(?P<options>.*)")
# Splicing moves large bodies without a copy, for two more files a connection: answers here are small.
_DROPPED: Final = ("errorfile ", "timeout http-request ", "timeout client ", "option splice-")
_FALLBACK: Final = re.compile(r"server (?P<name>\S+) \S+ check backup")
_ROUTE: Final = "use_backend "
_HEALTH: Final = re.compile(r"acl (?P<acl>backend_\S+_server_up) nbsrv\((?P<backend>\S+)\) ge 1")

_LUA: Final = Path(__file__).with_name("wait.lua")
_NEXT: Final = "next"  # the socket at which the listening HAProxy takes requests of others
HANDED: Final = "x-serve-app-handed"  # a header, added each time that a request is handed on
MAX_HANDED: Final = 3


@dataclass
class Section:
    """One section of a configuration: its first line, and its other lines without indentation."""

    head: str
    lines: list[str] = field(default_factory=list)


def admin_socket(text: str) -> str:
    """The path of HAProxy's admin socket for Ray. Raises ValueError if there is no such path."""
    found = _ADMIN.search(text)
    if found is None:
        raise ValueError("the configuration has no admin socket")
    return found["path"]


def adapted(text: str, settings: HaproxySettings, admin: str, former: str = "") -> str:
    """Ray's `text` with `settings`, and `admin` as the path of HAProxy's own admin socket.

    A backend without a server of its own keeps the servers that it has in `former`, the previous adapted
    text. Ray leaves out a gateway that is putting new endpoints into effect, although that gateway still
    answers. Raises ValueError if `text` is not as Ray 2.60 writes it.
    """
    sections = list(_sections(text))
    heads = {section.head for section in sections}
    if missing := {"global", "defaults", HTTP, UNROUTED} - heads:
        raise ValueError(f"the configuration has no section: {', '.join(sorted(missing))}")
    served = {section.head: list(_servers(section)) for section in _sections(former)}
    frontend = next(section for section in sections if section.head == HTTP)
    routed = {line.split()[1] for line in frontend.lines if line.startswith(_ROUTE)}
    next_socket = str(Path(admin_socket(text)).with_name(_NEXT))
    servers: dict[str, list[str]] = {}  # backend -> names of its gateways
    for section in sections:
        host = settings.host if section.head in PUBLIC else LOOPBACK
        section.lines = [_bound(line, host) for line in section.lines]
        if section.head == "global":
            section.lines = list(_global(section.lines, admin))
        elif section.head == "defaults":
            section.lines = list(_defaults(section.lines, settings))
        elif section.head == UNROUTED:
            rules = settings.missing_rules if routed else settings.starting_rules
            section.lines = list(rules) or section.lines
        elif section.head.startswith("backend ") and (name := section.head.split()[1]) in routed:
            kept = [] if any(_servers(section)) else served.get(section.head, [])
            section.lines = [*_handing_on(section.lines, next_socket), *kept]
            servers[name] = [line.split()[1] for line in _servers(section)]
    frontend.lines = [
        f"bind unix@{next_socket} mode 600 name {_NEXT}",
        *_budget(sections),
        *settings.request_rules,
        *_bounded(),
        *_waiting(_without_routes(frontend.lines, settings.missing_rules), servers, settings.wait_s),
    ]
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
    """A `bind` line with `host` as its address; any other line unchanged."""
    if not line.startswith("bind "):
        return line
    found = _BIND.fullmatch(line)
    if found is None:
        raise ValueError(f"not an address and a port: {line}")
    both = " v4v6" if host == "::" else ""
    return f"bind {host}:{found['port']}{both}{found['options']}"


def _handing_on(lines: list[str], next_socket: str) -> Iterator[str]:
    """The lines of a backend, extended so that it uses the listening HAProxy if it has no gateway of its own.

    The listening HAProxy takes the place of Serve's Python proxy, under the same name: Ray keeps counting it.
    """
    found = next(filter(None, map(_FALLBACK.fullmatch, lines)), None)
    name = found["name"] if found else _NEXT
    yield from (line for line in lines if not _FALLBACK.fullmatch(line))
    yield f"use-server {name} if {{ stopping }}"
    # Connections are not kept: they would lead to the process that listened when they were opened.
    yield f"server {name} unix@{next_socket} backup no-check pool-max-conn 0"


def _bounded() -> Iterator[str]:
    """Rules of the frontend that limit how often a request is handed on."""
    yield f"acl was_handed_on so_name -m str {_NEXT}"
    yield f"http-request deny deny_status 503 if was_handed_on {{ req.hdr_cnt({HANDED}) ge {MAX_HANDED} }}"
    yield f"http-request add-header {HANDED} 1 if was_handed_on"


def _without_routes(lines: Iterable[str], missing_rules: Iterable[str]) -> Iterator[str]:
    """The lines of the frontend without Ray's page /-/routes, which shows applications to any caller.

    Gateways also have that page, so a request for it is answered with 404, however the path is spelled.
    """
    yield from (f"{rule} if {{ path,url_dec -i -m str /-/routes }}" for rule in missing_rules)
    for line in lines:
        if not line.startswith("acl routes ") and not line.endswith(" if routes"):
            yield line


def _waiting(lines: Iterable[str], servers: Mapping[str, list[str]], wait_s: int) -> Iterator[str]:
    """The lines of the frontend, changed so that a request waits for a gateway of its backend."""
    for line in lines:
        if found := _HEALTH.fullmatch(line):  # the server that hands on is always up
            yield from _up(found["acl"], found["backend"], servers[found["backend"]])
            continue
        if line.startswith(_ROUTE) and (backend := line.split()[1]) in servers:
            condition = line.split(" if ", 1)[1]
            acl, waited = f"{backend}_has_gateway", f"{{ var(txn.serve_app_backend) -m str {backend} }}"
            yield from _up(acl, backend, servers[backend])
            yield (
                f"http-request set-var(txn.serve_app_backend) str({backend}) "
                f"if {condition} !{{ var(txn.serve_app_backend) -m found }}"
            )
            yield f"http-request lua.wait_for_server {backend} {1000 * wait_s} if {waited} !{acl}"
            yield f"http-request deny deny_status 503 if {waited} !{acl} !{{ stopping }}"
        yield line


def _up(acl: str, backend: str, servers: list[str]) -> Iterator[str]:
    """Defines `acl` as true if one of `servers` is up."""
    yield from (f"acl {acl} srv_is_up({backend}/{server})" for server in servers)
    if not servers:
        yield f"acl {acl} always_false"


def _global(lines: list[str], admin: str) -> Iterator[str]:
    yield f"lua-load {_LUA}"
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
    """One client gets at most half of the connections."""
    lines = (line for section in sections if section.head == "global" for line in section.lines)
    maxconn = next((int(line.split()[1]) for line in lines if line.startswith("maxconn ")), None)
    if maxconn is None:
        raise ValueError("the configuration does not say how many connections there may be")
    yield "stick-table type ipv6 size 100k expire 1m store conn_cur"
    yield f"tcp-request connection track-sc0 {_SOURCE}"
    yield f"tcp-request connection reject if {{ sc0_conn_cur gt {maxconn // 2} }}"
