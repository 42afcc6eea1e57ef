"""What rank 0 takes to tell another rank of a step: from the step's arrays to the batch in another process.

    python benchmarks/ranks.py [--sequences 1 16 64 256] [--context 500] [--repeats 400]

Each step has a decode of every sequence. The processes are connected as ranks of one machine are: by TCP over
the loopback device. Times are medians: to make and send the message, and until a reply of no content is back,
which the other process sends once it has the batch.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import time
from typing import Final

import torch

from serve_app.engine.batch import Batch, build_batch
from serve_app.engine.pipe import Pipe, frame
from serve_app.engine.ranks.commands import Command, CopyBlocks, Step
from serve_app.engine.sequence import Chunk, Sequence
from serve_app.types import SamplingParams

BLOCK: Final = 32
CPU: Final = torch.device("cpu")


def decodes(sequences: int, context: int) -> Batch:
    """A step in which each of the sequences gets its token number `context`."""
    table, ids = list(range(-(-context // BLOCK))), list(range(context))
    return build_batch(
        [
            Chunk(
                Sequence(str(number), 0, context, ids, SamplingParams(), 0, block_table=table),
                *(context - 1, 1, context - 1),
            )
            for number in range(sequences)
        ],
        BLOCK,
        CPU,
    )


def answer(pipe: Pipe[Command, Command]) -> None:
    """As another rank: make a batch of each step, and reply."""
    while (command := pipe.receive()) is not None:
        if isinstance(command, Step):
            command.batch(CPU)
        pipe.send(CopyBlocks([]))


def pipe_to_child() -> Pipe[Command, Command]:
    """To a new process that answers, and ends with this one."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        if os.fork() == 0:
            answer(Pipe(_tuned(socket.create_connection(listener.getsockname())), Command))
            os._exit(0)
        return Pipe(_tuned(listener.accept()[0]), Command)


def _tuned(connection: socket.socket) -> socket.socket:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 16, 64, 256])
    parser.add_argument("--context", type=int, default=500, help="tokens of each sequence")
    parser.add_argument("--repeats", type=int, default=400)
    options = parser.parse_args()
    pipe = pipe_to_child()
    print("| sequences | bytes | sent, us | a reply is back, us |")
    print("|---|---|---|---|")
    for count in options.sequences:
        batch = decodes(count, options.context)
        sent, replied = [], []
        for _ in range(options.repeats):
            began = time.perf_counter()
            data = frame(Step.of(batch, has_states=False))
            pipe.send_frame(data)
            sent.append(time.perf_counter() - began)
            pipe.receive()
            replied.append(time.perf_counter() - began)
        times = (f"{statistics.median(each) * 1e6:.0f}" for each in (sent, replied))
        print(f"| {count} | {len(data):,} | " + " | ".join(times) + " |", flush=True)


if __name__ == "__main__":
    main()
