"""The version of the package, for pages."""

from __future__ import annotations

from importlib.metadata import version
from typing import Final

VERSION: Final = version("serve-app")  # read once: that takes longer than an answer
