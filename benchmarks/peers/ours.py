"""This server, from this working tree: HTTP, gateway and replica."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Final

import yaml

from benchmarks.deployment import NAME, deploy_file, model_config
from benchmarks.peers.peer import BF16, INT4, INT8, Command, Peer, Place
from serve_app.config import ModelConfig

ROOT: Final = Path(__file__).resolve().parents[2]
QUANTIZATIONS: Final = {INT8: "int8", INT4: "int4"}


def formats() -> Mapping[str, str]:
    """Precisions that this tree's deploy files know."""
    known = QUANTIZATIONS if "quantization" in ModelConfig.model_fields else {}
    return {BF16: "bf16", **known}


class Ours(Peer):
    name = "ours"
    formats: ClassVar[Mapping[str, str]] = formats()
    ready_path = "/readyz"
    notes = "`serve-app serve` with HAProxy; 64 sequences and contexts of 4,096 tokens, defaults otherwise."
    engine: ClassVar[Mapping[str, Any]] = {}  # further settings of the engine

    def missing(self) -> str:
        return ""

    def install(self) -> None:
        """Nothing: it is the environment that runs this."""

    def command(self, served: Path, precision: str, place: Place) -> Command:
        settings = {"quantization": self.formats[precision]} if precision != BF16 else {}
        config = model_config(served, "bfloat16", "cpu", **settings)
        config = config.model_copy(update={"engine": config.engine.model_copy(update=self.engine)})
        self.home.mkdir(parents=True, exist_ok=True)
        file = self.home / f"{served.name}-{precision}.yaml"
        file.write_text(yaml.safe_dump(deploy_file(config, place.port)), "utf-8")
        argv = [sys.executable, "-m", "serve_app.cli", "serve", str(file), "--grace", "5"]
        return Command(argv, {"PYTHONPATH": str(ROOT)})

    def model_name(self, served: Path) -> str:
        return NAME


class OursInCodes(Ours):
    """With the KV cache in int8, which OpenVINO's is without a setting."""

    name = "ours-int8-cache"
    notes = "As ours, with `engine.kv_cache_dtype: int8`."
    engine: ClassVar[Mapping[str, Any]] = {"kv_cache_dtype": "int8"}
