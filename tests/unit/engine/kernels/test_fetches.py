"""The compiler keeps fetches of memory, though it takes a function of nothing else for one without effect."""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import subprocess

import pytest

from serve_app.engine.kernels import build

COMPILER = shlex.split(os.environ.get("CXX") or shutil.which("g++") or "")
FETCH = re.compile(r"^\s+prefetch", re.MULTILINE)
# What a decode does with the keys, or the values, of one block, and nothing else of attention.
KEYS = """
#include "attention_few.h"
using Way = {way};
using T = Way::Cached;
void keys(long rows, const Way::Factor* q, const T* block, const void* next, float* to) {{
  few_scores<Way>(rows, q, 64, block, 32, 32, next, to, 32);
}}
"""
VALUES = """
#include "attention_few.h"
using Way = {way};
using T = Way::Cached;
void values(long rows, const Way::Factor* p, const T* const* block, const void* next, float* to) {{
  few_sums<Way>(rows, p, 32, block, 32, 64, ahead(block[0], next), to);
}}
"""
pytestmark = pytest.mark.skipif(
    not COMPILER or platform.machine() != "x86_64", reason="looks for instructions of x86-64"
)


def assembly(source: str) -> str:
    flags = [flag for flag in build.flags() if flag != "-shared"]
    return subprocess.run(
        [*COMPILER, *flags, f"-I{build.SOURCES}", "-x", "c++", "-S", "-o", "-", "-"],
        input=source,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    ).stdout


@pytest.mark.full
@pytest.mark.parametrize("source", [KEYS, VALUES], ids=["keys", "values"])
@pytest.mark.parametrize("way", ["InFloats<float>", "InFloats<bf16>", "InPairs<bf16>", "AsTiles<int8_t>"])
def test_a_decode_fetches_the_next_block_while_it_reads_one(way: str, source: str) -> None:
    assert FETCH.search(assembly(source.format(way=way)))


def test_keys_are_fetched_before_they_are_written() -> None:
    assert FETCH.search(assembly('#include "rotary.cpp"'))
