"""A running server as the commands reach it: its address, the key, and reasons for failures.

Handles HTTP and the shape of errors, but not the meaning of the answers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar
from urllib.parse import urlencode

import click
import httpx
import httpx_sse

from serve_app.cli.output import printable
from serve_app.loopback import is_loopback_host

DEFAULT_URL: Final = "http://127.0.0.1:8000"
CONNECT_TIMEOUT_S: Final = 10.0
READ_TIMEOUT_S: Final = 30.0  # of an answer in one piece; a stream has no limit
MAX_ERROR_CHARS: Final = 1_000  # shown of a page that is not an error of ours

# Chooses the protocol below /v1 whatever the server's settings are. Other servers ignore it.
OPENAI: Final = {"X-API-Dialect": "openai"}

# Statuses after which a retry may succeed.
PASSING: Final = frozenset({408, 429, 502, 503, 504, 529})  # 529: Anthropic's word for a full queue

Result = TypeVar("Result")


class ServerError(click.ClickException):
    """The server cannot be reached, or refused the request; the message says what to do."""

    def __init__(self, message: str, status: int | None = None) -> None:
        """`status` is the HTTP status, or None if there was no answer."""
        super().__init__(message)
        self.status = status

    @property
    def may_pass(self) -> bool:
        """Whether the same request may succeed a little later."""
        return self.status is None or self.status in PASSING


@dataclass(frozen=True, slots=True)
class Server:
    """The server that requests are sent to, and the key that they carry."""

    url: str  # scheme, host and port, without a slash at the end
    key: str | None = field(default=None, repr=False)

    def get(self, path: str) -> httpx.Response:
        """The answer to a GET, whatever its status. Raises ServerError if there is no answer."""
        with self._client(READ_TIMEOUT_S) as client, self._reached():
            return client.get(path)

    def read(self, path: str, **query: Any) -> dict[str, Any]:
        """The JSON object at `path`; query parameters that are None are left out. Raises ServerError."""
        given = {name: value for name, value in query.items() if value is not None}
        path = f"{path}?{urlencode(given)}" if given else path
        return self._object(path, self.get(path))

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The JSON object that answers a request with a JSON body, or without a body. Raises ServerError."""
        with self._client(READ_TIMEOUT_S) as client, self._reached():
            response = client.request(method, path, json=body)
        return self._object(path, response)

    def _object(self, path: str, response: httpx.Response) -> dict[str, Any]:
        if response.is_success:
            try:
                body = response.json()
            except ValueError:
                body = None
            if isinstance(body, dict):
                return body
            raise ServerError(f"{self.url}{path} does not answer as serve-app does; check --url")
        raise refusal(response)

    @contextmanager
    def stream(self, path: str, body: Mapping[str, Any]) -> Iterator[Iterator[str]]:
        """The data of each server-sent event in the answer to a POST. Raises ServerError.

        Leaving the block closes the connection, which makes the server stop working on the answer.
        """
        with (
            self._client(None) as client,
            self._reached(),
            httpx_sse.connect_sse(client, "POST", path, json=body) as source,
        ):
            if not source.response.is_success:
                source.response.read()
                raise refusal(source.response)
            yield (event.data for event in source.iter_sse() if event.data)

    def many(self, connections: int) -> httpx.AsyncClient:
        """A client for up to `connections` concurrent requests, in any protocol, without a time limit."""
        limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
        return httpx.AsyncClient(limits=limits, headers=self._key, **self._options(None))

    def _client(self, read_timeout_s: float | None) -> httpx.Client:
        return httpx.Client(headers=OPENAI | self._key, **self._options(read_timeout_s))

    @property
    def _key(self) -> dict[str, str]:
        return {} if self.key is None else {"Authorization": f"Bearer {self.key}"}

    def _options(self, read_timeout_s: float | None) -> dict[str, Any]:
        return {
            "base_url": self.url,
            "timeout": httpx.Timeout(CONNECT_TIMEOUT_S, read=read_timeout_s),
            # No proxy stands between this machine and itself.
            "trust_env": not is_loopback_host(httpx.URL(self.url).host),
        }

    @contextmanager
    def _reached(self) -> Iterator[None]:
        try:
            yield
        except httpx.ConnectError as error:
            raise ServerError(
                f"no server answers at {self.url} ({error}). Is it running? "
                "`serve-app serve FILE` starts one; --url names another place"
            ) from error
        except httpx.TimeoutException as error:
            raise ServerError(f"{self.url} did not answer in time; `serve-app health` says more") from error
        except httpx_sse.SSEError as error:
            raise ServerError("the answer is not a stream of events; check --url") from error
        except httpx.HTTPError as error:
            raise ServerError(f"the connection to {self.url} broke: {error}") from error


def refusal(response: httpx.Response) -> ServerError:
    """Why the server refused, and what to do."""
    message = _message_of(response) or response.text[:MAX_ERROR_CHARS].strip() or response.reason_phrase
    hints = {
        401: "; give a key with --key or SERVE_APP_KEY (`serve-app keys new NAME` makes one)",
        429: _retry_hint(response),
        503: _retry_hint(response),
    }
    hint = hints.get(response.status_code, "")
    return ServerError(f"{printable(message)} (HTTP {response.status_code}){hint}", response.status_code)


def server_options(command: Callable[..., Result]) -> Callable[..., Result]:
    """Give a command the options `--url` and `--key`; the command gets them as its argument `server`."""

    @click.option(
        "--url",
        default=DEFAULT_URL,
        envvar="SERVE_APP_URL",
        show_default=True,
        show_envvar=True,
        callback=checked_url,
        help="Where the server is.",
    )
    @click.option(
        "--key",
        envvar="SERVE_APP_KEY",
        show_envvar=True,
        callback=checked_key,
        help="API key; the variable keeps it out of the process list.",
    )
    @functools.wraps(command)
    def with_server(*args: Any, url: str, key: str | None, **kwargs: Any) -> Result:
        return command(*args, server=Server(url, key), **kwargs)

    return with_server


def url_option(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Like `checked_url`, for an option that may be omitted."""
    return None if value is None else checked_url(context, parameter, value)


def checked_url(context: click.Context, parameter: click.Parameter, value: str) -> str:
    """An option's callback: the URL of a server, without a slash at the end."""
    text = value if "://" in value else f"http://{value}"
    try:
        # The base URL of SDKs is accepted too.
        url = httpx.URL(text.rstrip("/").removesuffix("/v1"))
    except httpx.InvalidURL as error:
        raise click.BadParameter(f"is not a URL: {error}") from error
    more = " " in text or url.userinfo or url.query or url.fragment
    if more or url.scheme not in ("http", "https") or not url.host:
        raise click.BadParameter("must be like http://127.0.0.1:8000; a key goes to --key")
    return str(url).rstrip("/")


def checked_key(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """An option's callback: an API key, or none."""
    key = (value or "").strip()
    if not all("!" <= character <= "~" for character in key):  # the message must not show it
        raise click.BadParameter("a key has only visible ASCII characters")
    return key or None


def _message_of(response: httpx.Response) -> str | None:
    """What an error in one of our shapes says: OpenAI's, or Databricks'. None for another shape."""
    try:
        body = response.json()
        return str(body["error"]["message"] if "error" in body else body["message"])
    except (ValueError, LookupError, TypeError):
        return None


def _retry_hint(response: httpx.Response) -> str:
    seconds = response.headers.get("retry-after", "")
    return f"; try again in {seconds} s" if seconds.isdigit() else ""
