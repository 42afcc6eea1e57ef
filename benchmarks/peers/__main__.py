"""This server beside others, on this machine.

    python -m benchmarks.peers install vllm openvino llama.cpp transformers
    python -m benchmarks.peers list
    python -m benchmarks.peers run --model build/models/smol135 --rounds 7 --out build/peers/run.jsonl
    python -m benchmarks.peers table build/peers/run.jsonl --page benchmarks/results/peers.md

`run` goes on where a run with the same `--out` was cut. `--quick` is one round of small batches.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

from benchmarks.peers import traffic
from benchmarks.peers.journal import Journal
from benchmarks.peers.peer import BF16, INT4, INT8
from benchmarks.peers.registry import KINDS, peers, servers
from benchmarks.peers.session import Plan, Session
from benchmarks.peers.table import page

HOME: Final = Path("build/peers")
NAMES: Final = [kind.name for kind in KINDS]
PORT: Final = 18461
LIMIT_S: Final = 30.0
KEEP: Final = (
    "start this server once a model and freeze it between turns (not `ours`, whose parts watch the time)"
)
QUICK_WAVES: Final = 1
QUICK_LIMIT_S: Final = 10.0


def install(args: argparse.Namespace) -> int:
    """A failure is noted in the peer's folder, where `list` and the table find it."""
    failed = 0
    for name in args.names:
        peer = peers(args.home)[name]
        peer.home.mkdir(parents=True, exist_ok=True)
        failure, done = peer.home / "failure.txt", peer.home / "installed"
        done.unlink(missing_ok=True)
        try:
            peer.install()
        except (subprocess.CalledProcessError, OSError, ValueError) as error:
            failure.write_text(f"could not be installed: {error}", "utf-8")
            print(f"{name}: {error}")
            failed += 1
        else:
            failure.unlink(missing_ok=True)
            done.touch()
            print(f"{name}: installed in {peer.home}")
    return 1 if failed else 0


def show(args: argparse.Namespace) -> int:
    for name, peer in peers(args.home).items():
        print(f"{name:14} {', '.join(peer.formats.values()):20} {peer.missing() or 'ready'}")
    return 0


def run(args: argparse.Namespace) -> int:
    chosen = servers(args.home.resolve(), args.server or NAMES, args.precision or [BF16, INT8, INT4])
    plan = Plan(
        models={path.name: path.resolve() for path in args.model},
        servers=chosen,
        mixes=args.mix or list(traffic.ALL),
        rounds=1 if args.quick else args.rounds,
        waves=QUICK_WAVES if args.quick else None,
        limit_s=QUICK_LIMIT_S if args.quick else args.limit,
        threads=args.threads,
        port=args.port,
        logs=args.home / "logs",
        kept=frozenset(args.keep or ()),
        skipped=frozenset(args.skip or ()),
    )
    Session(plan, Journal(args.out)).run()
    return write(args.out, args.page)


def table(args: argparse.Namespace) -> int:
    return write(args.journal, args.page)


def write(journal: Path, target: Path | None) -> int:
    notes = {kind.name: kind.notes for kind in KINDS}
    mixes = {name: traffic.mix_of(name, None) for name in traffic.ALL}
    text = page(Journal(journal).records, notes, mixes, f"python -m benchmarks.peers table {journal}")
    if target is None:
        print(text)
    else:
        target.write_text(text, "utf-8")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--home", type=Path, default=HOME, help="where peers are installed")
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("install", help="install peers, each in an environment of its own")
    one.add_argument("names", nargs="+", choices=NAMES)
    one.set_defaults(do=install)
    one = commands.add_parser("list", help="peers and whether they can be started")
    one.set_defaults(do=show)
    one = commands.add_parser("run", help="start, load and stop all servers, round by round")
    one.add_argument("--model", type=Path, action="append", required=True, help="folder; several are fine")
    one.add_argument("--server", action="append", choices=NAMES, help="default: all")
    one.add_argument("--keep", action="append", choices=NAMES, help=KEEP)
    one.add_argument("--precision", action="append", choices=[BF16, INT8, INT4], help="default: all")
    one.add_argument("--mix", action="append", choices=traffic.ALL, help="default: all")
    one.add_argument("--skip", action="append", metavar="SERVER:MIX", help="leave this mix of a server out")
    one.add_argument("--rounds", type=int, default=7)
    one.add_argument("--limit", type=float, default=LIMIT_S, help="seconds after which no wave begins")
    one.add_argument("--quick", action="store_true", help="one round of one wave each")
    one.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    one.add_argument("--port", type=int, default=PORT)
    one.add_argument("--out", type=Path, default=HOME / "run.jsonl", help="the journal; it may exist")
    one.add_argument("--page", type=Path, help="write the table here instead of to the terminal")
    one.set_defaults(do=run)
    one = commands.add_parser("table", help="the page of a journal")
    one.add_argument("journal", type=Path)
    one.add_argument("--page", type=Path)
    one.set_defaults(do=table)
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that servers are stopped
    return int(args.do(args))


if __name__ == "__main__":
    sys.exit(main())
