"""The pages of the console. Each module has its `TITLE` and `PATH`, for the menu, and its `routes()`.

The menu shows a page if the key has one of the page's `SCOPES`.

Pages read everything from the public API and make every change through it.
"""

from __future__ import annotations

from typing import Final

from serve_app.console.pages import endpoints, keys, live, playground, usage

# In the order of the menu; `/console` leads to the first. The console needs no other facts about a page.
PAGES: Final = (
    playground,
    endpoints,
    live,
    usage,
    keys,
)  # fmt: skip
