"""Metal sources to start from, and random changes of their tokens."""

from __future__ import annotations

import ast
import os
import random
import re
from dataclasses import dataclass
from functools import cache

from metalops.msl.source.preprocess import torch_include

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_HEADER = "#include <metal_stdlib>\nusing namespace metal;\n"
_TOKEN = re.compile(
    r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|[A-Za-z_]\w*|\.?\d(?:[\w.]|[eEpP][+-])*"""
    r"""|\#|\\\n|::|->|<<=|>>=|<<|>>|\[\[|\]\]|\+\+|--|&&|\|\||[-+*/%&|^<>=!]=|\s+|.""",
    re.DOTALL,
)
# What Metal and the front end give a meaning of their own, and what often goes wrong.
_INSERTED = """device constant thread threadgroup kernel vertex fragment template typename struct class enum union namespace
    using typedef static const constexpr inline operator return if else for while do switch case default break continue
    goto sizeof decltype auto void bool char short int uint long ulong half float float2 float4 bfloat half4 atomic_int
    as_type static_cast threadgroup_barrier simdgroup_barrier simd_sum simd_shuffle mem_flags::mem_threadgroup metal::
    metal c10::metal:: host_name [[buffer(0)]] [[buffer(99)]] [[thread_position_in_grid]] [[host_name("x")]] [[
    ]] [ ] ( ) { } < > << >> , ; : :: ? . -> + - * / % & && | ^ ! ~ = == += ++ -- # ## #define #if #endif #else
    #include #pragma #line 0 1 1u 2147483648 1.0 1.0h 1e9f 0x1p-3 1.bf "text" 'c' \\ // /* */ \0 \x7f é
    __attribute__((x)) asm("x") ... this template<> alignas(16) volatile ::""".split()


@dataclass(frozen=True)
class Source:
    name: str
    text: str


def _files(folder: str) -> list[str]:
    return [
        os.path.join(directory, name)
        for directory, _, names in sorted(os.walk(folder))
        for name in sorted(names)
        if name.endswith((".metal", ".h"))
    ]


def _read(path: str, name: str) -> Source:
    with open(path, encoding="utf-8") as stream:
        return Source(name, stream.read())


@cache
def small_sources() -> list[Source]:
    """Kernels in the tests, which include nothing but the standard library, and compile in no time."""
    result = []
    for folder, _, names in sorted(os.walk(os.path.join(ROOT, "tests"))):
        for name in sorted(names):
            path = os.path.join(folder, name)
            if name.endswith(".py") and os.path.basename(folder) != "fuzz":
                result += _kernels_in(path)
            elif os.path.basename(folder) == "gallery":
                text = _read(path, name).text
                cases = re.split(r"(?m)^(?:===.*|---)\n", text)
                result += [Source(name, _HEADER + case) for case in cases if case.strip()]
    return result


def _kernels_in(path: str) -> list[Source]:
    with open(path, encoding="utf-8") as stream:
        tree = ast.parse(stream.read())
    inside_f_strings = {
        id(node)
        for f_string in ast.walk(tree)
        if isinstance(f_string, ast.JoinedStr)
        for node in ast.walk(f_string)
    }
    texts = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and id(node) not in inside_f_strings
        and re.search(r"\bkernel\s+void\b", node.value)
    ]
    name = os.path.relpath(path, ROOT)
    return [
        Source(name, t if "#include" in t else _HEADER + t) for t in texts if "metalops/" not in t
    ]


@cache
def large_sources() -> list[Source]:
    """Our kernel files and the headers for them, and torch's."""
    folders = [
        os.path.join(ROOT, "kernels"),
        os.path.join(ROOT, "tests", "metal", "extension"),
        os.path.join(torch_include() or "", "c10", "metal"),
    ]
    headers = os.path.join(ROOT, "python", "metalops", "include", "metalops")
    found = [_read(path, os.path.basename(path)) for folder in folders for path in _files(folder)]
    ours = [_read(path, os.path.basename(path)) for path in _files(headers)]
    return found + [s for s in ours if "__METAL__" in s.text or "metal_stdlib" in s.text]


def tokens(text: str) -> list[str]:
    return _TOKEN.findall(text)


def changed(source: Source, other: Source, chance: random.Random) -> str:
    """The text with one to four random changes; `other` lends tokens."""
    pieces = tokens(source.text)
    lent = tokens(other.text)
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        _change(pieces, lent, chance)
    return "".join(pieces)


def _change(pieces: list[str], lent: list[str], chance: random.Random) -> None:
    at = chance.randrange(len(pieces))
    other = chance.randrange(len(pieces))
    length = chance.choice((1, 1, 1, 2, 5, 30))
    kind = chance.randrange(8)
    if kind == 0:
        del pieces[at : at + length]
    elif kind == 1:
        pieces[at:at] = pieces[other : other + length]
    elif kind == 2:
        pieces[at], pieces[other] = pieces[other], pieces[at]
    elif kind == 3:
        pieces.insert(at, chance.choice(_INSERTED))
    elif kind == 4:
        pieces[at] = chance.choice(_INSERTED)
    elif kind == 5:
        start = chance.randrange(len(lent))
        pieces[at:at] = lent[start : start + length]
    elif kind == 6:
        del pieces[at:]  # a file that was cut short
    else:
        letters = list(pieces[at])
        place = chance.randrange(len(letters))
        letters[place] = chr(chance.choice((0, 10, 34, 35, 39, 40, 41, 60, 62, 92, 123, 125, 233)))
        pieces[at] = "".join(letters)
    if not pieces:
        pieces.append(" ")
