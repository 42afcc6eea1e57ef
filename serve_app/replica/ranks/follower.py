"""The process of a rank other than 0: it loads its part of the model, and runs what rank 0 sends.

    python -m serve_app.replica.ranks.follower RANK < INVITATION

It ends with rank 0.
"""

from __future__ import annotations

import logging
import signal
import sys

from serve_app.engine.ranks.life import FollowerLife
from serve_app.engine.ranks.meeting import dial


def follow(invitation: bytes, rank: int, source: str = "", revision: str | None = None) -> int:
    """Be `rank` until rank 0 ends it; returns the exit status.

    `source`, `revision`: where this machine finds the model, if the folder of rank 0 is not here.
    """
    connections = dial(invitation, rank)
    alive = FollowerLife(connections.life)
    alive.start()  # before torch is imported, which takes seconds
    from serve_app.replica.ranks.part import serve_part

    return serve_part(connections, alive, source, revision)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal: rank 0 decides when to end
    sys.exit(follow(sys.stdin.buffer.read(), int(sys.argv[1])))
