"""What a GGUF file says of its model, read by name, so that nothing it says is left out by mistake."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from serve_app.models.errors import ModelLoadError
from serve_app.models.gguf.header import Header, TensorEntry

ARCHITECTURE: Final = "general.architecture"
ORIGIN: Final = "choose the repository that it was converted from, with safetensors"  # the way out
_MOST: Final = 2**31  # of any count


class Facts:
    """Settings of a file's architecture, and its tensors. Every setting that is read is noted."""

    def __init__(self, headers: Sequence[Header]) -> None:
        """`headers`: of one file, or of all the parts of a model that is split."""
        self.path: Path = headers[0].path
        self.settings: Mapping[str, Any] = headers[0].settings
        self.tensors: dict[str, TensorEntry] = {}
        for each in headers:
            for tensor in each.tensors:
                if tensor.name in self.tensors:
                    raise ModelLoadError(f"{each.path} has the tensor {tensor.name}, as {self.path} does")
                self.tensors[tensor.name] = tensor
        self.architecture = str(self.settings.get(ARCHITECTURE, ""))
        self._read: set[str] = set()

    def error(self, reason: str) -> ModelLoadError:
        return ModelLoadError(f"{self.path} ({self.architecture}) cannot be served: {reason}")

    def has(self, name: str) -> bool:
        return f"{self.architecture}.{name}" in self.settings

    def value(self, name: str, default: Any = None) -> Any:
        """The setting `name` of the architecture, or else `default`. Raises ModelLoadError without either."""
        key = f"{self.architecture}.{name}"
        self._read.add(key)
        found = self.settings.get(key, default)
        if found is None:
            raise self.error(f"it lacks the setting {key}")
        if isinstance(found, list) and len(set(found)) == 1:  # one for each layer
            return found[0]
        return found

    def integer(self, name: str, default: int | None = None) -> int:
        """Raises ModelLoadError as `value`, and for a value that is no count."""
        found = self.value(name, default)
        if type(found) is not int or not 0 < found < _MOST:
            raise self.error(f"its setting {self.architecture}.{name} is {found!r}")
        return found

    def real(self, name: str, default: float | None = None) -> float:
        """The shortest number that is the float32 of the file. Raises ModelLoadError as `integer`."""
        found = self.value(name, default)
        if type(found) not in (int, float) or not math.isfinite(found):
            raise self.error(f"its setting {self.architecture}.{name} is {found!r}")
        return shortest(float(found))

    def unread(self) -> list[str]:
        """Settings of the architecture that were not read."""
        return sorted(
            key for key in self.settings if key.startswith(f"{self.architecture}.") and key not in self._read
        )

    def rows(self, tensor: str) -> int:
        """The first dimension of a tensor. Raises ModelLoadError if there is no such tensor."""
        if tensor not in self.tensors:
            raise self.error(f"it lacks the tensor {tensor}")
        return self.tensors[tensor].shape[0]

    def floats(self, tensor: str) -> list[float] | None:
        """The numbers of a small tensor; None if there is no such tensor."""
        found = self.tensors.get(tensor)
        if found is None:
            return None
        if found.type.name != "F32" or len(found.shape) != 1:
            raise self.error(f"its {tensor} is of type {found.type.name} and shape {list(found.shape)}")
        with found.path.open("rb") as file:
            file.seek(found.start)
            return [
                shortest(each) for each in struct.unpack(f"<{found.shape[0]}f", file.read(found.num_bytes))
            ]


def shortest(value: float) -> float:
    """The number with the fewest digits that is `value` in float32: 1e-05, not 9.999999747378752e-06."""
    for digits in range(6, 10):
        short = float(f"{value:.{digits}g}")
        if struct.pack("<f", short) == struct.pack("<f", value):
            return short
    return value
