"""The process of a rank other than 0: `python -m serve_app.replica.ranks.follower WORK LIFE`.

It loads its part of the model and runs what rank 0 sends. It ends with rank 0.
"""

from __future__ import annotations

import logging
import signal
import socket
import sys

from serve_app.engine.ranks.life import FollowerLife


def main(work: int, life: int) -> int:
    alive = FollowerLife(socket.socket(fileno=life))
    alive.start()  # before torch is imported, which takes seconds
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal: rank 0 decides when to end
    from serve_app.replica.ranks.part import serve_part

    return serve_part(socket.socket(fileno=work), alive)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
