"""The process of a trial: a question on standard input, a verdict as the last line of standard output.

    python -m serve_app.engine.cuda.trial < question.json

The process uses GPU memory, so it ends by itself when it takes too long or its parent is gone.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from typing import Final

from serve_app.engine.cuda.trial.compare import find_fault
from serve_app.engine.cuda.trial.question import Question
from serve_app.engine.cuda.trial.verdict import TIMEOUT_S, Verdict

LOOK_S: Final = 0.5  # between two checks of the parent


def end_with_parent() -> None:
    """End this process once its parent has ended, that is, once its parent's process id changes."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(LOOK_S)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def main() -> None:
    signal.alarm(TIMEOUT_S)
    end_with_parent()
    question = Question.from_json(sys.stdin.buffer.read())
    try:
        fault = find_fault(question)
    except Exception as error:  # of the compiler, of the driver, of memory
        traceback.print_exc()
        first = (str(error).strip() or "no message").splitlines()[0]
        fault = f"{type(error).__name__}: {first}"
    print(Verdict(fault).to_json().decode(), flush=True)


if __name__ == "__main__":
    main()
