"""Starts of a server, in turns between trees: wall time by phase, CPU time by process, and what idling costs.

    python benchmarks/start.py --tree . --rounds 3                      # this tree
    python benchmarks/start.py --tree ../main --tree . --idle 30        # two trees, in turns
    python benchmarks/start.py --folder ~/models/smol               # the model of a folder

Each round starts every tree once on the same deploy file. It asks for a streamed chat until the first token
is there, waits while the server does nothing, reads the CPU times of all its processes, and stops it. The
first round of a tree also writes its compiled modules and kernels; so that round is not counted unless it is
the only one. Needs the ports of the deploy file free.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

import psutil

POLL_S: Final = 0.1
SETTLE_S: Final = 20.0  # after the first token, before idling is measured
TIMEOUT_S: Final = 300.0
SHOWN_S: Final = 0.15  # of CPU; processes below it are summed up
SHOWN_MS: Final = 0.4  # a second
_WORDS: Final = re.compile(r"\s+")


# deploy/local.yaml with one model, of a folder
FILE: Final = """
proxy_location: HeadOnly
http_options: {{host: 127.0.0.1, port: {port}, keep_alive_timeout_s: 90}}
applications:
- name: system
  route_prefix: /
  import_path: serve_app.deployments.build:build_system_app
  deployments:
  - name: Gateway
    ray_actor_options: {{num_cpus: 0.1}}
    user_config: {{endpoints: [{{name: {model}}}]}}
- name: model-{model}
  route_prefix: null
  import_path: serve_app.deployments.build:build_model_app
  args: {{name: {model}, source: {folder}, dtype: {dtype}}}
  deployments:
  - name: Model
    ray_actor_options: {{num_cpus: 0.25}}
"""


@dataclass
class Start:
    """What one start took."""

    phases: list[tuple[float, str]] = field(default_factory=list)  # seconds since the command, line
    first_token_s: float = 0.0
    cpu: dict[str, float] = field(default_factory=dict)  # process -> seconds, until the first token
    idle: dict[str, float] = field(default_factory=dict)  # process -> ms of CPU a second


class Processes:
    """CPU seconds of every process below this one; those that have ended count as they were seen last."""

    def __init__(self) -> None:
        self._seen: dict[tuple[int, float], tuple[str, float]] = {}

    def look(self) -> None:
        for each in psutil.Process().children(recursive=True):
            try:
                times, key = each.cpu_times(), (each.pid, each.create_time())
                self._seen[key] = named(each.cmdline()), times.user + times.system
            except psutil.Error:
                continue

    def seconds(self) -> dict[tuple[int, float], tuple[str, float]]:
        return dict(self._seen)


def named(command: list[str]) -> str:
    """A short name of a process, by its command line."""
    text = _WORDS.sub(" ", " ".join(command)).strip()
    if text.startswith("ray::"):
        return text.split(".")[0]
    for part in command:
        if part.endswith((".py", "gcs_server", "raylet", "haproxy")) or part == "serve_app.cli":
            return part.rpartition("/")[2]
    return text[:60] or "ended"


def by_name(found: dict[tuple[int, float], tuple[str, float]]) -> dict[str, float]:
    summed: dict[str, float] = {}
    for name, seconds in found.values():
        summed[name] = summed.get(name, 0.0) + seconds
    return summed


def first_token(port: int, model: str, deadline: float) -> float:
    """The time at which a streamed chat had its first piece of text."""
    body = json.dumps(
        {"model": model, "stream": True, "max_tokens": 8, "messages": [{"role": "user", "content": "Hello!"}]}
    ).encode()
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    while time.monotonic() < deadline:
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                for line in answer:
                    if line.startswith(b"data: {") and _has_text(line):
                        return time.monotonic()
        except (OSError, urllib.error.URLError):
            pass
        time.sleep(POLL_S)
    raise SystemExit("the server did not answer in time")


def _has_text(line: bytes) -> bool:
    choices = json.loads(line.removeprefix(b"data: ")).get("choices") or [{}]
    return bool(choices[0].get("delta", {}).get("content"))


def measure(tree: Path, arguments: argparse.Namespace) -> Start:
    """Start the server of `tree`, and stop it again."""
    found, processes, done = Start(), Processes(), threading.Event()
    began = time.monotonic()
    server = subprocess.Popen(
        [sys.executable, "-m", "serve_app.cli", "serve", arguments.file],
        cwd=tree,
        env=os.environ | {"PYTHONPATH": str(tree)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert server.stdout is not None

    def read(lines: IO[str]) -> None:
        for line in lines:
            found.phases.append((time.monotonic() - began, line.rstrip()))

    def look() -> None:
        while not done.wait(POLL_S * 2):
            processes.look()

    for work in (lambda: read(server.stdout), look):
        threading.Thread(target=work, daemon=True).start()
    try:
        found.first_token_s = first_token(arguments.port, arguments.model, began + TIMEOUT_S) - began
        processes.look()
        found.cpu = by_name(processes.seconds())
        if arguments.idle:
            time.sleep(SETTLE_S)
            processes.look()
            before = processes.seconds()
            time.sleep(arguments.idle)
            processes.look()
            spent = {
                key: (name, (seconds - before.get(key, ("", 0.0))[1]) / arguments.idle * 1_000)
                for key, (name, seconds) in processes.seconds().items()
            }
            found.idle = by_name(spent)
    finally:
        done.set()
        server.send_signal(signal.SIGINT)
        server.wait(TIMEOUT_S)
    return found


def report(tree: Path, starts: list[Start]) -> None:
    """Print medians over `starts`, and the phases of the quickest."""
    quickest = min(starts, key=lambda each: each.first_token_s)
    print(f"\n## {tree.name}: {len(starts)} starts")
    print("first token, s:", *(f"{each.first_token_s:.1f}" for each in starts))
    print(f"median {statistics.median(each.first_token_s for each in starts):.1f} s; phases of the quickest:")
    for seconds, line in quickest.phases:
        if line.startswith("serve: ") or "ServeReplica" in line:
            print(f"  {seconds:6.1f}  {line[:120]}")
    _table("CPU until the first token", "s", [each.cpu for each in starts], SHOWN_S)
    if quickest.idle:
        _table("idle", "ms/s", [each.idle for each in starts], SHOWN_MS)


def _table(title: str, unit: str, found: list[dict[str, float]], least: float) -> None:
    names = {name for each in found for name in each}
    medians = {name: statistics.median(each.get(name, 0.0) for each in found) for name in names}
    total = statistics.median(sum(each.values()) for each in found)
    print(f"{title}: {total:.1f} {unit}")
    for name, value in sorted(medians.items(), key=lambda pair: -pair[1]):
        if value >= least:
            print(f"  {value:7.2f}  {name}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tree", type=Path, action="append", help="a checkout; several take turns")
    parser.add_argument("--file", default="deploy/local.yaml", help="deploy file, relative to each tree")
    parser.add_argument("--folder", type=Path, help="serve the model of this folder, in place of --file")
    parser.add_argument("--dtype", default="bfloat16", help="of the model of --folder")
    parser.add_argument("--model", default="demo-chat", help="the endpoint that is asked")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--rounds", type=int, default=3, help="starts of each tree; the first is not counted")
    parser.add_argument("--idle", type=float, default=0.0, metavar="S", help="measure idling for S seconds")
    arguments = parser.parse_args()
    if arguments.folder is not None:
        folder = arguments.folder.expanduser().resolve()
        arguments.model = re.sub("[^a-z0-9]", "", folder.name.lower())
        text = FILE.format(
            port=arguments.port, model=arguments.model, folder=json.dumps(str(folder)), dtype=arguments.dtype
        )
        with tempfile.NamedTemporaryFile("w", suffix=".yaml", delete=False) as file:
            file.write(text)
        arguments.file = file.name
    trees = [tree.resolve() for tree in arguments.tree or [Path.cwd()]]
    starts: dict[Path, list[Start]] = {tree: [] for tree in trees}
    for number in range(arguments.rounds):
        for tree in trees:
            start = measure(tree, arguments)
            print(
                f"round {number + 1}, {tree.name}: first token after {start.first_token_s:.1f} s", flush=True
            )
            starts[tree].append(start)
    print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
    for tree in trees:
        report(tree, starts[tree][1:] or starts[tree])


if __name__ == "__main__":
    main()
