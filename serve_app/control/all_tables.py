"""Every table of the control plane in one place, so that migrations see all of them."""

from __future__ import annotations

from typing import Final

from sqlalchemy import MetaData

from serve_app.control import counters

# Each area's module of tables: importing it declares them.
from serve_app.control.database.tables import Table
from serve_app.control.endpoints import tables as endpoints
from serve_app.control.keys import tables as keys
from serve_app.control.ledger import tables as ledger
from serve_app.control.responses import tables as responses
from serve_app.control.rollouts import tables as rollouts

MODULES: Final = (counters, endpoints, keys, ledger, responses, rollouts)
METADATA: Final[MetaData] = Table.metadata
