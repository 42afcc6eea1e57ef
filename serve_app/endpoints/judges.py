"""Which endpoints judge for the guardrails of others, and whether they can. Pure logic."""

from __future__ import annotations

from serve_app.endpoints.catalogue import Catalogue, CatalogueError
from serve_app.endpoints.endpoint import Endpoint, Task


def check_judges(catalogue: Catalogue, guardrails_model: str | None) -> None:
    """Raises CatalogueError with each endpoint whose rules a model judges while none is named.

    `guardrails_model`: the setting of the gateway.
    """
    problems = []
    for index, endpoint in enumerate(catalogue.endpoints):
        guardrails = endpoint.ai_gateway.guardrails
        try:
            if guardrails is not None:
                guardrails.check_judge(guardrails_model)
        except ValueError as error:
            field = f"endpoints[{index}].ai_gateway.guardrails.model"
            problems.append(f"{field} (endpoint {endpoint.name!r}): {error}")
    if problems:
        raise CatalogueError(problems)


def judging(name: str, endpoint: Endpoint | None) -> Endpoint:
    """The endpoint of this name, None where there is none, as one that judges.

    Raises ValueError with the reason why it cannot.
    """
    if endpoint is None:
        raise ValueError(f"there is no endpoint {name!r}, so it can judge nothing")
    if endpoint.task is not Task.CHAT:
        raise ValueError(f"the endpoint {name!r} cannot judge: its task is {endpoint.task}, not {Task.CHAT}")
    return endpoint
