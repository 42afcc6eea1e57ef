"""The paths of the management API. A name of an endpoint may hold slashes."""

from __future__ import annotations

from typing import Final

BASE: Final = "/api/2.0"
ENDPOINTS: Final = f"{BASE}/serving-endpoints"
ENDPOINT: Final = f"{ENDPOINTS}/{{endpoint:path}}"
ENTITY: Final = f"{ENDPOINT}/served-models/{{entity:path}}"
PERMISSIONS: Final = f"{BASE}/permissions/serving-endpoints/{{id}}"
