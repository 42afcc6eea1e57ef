"""The pages of the console. Each module has its `TITLE` and `PATH`, for the menu, and its `routes()`.

The menu has a page where the key has one of its `SCOPES`.

What a page shows, the public API told it; what a page changes, the public API changed.
"""

from __future__ import annotations

from typing import Final

from serve_app.console.pages import endpoints, keys, live, playground, usage

# In the order of the menu; `/console` leads to the first. A page's line is all that the console knows of it.
PAGES: Final = (
    playground,
    endpoints,
    live,
    usage,
    keys,
)  # fmt: skip
