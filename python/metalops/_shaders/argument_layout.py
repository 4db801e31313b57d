"""Where the arguments of an argument buffer are: a struct with pointers, textures or samplers, which MTLArgumentEncoder
fills in."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from .. import _host, msl
from ..msl.analysis.program import (
    ClassScope,
    Instance,
    Program,
    declarator_kinds,
    declared_identifier,
    integer_value,
)
from ..msl.build import Options, preprocess_text

_PROBE = "argument_offsets"
_WORDS = re.compile(r"\b(?:device|constant|const|volatile|struct|coherent)\b(?:\([^)]*\))?|[*&]")
_OF_POINTERS = re.compile(r"^(?:metal::)?array\s*<.*\*.*>$", re.DOTALL)
_SAMPLER = re.compile(r"\bsampler\b")
_TEXTURE = re.compile(
    r"\b(?:texture|depth)(1d_array|1d|2d_array|2d|3d|cube_array|cube|_buffer)\s*"
    r"<\s*(\w+)\s*(?:,\s*(?:metal::)?access::(\w+))?"
)
# The numbers of MTLArgumentEncoder's C++ (csrc/host/objc/metal/argument_encoders.cpp), and of msl/texture_abi.h.
_NUMBER, _POINTER, _TEXTURES, _SAMPLERS = range(4)
_KINDS = ("1d", "1d_array", "2d", "2d_array", "3d", "cube", "cube_array", "_buffer")
_COMPONENTS = (("float", "half"), ("int", "short", "long"), ("uint", "ushort", "ulong"))
_ACCESSES = ("sample", "read", "write", "read_write")


@dataclass(frozen=True)
class _Member:
    """A member of the struct, or of a struct in it. index: its [[id]], or None for the one after the last. path: C++ behind
    the struct's pointer. dimensions: how many of an array. facts: of a texture, see _facts()."""

    index: int | None
    path: str
    dimensions: int
    what: int
    facts: int


def argument_layout(source: bytes, language: int, kernel: str, index: int) -> list[int]:
    """Returns the layout of the struct in buffer `index` of a kernel: its bytes and its alignment, and six numbers for
    each member: its first id, its offset, the bytes of one element, how many elements, what it is, and the facts of a
    texture. source: preprocessed, deflated by zlib.

    Raises ValueError if the buffer is no struct with pointers, textures or samplers.
    """
    text = zlib.decompress(source).decode(errors="replace")
    parsed = preprocess_text(text, None, Options(language=language)).parsed
    program = Program(parsed, forbid=lambda message, offset: None)
    scope = _struct(program, kernel, index)
    members = [] if scope is None else [*_members(program, scope, "")]
    if all(m.what == _NUMBER for m in members):
        raise ValueError(
            f"buffer {index} of {kernel!r} is no struct with pointers, textures or samplers"
        )
    numbers = _probe(text, language, "::".join([*_path(scope), scope.name]), members)
    layout, following = numbers[:2], 0
    for member, offset, size, element in zip(
        members, numbers[2::3], numbers[3::3], numbers[4::3], strict=True
    ):
        first = following if member.index is None else member.index
        count = size // element
        following = first + count
        layout += [first, offset, element, count, member.what, member.facts]
    return layout


def _path(scope: ClassScope) -> list[str]:
    return [p.removeprefix("class ") for p in scope.path if p]


def _struct(program: Program, kernel: str, index: int) -> ClassScope | None:
    instance: Instance = next(i for i in program.instances if i.name == kernel)
    for parameter in instance.kernel.parameters:
        if parameter.kind == "buffer" and integer_value(parameter.index or "") == index:
            return _named(program, parameter.type)
    return None


def _named(program: Program, type_: str) -> ClassScope | None:
    """Returns the struct of which a type is, or a pointer or reference to it."""
    name = "".join(_WORDS.sub("", type_).split()).split("::")[-1]
    found = [s for s in program.classes if s.name == name]
    return found[0] if len(found) == 1 and not found[0].template_headers else None


def _members(program: Program, scope: ClassScope, path: str) -> Iterator[_Member]:
    source = program.source
    for node in scope.specifier.child_by_field_name("body").named_children:
        if node.type != "field_declaration":
            continue
        type_ = source.masked_text(node.child_by_field_name("type"))
        inner = _named(program, type_)
        for declarator in node.children_by_field_name("declarator"):
            identifier = declared_identifier(declarator)
            kinds = declarator_kinds(declarator)
            if identifier is None or "function" in kinds:
                continue
            name = (
                f"{path}.{source.masked_text(identifier)}"
                if path
                else source.masked_text(identifier)
            )
            if inner is not None and not kinds:
                yield from _members(program, inner, name)
                continue
            ids = [
                a.arguments
                for a in source.attributes_in(identifier.end_byte, node.end_byte)
                if a.name == "id"
            ]
            number = integer_value(ids[0] or "") if ids else None
            what, facts = _what(type_.strip(), "pointer" in kinds)
            yield _Member(number, name, kinds.count("array"), what, facts)


def _what(type_: str, is_pointer: bool) -> tuple[int, int]:
    """Returns what a member of a type is, or the elements of it, and the facts of a texture: the numbers of its kind, of
    its components (3 if they are not known) and of its access, in four bits each."""
    if is_pointer or _OF_POINTERS.match(type_):
        return _POINTER, 0
    if _SAMPLER.search(type_):
        return _SAMPLERS, 0
    found = _TEXTURE.search(type_)
    if found is None:
        return _NUMBER, 0
    kind, component, access = found.groups()
    components = [i for i, names in enumerate(_COMPONENTS) if component in names]
    default = "read" if kind == "_buffer" else "sample"
    return _TEXTURES, (
        _KINDS.index(kind)
        | (components or [len(_COMPONENTS)])[0] << 4
        | _ACCESSES.index(access or default) << 8
    )


def _probe(text: str, language: int, struct: str, members: list[_Member]) -> list[int]:
    """Compiles and runs a kernel that measures a struct."""
    lines = [f"o[0] = sizeof(::{struct}); o[1] = alignof(::{struct});"]
    for number, member in enumerate(members):
        value = f"s->{member.path}"
        element = "8" if member.what != _NUMBER else f"sizeof({value}{'[0]' * member.dimensions})"
        lines.append(
            f"o[{3 * number + 2}] = (const device char*)&{value} - (const device char*)s; "
            f"o[{3 * number + 3}] = sizeof({value}); o[{3 * number + 4}] = {element};"
        )
    body = "\n".join(lines)
    probe = (
        f"\nkernel void {_PROBE}(device long* o) {{\n"
        f"const device ::{struct}* s = (const device ::{struct}*)o;\n{body}\n}}\n"
    )
    path = msl.compile_left_out(zlib.compress((text + probe).encode()), language, [_PROBE])
    out = torch.zeros(2 + 3 * len(members), dtype=torch.int64)
    _host.Library(path).launch(_PROBE, [out], 1, 1)
    return out.tolist()
