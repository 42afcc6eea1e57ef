"""The grammar sandbox as the replica sees it: a child process that compiles one grammar at a time.

The child starts with the first grammar and stays warm. The child is killed and replaced if a grammar takes
longer than `LIMIT_S`. Does not depend on requests.
"""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
from typing import Final

from serve_app.engine.pipe import Pipe
from serve_app.errors import Unavailable
from serve_app.replica.grammar.messages import SandboxCommand, SandboxReply, SandboxSetup
from serve_app.types import Grammar

log = logging.getLogger(__name__)

LIMIT_S: Final = 2.0  # for one grammar
START_LIMIT_S: Final = 120.0  # for the child to read the tokenizer: about a second per 100,000 tokens
RETRY_AFTER_S: Final = 2.0


class GrammarSandbox:
    """The child process, used by one thread."""

    def __init__(self, setup: SandboxSetup) -> None:
        self._setup = setup
        self._child: subprocess.Popen[bytes] | None = None
        self._pipe: Pipe[SandboxReply, SandboxCommand] | None = None
        self._socket: socket.socket | None = None
        self._ended = False

    def compile(self, grammar: Grammar) -> SandboxReply | None:
        """The child's reply; None if the grammar exceeded the time or memory limit.

        Raises Unavailable when no child can be started.
        """
        if self._child is not None and self._child.poll() is not None:
            self._kill()  # it died while it had nothing to do: this grammar is not at fault
        if self._pipe is None:
            started = self._start()
            if started.unavailable is not None:
                return started
        reply = self._exchange(SandboxCommand(grammar=grammar), LIMIT_S)
        if reply is not None:
            return reply
        self._kill()
        if self._ended:
            raise unavailable()
        log.warning("a %s of %d characters was too much to compile", grammar.kind.value, len(grammar.text))
        return None

    def end(self) -> None:
        """End the child for good. May be called from another thread; a `compile` under way then raises."""
        self._ended = True
        if self._child is not None:
            self._child.kill()
            self._child.wait()

    def _start(self) -> SandboxReply:
        if self._ended:
            raise unavailable()
        ours, theirs = socket.socketpair()
        with theirs:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "serve_app.replica.grammar.child", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        self._socket, self._pipe = ours, Pipe(ours, SandboxReply)
        reply = self._exchange(SandboxCommand(setup=self._setup), START_LIMIT_S)
        if reply is None or reply.unavailable is not None:
            self._kill()
        if reply is None:
            log.error("the grammar process could not be started")
            raise unavailable()
        return reply

    def _exchange(self, command: SandboxCommand, limit_s: float) -> SandboxReply | None:
        """The reply to `command`; None if the child died or took longer than `limit_s`."""
        if self._pipe is None or self._socket is None:
            return None
        self._socket.settimeout(limit_s)
        try:
            self._pipe.send(command)
        except OSError:
            return None
        return self._pipe.receive()

    def _kill(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.wait()
        if self._pipe is not None:
            self._pipe.close()
        self._child = self._pipe = self._socket = None


def unavailable() -> Unavailable:
    return Unavailable("Grammars are not available at the moment.", retry_after_s=RETRY_AFTER_S)
