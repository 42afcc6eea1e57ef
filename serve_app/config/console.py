"""The settings of the console, the service in a browser."""

from __future__ import annotations

from pydantic import Field

from serve_app.config.base import ConfigModel


class ConsoleConfig(ConfigModel):
    """Whether there is a console at `/console`, and how long one stays signed in."""

    enabled: bool = Field(True, description="Answer at /console; false: its paths are no routes.")
    session_hours: float = Field(
        12.0, ge=0.1, le=720, description="Hours after which a browser must sign in again."
    )
