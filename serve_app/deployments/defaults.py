"""Numbers that all our deployments share; `deployments:` in a deploy file overrides each of them."""

from __future__ import annotations

from typing import Final

# With Serve's own value, a dead engine would be noticed late.
HEALTH: Final = {"health_check_period_s": 5.0, "health_check_timeout_s": 15.0}
# Changed code or `args` start new replicas beside the old ones, which answer until those are up.
SURGE_PERCENT: Final = 100
DRAIN_S: Final = 600.0  # Serve's default would kill long answers on shutdown
OPEN_BESIDES: Final = 64  # calls that are no generation: health, model lists
