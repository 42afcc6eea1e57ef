"""C++ that compiles only if the headers agree with what Python says of them.

Compiled with the kernels, so a library whose structures, constants or functions differ
from structs.py and exports.py cannot be built, and hence never loaded. Checked are: every
field's name, type, order and place; the number of fields; sizes; values of enumerations;
sizes of panels; results and arguments of functions, where one pointer is as good as another.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any, Final

import torch

from serve_app.engine.kernels.exports import EXPORTS
from serve_app.engine.kernels.structs import ENUMS, FLOAT, INPUTS, INT, LANES, LONG, POINTER, STRUCTS

_C_TYPES: Final[dict[Any, str]] = {None: "void", POINTER: "void*", LONG: "long", INT: "int", FLOAT: "float"}
_PREAMBLE: Final = """\
#include <cstddef>
#include <type_traits>

#include "exports.h"
#include "panels.h"
#include "turn.h"

namespace {

template <class T>
using Erased = std::conditional_t<std::is_pointer_v<T>, void*, T>;
template <class R, class... A>
auto erased(R (*)(A...)) -> Erased<R> (*)(Erased<A>...);
"""


def assertions() -> str:
    """The text of a source file for the folder of the headers."""
    return "\n".join((_PREAMBLE, *_structs(), *_constants(), *_functions(), "}  // namespace", ""))


def _structs() -> Iterator[str]:
    for struct in STRUCTS:
        name = _c_name(struct)
        fields: list[tuple[str, Any]] = [(field[0], field[1]) for field in struct._fields_]
        for field, kind in fields:
            place = getattr(struct, field).offset
            same = f"std::is_same_v<Erased<decltype({name}::{field})>, {_c_type(kind)}>"
            yield _assert(f"{same} && offsetof({name}, {field}) == {place}", f"{name}::{field}")
        yield _assert(f"sizeof({name}) == {ctypes.sizeof(struct)}", f"size of {name}")
        # Binds only as many names as there are fields: one that is new in the header cannot hide in padding.
        names = ", ".join(f"{field}_" for field, _ in fields)
        yield f"[[maybe_unused]] void fields_of({name}& s) {{ [[maybe_unused]] auto& [{names}] = s; }}"


def _constants() -> Iterator[str]:
    for enum in ENUMS:
        for member in enum:
            yield _assert(f"{member.name} == {member.value}", f"{enum.__name__} {member.name}")
    yield _assert(f"LANES == {LANES}", "LANES")
    yield _assert(f"FLOAT_INPUTS == {INPUTS[torch.float32]}", "FLOAT_INPUTS")
    yield _assert(f"BF16_INPUTS == {INPUTS[torch.bfloat16]}", "BF16_INPUTS")


def _functions() -> Iterator[str]:
    for name, (result, arguments) in EXPORTS.items():
        types = ", ".join(map(_c_type, arguments))
        yield _assert(f"std::is_same_v<decltype(erased(&{name})), {_c_type(result)} (*)({types})>", name)


def _assert(condition: str, what: str) -> str:
    return f'static_assert({condition}, "{what} differs between the header and Python");'


def _c_name(struct: type[ctypes.Structure]) -> str:
    return struct.__name__.removesuffix("Struct")


def _c_type(kind: Any) -> str:
    return _C_TYPES[kind] if kind in _C_TYPES else _c_name(kind)
