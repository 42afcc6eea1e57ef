"""A client on another machine: run in a network of its own by tests of what a server shows there.

python -m tests.outside ports HOST PORT...     the ports that take a connection
python -m tests.outside get URL [KEY]          status, headers and body
python -m tests.outside live HOST:PORT [KEY]   whether gRPC says that the server lives
"""

import json
import socket
import sys
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


if __name__ == "__main__":
    command, *arguments = sys.argv[1:]
    print(json.dumps({"ports": ports, "get": get, "live": live}[command](*arguments)))
