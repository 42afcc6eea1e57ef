"""OpenVINO GenAI's continuous batching pipeline behind a thin HTTP front of ours."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Final

from benchmarks.peers.peer import BF16, INT4, INT8, TORCH, Command, Peer, Place, call

FRONT: Final = Path(__file__).parent / "fronts" / "openvino_http.py"


class OpenVino(Peer):
    name = "openvino"
    requirements = (TORCH, "openvino-genai==2026.4.1.0", "optimum-intel[openvino]==2.2.0", "aiohttp==3.14.5")
    formats: ClassVar[Mapping[str, str]] = {BF16: "fp16", INT8: "int8", INT4: "int4"}
    notes = (
        "OpenVINO Model Server has no wheel, so its engine runs behind a front of ours, in a process of its "
        "own. fp16 weights are computed in bf16 and the KV cache is u8, which are the plugin's own choices. "
        "2,048 batched tokens, prefix cache on, 4 GiB of KV cache."
    )

    def install(self) -> None:
        super().install()
        # optimum imports torchvision where there is one, and the registry's does not match torch's CPU build.
        call([str(self.python), "-m", "pip", "uninstall", "--quiet", "--yes", "torchvision"])

    def prepare(self, model: Path, precision: str) -> Path:
        target = self.home / "models" / f"{model.name}-{self.formats[precision]}"
        if not (target / "openvino_model.bin").exists():
            exporter = str(self.python.with_name("optimum-cli"))
            task = ["--task", "text-generation-with-past", "--weight-format", self.formats[precision]]
            export = [exporter, "export", "openvino", "--model", str(model), *task, str(target)]
            call(export, HF_HUB_OFFLINE="1")
        return target

    def command(self, served: Path, precision: str, place: Place) -> Command:
        return Command([str(self.python), str(FRONT), str(served), str(place.port), str(place.threads)])
