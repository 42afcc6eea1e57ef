"""The process of a trial: a question on standard input, a verdict as the last line of standard output.

    python -m serve_app.engine.cuda.trial < question.json

It ends by itself when it takes too long, whoever waits for it.
"""

from __future__ import annotations

import signal
import sys
import traceback

from serve_app.engine.cuda.trial.compare import find_fault
from serve_app.engine.cuda.trial.question import Question
from serve_app.engine.cuda.trial.verdict import TIMEOUT_S, Verdict


def main() -> None:
    signal.alarm(TIMEOUT_S)
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
