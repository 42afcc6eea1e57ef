"""The native functions of the engine on a CPU, and the decision whether to use them.

`native()` returns the library, or None if plain torch has to do the work. It returns None if
`SERVE_APP_KERNELS=off` is set, if there is no compiler, or if the self-check found wrong results.
"""

from __future__ import annotations

import logging
import os
from functools import cache
from pathlib import Path
from typing import Final

from serve_app.engine.kernels import build
from serve_app.engine.kernels.build import BuildError
from serve_app.engine.kernels.layout import assertions
from serve_app.engine.kernels.native import Native
from serve_app.engine.kernels.selfcheck import wrong_results

log = logging.getLogger(__name__)

SWITCH: Final = "SERVE_APP_KERNELS"


def native() -> Native | None:
    """The native functions, or None. They are loaded once; `SERVE_APP_KERNELS=off` is read at every call."""
    return None if os.environ.get(SWITCH, "").lower() == "off" else _load()


def library() -> Path:
    """The path of the compiled library, which is built if necessary. Raises BuildError."""
    return build.library(assertions())


@cache
def _load() -> Native | None:
    try:
        loaded = Native(library())
    except (BuildError, OSError, AttributeError) as error:
        log.warning("no native CPU kernels, plain torch instead (slower, same results): %s", error)
        return None
    wrong = wrong_results(loaded)
    if wrong:
        log.error("native CPU kernels compute wrong results (%s), plain torch instead", ", ".join(wrong))
        return None
    return loaded
