"""Every page of the console that a test may open as it is. A page with a name in its path is added here."""

from __future__ import annotations

from typing import Final

from serve_app.console.pages import PAGES

TABS: Final = ("query", "requests", "rollout", "comparison", "logs", "permissions", "settings")
PLACES: Final = (
    *(page.PATH for page in PAGES),
    "/console/endpoint-new",
    "/console/endpoints/demo",
    "/console/endpoints/org/other",
    "/console/endpoints/org/other?tab=config",
    *(f"/console/endpoints/org/other?tab={tab}" for tab in TABS),
    "/console/key-new",
    "/console/usage?by=key&by=day",
    "/console/sign-in",
    "/console/none",  # what every refusal looks like
)
EXPECTED: Final = {"/console/none": 404}  # 200 for all others
