"""C++ that compiles only if the headers agree with structs.py and exports.py.

It is compiled with the kernels. So a library whose headers disagree with Python cannot be built, and is never
loaded. The assertions compare the name, type, order and offset of every field; the number of fields and the
size of a structure; values of enumerations; sizes of panels; results and arguments of functions, with all
pointers as one type.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any, Final

import torch

from serve_app.engine.kernels.compact import CODES, EXCEPTION
from serve_app.engine.kernels.exports import EXPORTS
from serve_app.engine.kernels.structs import (
    ENUMS,
    FLOAT,
    INPUTS,
    INT,
    INT4_INPUTS,
    LANES,
    LONG,
    POINTER,
    STRUCTS,
)

_C_TYPES: Final[dict[Any, str]] = {None: "void", POINTER: "void*", LONG: "long", INT: "int", FLOAT: "float"}
_PREAMBLE: Final = """\
#include <cstddef>
#include <type_traits>

#include "compact.h"
#include "exports.h"
#include "laps.h"
#include "panels.h"
#include "quantized_rows.h"
#include "turn.h"

namespace {

template <class T>
using Erased = std::conditional_t<std::is_pointer_v<T>, void*, T>;
template <class R, class... A>
auto erased(R (*)(A...)) -> Erased<R> (*)(Erased<A>...);
"""


def assertions() -> str:
    """The text of a source file, which includes the headers."""
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
        # C++ binds as many names as there are fields, so a new field of the header cannot hide in padding.
        names = ", ".join(f"{field}_" for field, _ in fields)
        yield f"[[maybe_unused]] void fields_of({name}& s) {{ [[maybe_unused]] auto& [{names}] = s; }}"


def _constants() -> Iterator[str]:
    for enum in ENUMS:
        for member in enum:
            yield _assert(f"{member.name} == {member.value}", f"{enum.__name__} {member.name}")
    yield _assert(f"LANES == {LANES}", "LANES")
    yield _assert(f"FLOAT_INPUTS == {INPUTS[torch.float32]}", "FLOAT_INPUTS")
    yield _assert(f"INT_INPUTS == {INPUTS[torch.int8]}", "INT_INPUTS")
    yield _assert(f"INT4_INPUTS == {INT4_INPUTS}", "INT4_INPUTS")
    yield _assert(f"CODES == {CODES} && sizeof(Exception) == {EXCEPTION}", "CODES or Exception")
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
