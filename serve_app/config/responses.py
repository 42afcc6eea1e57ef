"""The settings of OpenAI's responses: how long and how many are kept."""

from __future__ import annotations

from pydantic import Field

from serve_app.config.base import ConfigModel


class ResponsesConfig(ConfigModel):
    """How responses are kept for later requests of the same key."""

    keep: bool = Field(
        True,
        description="Keep responses and their input, unless a request says `store: false`: in the control "
        "plane's database, or without a control plane in the gateway's memory. false: keep none.",
    )
    keep_days: float = Field(
        30.0, gt=0, le=366, description="Days after which a kept response is removed that no request used."
    )
    megabytes_per_key: int = Field(
        64,
        ge=16,
        le=4096,
        description="Most megabytes, compressed, that are kept for one key; the longest unused go first.",
    )

    @property
    def keep_s(self) -> float:
        return self.keep_days * 86_400.0

    @property
    def bytes_per_key(self) -> int:
        return self.megabytes_per_key * 2**20
