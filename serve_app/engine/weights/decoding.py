"""Instructions that turn packed codes into numbers, in PTX: about two for each code.

A word has four or eight codes. The instructions take two words. For each place of a code in a word, they
return one register with the numbers of both words, exact, as bfloat16 or float16. The bits of a code
become the low bits of a number whose other bits are known, such as 128; that number is then subtracted.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

STEP: Final = 128  # inputs whose codes are packed together


class Form(IntEnum):
    """What a code means."""

    INT4 = 0  # from 0 to 15, less 8
    INT8 = 1
    FP8 = 2  # E4M3
    FP4 = 3  # E2M1

    @property
    def bits(self) -> int:
        return 4 if self in (Form.INT4, Form.FP4) else 8

    @property
    def codes(self) -> int:
        """In a word."""
        return 32 // self.bits


def instructions(form: Form, *, half: bool) -> str:
    """For the outputs $0, $1, ... of the words in the two registers after them. `half`: float16."""
    first = form.codes
    lines = ["{ .reg .b32 low, high, one, other, sign;"]
    if form.bits == 4:
        lines += [f"prmt.b32 low, ${first}, ${first + 1}, 0x5410;"]
        lines += [f"prmt.b32 high, ${first}, ${first + 1}, 0x7632;"]
    for code in range(first):
        lines += _OF_FORM[form](code, first, half)
    return " ".join([*lines, "}"])


def constraints(form: Form) -> str:
    """Of the registers; outputs are written before all inputs are read."""
    return ",".join(["=&r"] * form.codes + ["r", "r"])


def _int4(code: int, first: int, half: bool) -> list[str]:
    words, shift = _half_of(code)
    known, less = ("0x64006400", "0xe408e408") if half else ("0x43004300", "0xc308c308")  # 1024, 128; -8 too
    moved = [f"shr.b32 one, {words}, {shift};"] if shift else [f"mov.b32 one, {words};"]
    return [*moved, f"lop3.b32 one, one, 0x000f000f, {known}, 0xea;", _plus(code, "one", less, half)]


def _int8(code: int, first: int, half: bool) -> list[str]:
    lines = [_byte(code, first)]
    if half:  # 1024 + 128 + code
        return [
            *lines,
            "lop3.b32 one, one, 0x00ff00ff, 0x64806480, 0x6a;",
            _plus(code, "one", "0xe480e480", half),
        ]
    # 128 and the low bits, less 128 or, of a code below 0, 256
    lines += ["lop3.b32 other, one, 0x00800080, 0x43004300, 0xea;"]
    lines += ["lop3.b32 one, one, 0x007f007f, 0x43004300, 0xea;"]
    return [*lines, f"mov.b32 sign, 0xbf80bf80; fma.rn.bf16x2 ${code}, other, sign, one;"]


def _fp8(code: int, first: int, half: bool) -> list[str]:
    shift, mask, factor = (1, "0x3f803f80", "0x5c005c00") if half else (4, "0x07f007f0", "0x7b807b80")
    lines = [_byte(code, first), f"shr.b32 other, one, {shift};", "and.b32 sign, one, 0x80008000;"]
    return [*lines, f"lop3.b32 one, other, {mask}, sign, 0xea;", _times(code, "one", factor, half)]


def _fp4(code: int, first: int, half: bool) -> list[str]:
    words, shift = _half_of(code)
    place, mask, factor = (9, "0x0e000e00", "0x74007400") if half else (6, "0x01c001c0", "0x7e807e80")
    move = f"shl.b32 other, {words}, {place - shift};"
    if shift > place:
        move = f"shr.b32 other, {words}, {shift - place};"
    lines = [move, f"shl.b32 sign, {words}, {12 - shift};", "and.b32 sign, sign, 0x80008000;"]
    return [*lines, f"lop3.b32 one, other, {mask}, sign, 0xea;", _times(code, "one", factor, half)]


def _half_of(code: int) -> tuple[str, int]:
    """Which halves of the two words have a code of four bits, and its place in them."""
    return ("low", 4 * code) if code < 4 else ("high", 4 * (code - 4))


def _byte(code: int, first: int) -> str:
    """The byte of each word, in both bytes of a half of `one`."""
    return f"prmt.b32 one, ${first}, ${first + 1}, 0x{4 + code}{4 + code}{code}{code};"


def _plus(code: int, name: str, number: str, half: bool) -> str:
    if half:
        return f"mov.b32 other, {number}; add.rn.f16x2 ${code}, {name}, other;"
    return f"mov.b32 other, {number}; mov.b32 sign, 0x3f803f80; fma.rn.bf16x2 ${code}, {name}, sign, other;"


def _times(code: int, name: str, number: str, half: bool) -> str:
    if half:
        return f"mov.b32 other, {number}; mul.rn.f16x2 ${code}, {name}, other;"
    return f"mov.b32 other, {number}; mov.b32 sign, 0x80008000; fma.rn.bf16x2 ${code}, {name}, other, sign;"


_OF_FORM: Final = {Form.INT4: _int4, Form.INT8: _int8, Form.FP8: _fp8, Form.FP4: _fp4}
