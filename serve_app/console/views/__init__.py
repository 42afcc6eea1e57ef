"""The data of pages and the bodies of forms: pure functions over the API's JSON. No HTTP, no template."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Json = Mapping[str, Any]
