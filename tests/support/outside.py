"""A client on another machine: run in a network of its own by tests of what a server shows there.

python -m tests.support.outside COMMAND ...

ports HOST PORT...     the ports that take a connection
get URL [KEY]          status, headers and body
live HOST:PORT [KEY]   what gRPC says that the server is, or why it does not
watch URL KEY          answers as they change, a line each, until one is 200 after one was not
half HOST PORT N       opens N connections with half a header, says how many, and how they end
"""

import json
import resource
import selectors
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

import grpc
import httpx

from serve_app.rpc import kserve_pb2


def ports(host: str, *numbers: str) -> list[int]:
    return [int(number) for number in numbers if _is_open(host, int(number))]


def _is_open(host: str, port: int) -> bool:
    with socket.socket() as sock:
        sock.settimeout(5)
        return sock.connect_ex((host, port)) == 0


def get(url: str, key: str = "") -> dict[str, Any]:
    answer = httpx.get(url, headers={"authorization": f"Bearer {key}"} if key else {}, timeout=30)
    return {"status": answer.status_code, "headers": dict(answer.headers), "body": answer.text}


def live(address: str, key: str = "") -> str:
    with grpc.insecure_channel(address) as channel:
        method = channel.unary_unary(
            "/inference.GRPCInferenceService/ServerMetadata",
            kserve_pb2.ServerMetadataRequest.SerializeToString,
            kserve_pb2.ServerMetadataResponse.FromString,
        )
        try:
            found = method(
                kserve_pb2.ServerMetadataRequest(),
                metadata=[("authorization", f"Bearer {key}")] if key else [],
                timeout=30,
            )
            return str(found.name)
        except grpc.RpcError as error:
            return str(error.code().name)


def watch(url: str, key: str) -> str:
    """Each line: seconds since the start, status (0: refused or cut) and body."""
    began, last, was_away = time.monotonic(), None, False
    while True:
        try:
            answer = httpx.get(url, headers={"authorization": f"Bearer {key}"}, timeout=30)
            found = (answer.status_code, answer.text)
        except httpx.HTTPError as error:
            found = (0, type(error).__name__)
        if found != last:
            print(json.dumps([time.monotonic() - began, *found]), flush=True)
        last, was_away = found, was_away or found[0] != 200
        if was_away and found[0] == 200:
            return "back"
        time.sleep(0.02)


def half(host: str, port: str, count: str) -> dict[str, float]:
    """How many were left, and the seconds from when the last was opened until the server had closed all."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    clients = selectors.DefaultSelector()
    for _ in range(int(count)):
        try:
            sock = socket.create_connection((host, int(port)), 5)
            sock.sendall(b"GET /v1/models HTTP/1.1\r\nHost: a\r\nX-Half")
        except OSError:
            continue
        sock.setblocking(False)
        clients.register(sock, selectors.EVENT_READ)
    opened = len(clients.get_map())
    print(json.dumps(opened), flush=True)
    began = time.monotonic()
    while clients.get_map() and time.monotonic() - began < 120:
        for key, _ in clients.select(1):
            try:
                ended = not key.fileobj.recv(4096)
            except OSError:
                ended = True
            if ended:
                clients.unregister(key.fileobj)
                key.fileobj.close()
    return {"left": len(clients.get_map()), "seconds": time.monotonic() - began}


COMMANDS: dict[str, Callable[..., object]] = {
    "ports": ports,
    "get": get,
    "live": live,
    "watch": watch,
    "half": half,
}

if __name__ == "__main__":
    command, *arguments = sys.argv[1:]
    print(json.dumps(COMMANDS[command](*arguments)))
