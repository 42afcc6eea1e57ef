"""The program that Ray's node manager runs to start a worker: asks the template for a copy, or starts Python.

It is run in place of Ray's `setup_worker.py`, with the same arguments. It imports nothing of ours or of Ray,
since every worker waits for it. If the template fails, the worker starts as usual.
"""

from __future__ import annotations

import json
import os
import resource
import socket
import sys
from typing import NoReturn

SOCKET = "SERVE_APP_WORKER_TEMPLATE"  # path of the template's socket
ORDINARY = "SERVE_APP_RAY_SETUP_WORKER"  # path of Ray's own program
WAIT_S = 20.0  # for a copy: the template may still import; Ray gives a worker a minute
COPIED = b"c"  # from the copy: it runs, and waits
GO = b"g"  # to the copy: it may run, since no other process starts this worker
_CONTEXT = "--serialized-runtime-env-context="
_LANGUAGE = "--language="


def plain(arguments: list[str]) -> list[str] | None:
    """The worker's program and its arguments; None for a worker that needs its own interpreter.

    Such a worker has its own environment, executable or command prefix, or is not written in Python.
    """
    rest = []
    for each in arguments:
        if each.startswith(_LANGUAGE):
            if each.removeprefix(_LANGUAGE) != "PYTHON":
                return None
        elif each.startswith(_CONTEXT):
            context = json.loads(each.removeprefix(_CONTEXT) or "{}")
            if context.pop("py_executable", None) not in (None, sys.executable) or any(context.values()):
                return None
        else:
            rest.append(each)
    return rest if rest and rest[0].endswith(".py") else None


def copied(path: str, arguments: list[str]) -> bool:
    """Whether a copy of the template at `path` has become this worker."""
    request = {
        "arguments": arguments,
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "open_files": resource.getrlimit(resource.RLIMIT_NOFILE),
        "nice": os.nice(0),
    }
    body = json.dumps(request).encode()
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(WAIT_S)
        link.connect(path)
        socket.send_fds(link, [len(body).to_bytes(4, "big")], [0, 1, 2])
        link.sendall(body)
        if link.recv(1) != COPIED:
            return False
        link.sendall(GO)
        return True


def main() -> NoReturn:
    arguments, path = sys.argv[1:], os.environ.get(SOCKET)
    try:
        found = plain(arguments) if path else None
        if path and found is not None and copied(path, found):
            os._exit(0)
    except (OSError, ValueError):  # no template, or one that does not answer
        pass
    os.execv(sys.executable, [sys.executable, os.environ[ORDINARY], *arguments])


if __name__ == "__main__":
    main()
