"""The settings of one endpoint: entities, traffic, limits, price.

An endpoint is a name that clients call. Behind the name are served entities: each is a version of
a model in a Serve application of its own. Several endpoints may share an application, unless its
throughput was bought.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from serve_app.config import ConfigModel, Version
from serve_app.endpoints.ai_gateway import AiGateway, Shadow
from serve_app.endpoints.rules import (
    MAX_ENTITIES,
    RESERVED,
    App,
    Name,
    Percentage,
    app_name,
    check_name,
    checked_traffic,
    entity_name,
)
from serve_app.limits import MAX_N, MAX_PROMPT_CHARS, MAX_TOOLS


class Task(StrEnum):
    """The task of all entities of an endpoint, in the words of the Databricks API."""

    CHAT = "llm/v1/chat"
    COMPLETIONS = "llm/v1/completions"
    EMBEDDINGS = "llm/v1/embeddings"


class Kind(StrEnum):
    """How an endpoint is paid for, which decides how it is limited."""

    PAY_PER_TOKEN = "pay_per_token"  # shared replicas; each key has limits
    PROVISIONED = "provisioned_throughput"  # dedicated replicas; admission up to what was bought


class Limits(ConfigModel):
    """How much one API key may use of a pay-per-token endpoint per minute; unlimited if not set."""

    requests_per_minute: int | None = Field(None, ge=1, le=10**9, description="Requests in a minute.")
    input_tokens_per_minute: int | None = Field(
        None, ge=1, le=10**12, description="Tokens of prompts in a minute, cached ones included."
    )
    output_tokens_per_minute: int | None = Field(
        None, ge=1, le=10**12, description="Tokens of answers in a minute."
    )
    default_output_tokens: int = Field(
        1024, ge=1, le=10**9, description="Reserved for a request that sets no limit on its output."
    )


class Price(ConfigModel):
    """What a million tokens cost. The price is recorded with every use; nothing is charged here."""

    input_per_million: float = Field(
        0.0, ge=0, le=1e9, allow_inf_nan=False, description="Of tokens of prompts."
    )
    cached_input_per_million: float | None = Field(
        None,
        ge=0,
        le=1e9,
        allow_inf_nan=False,
        description="Of those that were not computed again; none: as other input.",
    )
    output_per_million: float = Field(
        0.0, ge=0, le=1e9, allow_inf_nan=False, description="Of tokens of answers."
    )
    currency: str = Field("USD", pattern="^[A-Z]{3}$", description="By ISO 4217. Nothing is converted.")


class Databricks(ConfigModel):
    """Settings for points that Databricks' protocol leaves open, or on which it allows less than we do."""

    stream_default: bool = Field(False, description="Stream an answer whose request does not say.")
    system_prompt: str | None = Field(
        None,
        min_length=1,
        max_length=MAX_PROMPT_CHARS,
        description="Goes before chats that bring none; its tokens are counted. Pay-per-token only.",
    )
    max_n: int = Field(MAX_N, ge=1, le=MAX_N, description="Most choices of one prompt.")
    allow_n_everywhere: bool = Field(False, description="Several choices on pay-per-token endpoints too.")
    max_tools: int = Field(32, ge=0, le=MAX_TOOLS, description="Tools of one chat.")
    max_tool_properties: int = Field(15, ge=0, le=10_000, description="Top-level properties of one tool.")
    strict_tools: bool = Field(False, description="A tool without a description is an error.")


class ServedEntity(ConfigModel):
    """A version of a model behind an endpoint."""

    model: Annotated[Name, Field(description="Name of the model, as its application has it.")]
    version: Version = Field("", description="Which of several versions of the model; none: the only one.")
    name: str = Field("", description="Unique in the endpoint; none: MODEL-VERSION, or MODEL.")
    app: App = Field("", description="The Serve application with its replicas; none: the model's shared one.")
    min_provisioned_throughput: int | None = Field(
        None, ge=0, le=10**9, description="Tokens a second that are always there. Needs the maximum."
    )
    max_provisioned_throughput: int | None = Field(
        None, ge=1, le=10**9, description="Tokens a second that were bought: more is refused. None: no limit."
    )

    @model_validator(mode="after")
    def _fill(self) -> ServedEntity:
        if not self.name:
            object.__setattr__(self, "name", entity_name(self.model, self.version))
        check_name(self.name)
        if not self.app:
            object.__setattr__(self, "app", app_name(self.model, self.version))
        low, high = self.min_provisioned_throughput, self.max_provisioned_throughput
        if low is not None and (high is None or low > high):
            raise ValueError("min_provisioned_throughput must not exceed max_provisioned_throughput")
        return self


class Endpoint(ConfigModel):
    """One name that clients call, and the entities that answer under it."""

    name: Annotated[Name, Field(description="What clients send as `model`, or have in the path.")]
    task: Task = Field(Task.CHAT, description="What all its entities do.")
    kind: Kind = Field(
        Kind.PAY_PER_TOKEN, description="Shared replicas with limits for each key, or bought throughput."
    )
    served_entities: tuple[ServedEntity, ...] = Field(
        (), max_length=MAX_ENTITIES, description="None: one, the model of the endpoint's name."
    )
    traffic: dict[str, Percentage] = Field(
        default_factory=dict, description="Entity -> percentage, adding up to 100; of one entity 100."
    )
    sticky: tuple[Literal["header", "user", "key"], ...] = Field(
        ("header", "user", "key"),
        description="Where a routing key is looked for, in this order; without one the draw is random.",
    )
    salt: str = Field("", max_length=256, description="Another salt draws all routing keys anew.")
    fallback: bool = Field(True, description="Try the other entities when one fails before its first token.")
    limits: Limits | None = None
    burst_s: float = Field(
        60.0, ge=1, le=3600, description="Provisioned: seconds of bought throughput that may come at once."
    )
    price: Price | None = None
    v1_dialect: Literal["openai", "mindie"] | None = Field(
        None, description="The protocol of this endpoint's chat below /v1; none: the gateway's `v1_dialect`."
    )
    databricks: Databricks = Databricks()
    ai_gateway: AiGateway = AiGateway()
    shadow: Shadow | None = None

    @field_validator("name")
    @classmethod
    def _is_free(cls, name: str) -> str:
        if name in RESERVED:
            raise ValueError(f"{name!r} is reserved for a route; choose another name")
        return name

    @model_validator(mode="after")
    def _agrees(self) -> Endpoint:
        if not self.served_entities:
            if self.kind is Kind.PROVISIONED:
                raise ValueError("served_entities: a provisioned endpoint must list its dedicated entities")
            object.__setattr__(self, "served_entities", (ServedEntity(model=self.name),))
        traffic = checked_traffic(self.traffic, [entity.name for entity in self.served_entities])
        object.__setattr__(self, "traffic", traffic)
        for entity in self.served_entities:
            bought = entity.max_provisioned_throughput is not None
            if bought != (self.kind is Kind.PROVISIONED):
                needs = "needs" if not bought else "must not have"
                raise ValueError(
                    f"served_entities: {entity.name!r} {needs} max_provisioned_throughput, "
                    f"because kind is {self.kind}"
                )
        if self.kind is Kind.PROVISIONED and self.limits is not None:
            raise ValueError(
                "limits: only for kind pay_per_token; provisioned endpoints have what was bought"
            )
        if self.kind is Kind.PROVISIONED and self.databricks.system_prompt is not None:
            raise ValueError("databricks: system_prompt is only for kind pay_per_token")
        guardrails = self.ai_gateway.guardrails
        if self.task is Task.EMBEDDINGS and guardrails is not None and guardrails.output:
            raise ValueError("ai_gateway.guardrails.output: vectors have no text; only input can be checked")
        if self.shadow is not None and self.entity(self.shadow.entity) is None:
            raise ValueError(f"shadow: {self.shadow.entity!r} is no served entity of the endpoint")
        return self

    @property
    def weighted(self) -> tuple[ServedEntity, ...]:
        """The entities with traffic of their own, in the order of the file."""
        return tuple(entity for entity in self.served_entities if self.traffic.get(entity.name))

    @property
    def reachable(self) -> tuple[ServedEntity, ...]:
        """The entities that may answer a request without an entity's name; with a fallback, all of them."""
        return self.served_entities if self.falls_back else self.weighted

    @property
    def falls_back(self) -> bool:
        """Whether other entities are tried: as set in the AI gateway's settings, or else by `fallback`."""
        switch = self.ai_gateway.fallback_config
        return self.fallback if switch is None else switch.enabled

    def entity(self, name: str) -> ServedEntity | None:
        """The served entity called `name`, if there is one."""
        return next((entity for entity in self.served_entities if entity.name == name), None)
