"""The pages of the console. Each module has its `TITLE` and `PATH`, for the menu, and its `routes()`.

The menu has a page where the key has one of its `SCOPES`.

Pages read everything from the public API and make every change through it.
"""

from __future__ import annotations

from typing import Final

from serve_app.console.pages import endpoints, keys, live, playground, usage

# In the order of the menu; `/console` leads to the first. The console knows nothing else of a page.
PAGES: Final = (
    playground,
    endpoints,
    live,
    usage,
    keys,
)  # fmt: skip
