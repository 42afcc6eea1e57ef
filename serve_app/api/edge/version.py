"""Which version of the package this is, as pages say it."""

from __future__ import annotations

from importlib.metadata import version
from typing import Final

VERSION: Final = version("serve-app")  # read once: that takes longer than an answer
