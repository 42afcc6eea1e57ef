"""`python -m docs.site stage FOLDER` writes all pages; `... check FOLDER` checks a built site.

`... screenshots FOLDER` takes pictures of the console; see docs/site/screenshots.py.
"""

from __future__ import annotations

import sys
from pathlib import Path

from docs.site.check import problems
from docs.site.stage import stage


def main(arguments: list[str]) -> int:
    """0, or 1 with one line on stderr for each problem."""
    match arguments:
        case ["stage", folder]:
            found = stage(Path(folder))
        case ["check", folder]:
            found = problems(Path(folder))
        case ["screenshots", folder]:
            from docs.site.screenshots import take  # it alone needs a browser

            found = take(Path(folder))
        case _:
            found = [__doc__ or ""]
    for line in found:
        print(line, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
