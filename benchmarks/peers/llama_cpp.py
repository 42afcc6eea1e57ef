"""llama.cpp's `llama-server`, built from the source that llama-cpp-python's sdist carries."""

from __future__ import annotations

import shutil
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import ClassVar, Final

from benchmarks.peers.peer import BF16, INT4, INT8, TORCH, Command, Peer, Place, call

SOURCE: Final = "llama_cpp_python==0.3.36"
CONVERTER: Final = Path(__file__).parent / "fronts" / "to_gguf.py"
# From a flag of /proc/cpuinfo to ggml's option.
OPTIONS: Final = {
    "sse4_2": "GGML_SSE42",
    "avx": "GGML_AVX",
    "avx2": "GGML_AVX2",
    "fma": "GGML_FMA",
    "f16c": "GGML_F16C",
    "bmi2": "GGML_BMI2",
    "avx_vnni": "GGML_AVX_VNNI",
    "avx512f": "GGML_AVX512",
    "avx512vbmi": "GGML_AVX512_VBMI",
    "avx512_vnni": "GGML_AVX512_VNNI",
    "avx512_bf16": "GGML_AVX512_BF16",
    "amx_tile": "GGML_AMX_TILE",
    "amx_int8": "GGML_AMX_INT8",
    "amx_bf16": "GGML_AMX_BF16",
}
# gcc 12 believes that this reads eight bytes and drops the stores to the others: tiles without a shape, and
# an illegal instruction at the first of them. A barrier keeps the stores.
TILES: Final = "ggml/src/ggml-cpu/amx/mmq.cpp"
LOADS: Final = "    _tile_loadconfig(&tc);"
BARRIER: Final = '    __asm__ volatile("" : : "r"(&tc) : "memory");\n'
OFF: Final = ("LLAMA_CURL", "LLAMA_OPENSSL", "LLAMA_BUILD_TESTS", "LLAMA_BUILD_EXAMPLES", "LLAMA_BUILD_UI")


def processor_flags() -> set[str]:
    for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
        if line.startswith("flags"):
            return set(line.split())
    return set()


class LlamaCpp(Peer):
    name = "llama.cpp"
    requirements = (TORCH, "transformers==5.23.0", "sentencepiece==0.2.3", "protobuf==7.36.2")
    formats: ClassVar[Mapping[str, str]] = {BF16: "bf16", INT8: "q8_0", INT4: "q4_0"}
    notes = (
        "Built from source for this processor, with AMX where it has it. 32 slots over one KV cache of "
        "16,384 tokens, flash attention, batches of 2,048 and micro-batches of 512 tokens."
    )

    @property
    def source(self) -> Path:
        return self.home / "source" / "vendor" / "llama.cpp"

    @property
    def programs(self) -> Path:
        return self.home / "build" / "bin"

    def missing(self) -> str:
        tools = [tool for tool in ("cmake", "ninja", "g++") if shutil.which(tool) is None]
        return f"needs {', '.join(tools)}" if tools else super().missing()

    def install(self) -> None:
        self.make_environment()
        self._fetch()
        self._mend()
        self._build(processor_flags() & OPTIONS.keys())

    def _fetch(self) -> None:
        if self.source.exists():
            return
        target = self.home / "download"
        flags = ["--no-deps", "--no-binary", "llama_cpp_python", "--dest", str(target)]
        call([str(self.python), "-m", "pip", "download", "--quiet", *flags, SOURCE])
        [archive] = target.glob("*.tar.gz")
        with tarfile.open(archive) as tar:
            tar.extractall(target, filter="data")
        archive.unlink()
        [tree] = target.iterdir()
        tree.rename(self.home / "source")

    def _mend(self) -> None:
        """Let its products by AMX run where gcc compiled them."""
        file = self.source / TILES
        text = file.read_text("utf-8")
        if BARRIER not in text:
            file.write_text(text.replace(LOADS, BARRIER + LOADS), "utf-8")

    def _build(self, flags: Iterable[str]) -> None:
        wanted = set(flags)
        options = [f"-D{option}={'ON' if flag in wanted else 'OFF'}" for flag, option in OPTIONS.items()]
        options += ["-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=OFF", *(f"-D{name}=OFF" for name in OFF)]
        folder = str(self.home / "build")
        call(["cmake", "-S", str(self.source), "-B", folder, "-G", "Ninja", *options])
        call(["ninja", "-C", folder, "-j", "2", "llama-server", "llama-quantize"])

    def prepare(self, model: Path, precision: str) -> Path:
        target = self.home / "models" / f"{model.name}-{self.formats[precision]}.gguf"
        if target.exists():
            return target
        target.parent.mkdir(exist_ok=True)
        if precision == INT4:
            full = self.prepare(model, BF16)
            call([str(self.programs / "llama-quantize"), str(full), str(target), "q4_0"])
        else:
            kind = ["--outfile", str(target), "--outtype", self.formats[precision]]
            call([str(self.python), str(CONVERTER), str(self.source), str(model), *kind])
        return target

    def command(self, served: Path, precision: str, place: Place) -> Command:
        threads = ["--threads", str(place.threads), "--threads-batch", str(place.threads)]
        batching = ["--parallel", "32", "--ctx-size", "16384", "--kv-unified", "--batch-size", "2048"]
        settings = ["--ubatch-size", "512", "--flash-attn", "on"]
        address = ["--host", "127.0.0.1", "--port", str(place.port)]
        server = str(self.programs / "llama-server")
        return Command([server, "--model", str(served), *address, *threads, *batching, *settings])
