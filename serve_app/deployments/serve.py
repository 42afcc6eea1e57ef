"""`make serve`: one command from a deploy file to an endpoint that answers.

    python -m serve_app.deployments.serve deploy/local.yaml [--no-haproxy]

Starts a one-node Ray cluster of its own with the environment of `environment.py`,
deploys the file, reports progress, prints what to try, and ends all of it on Ctrl-C.
`serve run deploy/local.yaml` works as well; then the environment is the caller's.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import socket
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any, Final

from serve_app.api.dialects.family import Family
from serve_app.config import state_dir
from serve_app.deployments import environment

STATE: Final = state_dir()
START_TIMEOUT_S: Final = 3_600.0  # a first start may download a model
OBJECT_STORE_BYTES: Final = 200 * 2**20  # carries prompts, not weights
POLL_S: Final = 0.1


class CannotServe(Exception):
    """The message says what is wrong and what to do next."""


def main(argv: list[str] | None = None) -> int:
    """Serve until interrupted. 0: ended on request; 1: could not serve, said why."""
    parser = argparse.ArgumentParser(prog="python -m serve_app.deployments.serve", description=__doc__)
    parser.add_argument("file", type=Path, help="deploy file, such as deploy/local.yaml")
    parser.add_argument("--no-haproxy", action="store_true", help="use Ray Serve's own Python proxy")
    options = parser.parse_args(argv)
    folder = environment.private_folder()
    try:
        environment.apply(  # first, because whoever reads the file imports Ray
            environment.COMMON
            | (environment.PLAIN if options.no_haproxy else environment.haproxy(folder, **_haproxy_ports()))
            | {"RAY_AUTH_TOKEN_PATH": str(environment.token_file(STATE / "ray-token"))}
        )
        config = _read(options.file)
        host, port = _address(config)
        _check_port(host, port, "http_options.port")
        if (rpc := _rpc_port(config)) is not None:
            _check_port(host, rpc, "args.grpc_port of the gateway")
        _serve(config, host, port, environment.listen(folder, host, _v1(config)))
    except CannotServe as error:
        print(f"serve: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nserve: stopped", flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def _serve(config: dict[str, Any], host: str, port: int, serve_host: str) -> None:
    """`serve_host`: of Serve itself, which is not HAProxy's."""
    started = time.monotonic()
    print(f"serve: starting Ray and {len(config['applications'])} applications ...", flush=True)
    import ray
    from ray import serve
    from ray.serve.schema import ServeDeploySchema

    schema = ServeDeploySchema.model_validate(config)
    ray.init(
        address="local",
        include_dashboard=False,
        object_store_memory=OBJECT_STORE_BYTES,
        logging_level="warning",
        _node_ip_address=environment.LOOPBACK,  # one node: Ray's own ports are for nobody else
    )
    for name in (signal.SIGINT, signal.SIGTERM):  # after Ray set its own; a background job ignores SIGINT
        signal.signal(name, signal.default_int_handler)
    try:
        serve.start(
            proxy_location=schema.proxy_location,
            http_options=schema.http_options.model_dump() | {"host": serve_host},
        )
        _deploy(schema)
        _wait(host, port, [app.name for app in schema.applications])
        seconds = time.monotonic() - started
        print(
            f"\nserve: ready on http://{host}:{port} after {seconds:.0f} s. Try:\n\n{_example(host, port)}\n"
        )
        if (rpc := _rpc_port(config)) is not None:
            print(f"KServe v2 over gRPC: {_reachable(host)}:{rpc}\n")
        print("Ctrl-C stops it.", flush=True)
        while True:
            time.sleep(3600)
    finally:
        print("\nserve: stopping ...", flush=True)
        for name in (signal.SIGINT, signal.SIGTERM):  # a second one must not leave processes behind
            signal.signal(name, signal.SIG_IGN)
        serve.shutdown()
        ray.shutdown()


def _deploy(schema: Any) -> None:
    from ray.serve.context import _get_global_client

    # What `serve run FILE` calls; there is no public function for a whole deploy file.
    _get_global_client().deploy_apps(schema, _blocking=False)


def _wait(host: str, port: int, apps: list[str]) -> None:
    """Until every application runs and the gateway says it is ready."""
    from ray import serve

    deadline = time.monotonic() + START_TIMEOUT_S
    shown: dict[str, str] = {}
    while time.monotonic() < deadline:
        status = serve.status().applications
        for name in apps:
            app = status.get(name)
            state = app.status.value if app else "NOT_STARTED"
            if shown.get(name) != state:
                shown[name] = state
                print(f"serve: {name}: {state.lower().replace('_', ' ')}", flush=True)
            if app and state in ("DEPLOY_FAILED", "UNHEALTHY"):
                raise CannotServe(f"application {name} failed.\n{_reason(app)}")
        if all(shown.get(name) == "RUNNING" for name in apps) and _is_ready(host, port):
            return
        time.sleep(POLL_S)
    raise CannotServe("the models did not come up in time; see the log above")


def _reason(app: Any) -> str:
    """The last line of what went wrong: ours says what to do."""
    texts = [app.message, *(d.message for d in app.deployments.values())]
    lines = [line.strip() for text in texts for line in text.splitlines() if "Error" in line]
    return lines[-1] if lines else "\n".join(text for text in texts if text)


def _is_ready(host: str, port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://{_reachable(host)}:{port}/readyz", timeout=2) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def _read(path: Path) -> dict[str, Any]:
    from serve_app.deployments.deploy_file import DeployFileError, load

    try:
        file = load(path)
    except DeployFileError as error:
        raise CannotServe(f"{path} cannot be deployed:\n{error}") from error
    for warning in file.warnings:
        print(f"serve: {path}: {warning}", file=sys.stderr)
    return file.raw


def _address(config: dict[str, Any]) -> tuple[str, int]:
    options = config["http_options"]
    return str(options["host"]), int(options.get("port", 8000))


def _rpc_port(config: dict[str, Any]) -> int | None:
    """The gateway's port of gRPC, if it has one."""
    found = [(app.get("args") or {}).get("grpc_port") for app in config["applications"]]
    return next((port for port in found if port is not None), None)


def _v1(config: dict[str, Any]) -> Family:
    """The protocol of the gateway's paths below /v1."""
    found = [(app.get("args") or {}).get("v1_dialect") for app in config["applications"]]
    return Family(next((word for word in found if word is not None), Family.OPENAI))


def _check_port(host: str, port: int, setting: str) -> None:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, port))
        except OSError as error:
            raise CannotServe(
                f"{host}:{port} cannot be used ({error.strerror}). Stop what listens there "
                f"(`ss -ltnp 'sport = :{port}'` names it), or change {setting} in the deploy file."
            ) from error


def _haproxy_ports() -> dict[str, int]:
    """HAProxy's own ports and its fallback's: the usual, or any free ones beside another cluster here."""
    return {
        name: usual if _is_free(usual) else environment.free_port()
        for name, usual in (("stats_port", 8404), ("metrics_port", 9101), ("fallback_port", 8500))
    }


def _is_free(port: int) -> bool:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return sock.connect_ex(("127.0.0.1", port)) != 0


def _reachable(host: str) -> str:
    return "127.0.0.1" if host in ("0.0.0.0", "::") else host


def _example(host: str, port: int) -> str:
    body = {"model": "demo-chat", "stream": True, "messages": [{"role": "user", "content": "Hello!"}]}
    return (
        f"  curl -N http://{_reachable(host)}:{port}/v1/chat/completions \\\n"
        f"    -H 'Content-Type: application/json' \\\n    -d '{json.dumps(body)}'"
    )


if __name__ == "__main__":
    sys.exit(main())
