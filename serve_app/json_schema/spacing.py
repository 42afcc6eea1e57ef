"""What may stand between two tokens of JSON, as a regex."""

from __future__ import annotations

from typing import Final

# What a pretty printer writes, to 8 levels of 4 spaces, but no endless run.
SPACE: Final = r"(\r?\n)?[ \t]{0,32}"
COMPACT: Final = ""
