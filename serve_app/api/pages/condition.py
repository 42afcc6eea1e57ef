"""The condition of a gateway: whether it can answer, and everything that is wrong.

Each transport reports the condition in its own form: /readyz, KServe's readiness, gRPC's health.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from serve_app.api.admission.permits import STOPPING
from serve_app.api.services import Services

NO_ENDPOINTS: Final = "no endpoint is configured; set user_config.endpoints of the Gateway in the deploy file"

STALE_KEYS: Final = (
    "API keys made at run time are not taken: the control plane has not answered for too long "
    "(control.max_snapshot_age_s)"
)


UNKNOWN_KEYS: Final = "API keys made at run time are not known: the control plane has not answered yet"


@dataclass(frozen=True, slots=True)
class Condition:
    """Whether requests are answered, and the reasons if they are not, or not as configured."""

    is_ready: bool
    reasons: tuple[str, ...] = ()

    @property
    def status(self) -> str:
        return ("degraded" if self.reasons else "ready") if self.is_ready else "not ready"


def condition(services: Services) -> Condition:
    """The condition now.

    A gateway that cannot write usage records is still ready, since sending clients to another gateway would
    help neither the clients nor the records. If records are required, the gateway refuses every request.
    """
    directory, backend, meter = services.directory, services.backend, services.meter
    if services.admission.is_closed:
        return Condition(False, (STOPPING,))
    if not len(directory) and services.management is None:
        return Condition(False, (NO_ENDPOINTS,))
    silent: list[str] = []
    reasons: list[str] = []
    for endpoint in directory:
        missing = {e.app: why for e in endpoint.served_entities if (why := backend.missing(e.app))}
        lacks = {e.app: what for e in endpoint.served_entities if (what := backend.lacks(e.app))}
        # One that was made at run time is its maker's concern: it does not affect the others.
        is_declared = endpoint.name not in directory.run_time
        words = [f"{app}: {why}" for app, why in missing.items()]
        if all(entity.app in missing for entity in endpoint.reachable) and is_declared:
            silent.append(f"endpoint {endpoint.name} has no entity that can answer: {'; '.join(words)}")
        else:
            words += [f"{app}: {what}" for app, what in lacks.items() if app not in missing]
            reasons += [f"endpoint {endpoint.name}: {each}" for each in words]
    reasons += [
        f"endpoint {name} changes once these can answer: {', '.join(apps)}"
        for name, apps in directory.waiting.items()
    ]
    if services.management is not None and (problem := services.management.problem) is not None:
        reasons.append(f"nothing can be changed at run time: {problem}")
    if services.accounts.is_waiting:
        # Without other keys no caller can be recognised.
        (reasons if services.accounts.has_keys else silent).append(UNKNOWN_KEYS)
    if services.accounts.is_stale:
        reasons.append(STALE_KEYS)
    if meter.problem is not None:
        reasons.append(meter.problem)
    return Condition(not silent and meter.is_open, (*silent, *reasons))
