"""Compiles the translated source, every kernel and every instantiation, with the host's C++ compiler. It checks names,
types and narrowing in braces; address spaces are erased."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable

from ..build import GENERATED_NAME, readable, version
from ..source import compiler
from ..source.paths import HEADERS
from ..source.preprocess import Preprocessed
from ..targets.host import precompiled, tensors
from ..targets.host.emit import HostCode, emit
from .checked import Finding
from .messages import errors, place_of
from .rules import rule
from .signatures import MEMORY, MEMORY_LIMIT, has_alternatives

COMPILES = rule(
    "compile",
    "1.5",
    "Names are declared, types agree, and braces narrow nothing, in every kernel and instantiation.",
)

_MAX_ERRORS = 100
_TABLE_ENTRY = re.compile(r'^  \{"((?:[^"\\]|\\.)*)", \S*msl_arguments_\d+,', re.MULTILINE)
_MEMORY = re.compile(r"threadgroup memory of (.*?)(?=[\"']|$)")
# Metal compilers reject a narrowing conversion in braces; kernels are built without that check.
_LENIENT = ("-w", "-Wno-narrowing", "-Wno-c++11-narrowing")


def check(preprocessed: Preprocessed, is_wanted: Callable[[str], bool]) -> list[Finding]:
    """Returns the errors of the host's compiler about a source, without those of generated text if there are others."""
    try:
        # A group loop is the same code once more, which takes a compiler twenty times as long.
        emitted = emit(preprocessed, group_loops=False)
    except SyntaxError as error:
        return [
            Finding(d.file, d.line, max(d.column, 1), COMPILES.name, d.message)
            for d in error.diagnostics
        ]
    found, elsewhere = [], []
    output, path = _compile(emitted, preprocessed.language)
    for message in errors(output, path):
        if memory := _MEMORY.search(message.text):
            found += _too_much_memory(memory[1], emitted)
            continue
        at = place_of(message, emitted.position, is_wanted)
        if at is None:  # in our headers, as g++ says beside a call that no function takes
            place = elsewhere
            if message.places:
                at = emitted.position_before(*message.places[0])
        else:
            # Messages about generated names only follow from other errors.
            place = elsewhere if GENERATED_NAME.search(message.text) else found
        file, line, column = (
            (preprocessed.name, 1, 1) if at is None else (at.file, at.line, at.column)
        )
        place.append(Finding(file, line, column, COMPILES.name, readable(message.text)))
    return found or elsewhere


def _too_much_memory(name: str, emitted: HostCode) -> list[Finding]:
    """Returns a finding for a kernel whose threadgroup variables take more memory than there is."""
    instance = next((i for i in emitted.program.instances if i.name == name), None)
    if instance is None or has_alternatives(emitted.program.source, instance.kernel):
        return []
    at = emitted.lines.position(instance.offset)
    sentence = (
        f"the threadgroup variables of {name} take more than the {MEMORY_LIMIT} bytes there are; make them smaller, or "
        f"reuse one (MSL {MEMORY.section})"
    )
    return [Finding(at.file, at.line, at.column, MEMORY.name, sentence)]


def _assertions(emitted: HostCode) -> str:
    """Returns C++ that asserts how much threadgroup memory the kernels have."""
    return "".join(
        f"static_assert(msl_kernels[{number}].static_threadgroup_bytes <= {MEMORY_LIMIT}, "
        f'"threadgroup memory of {name}");\n'
        for number, name in enumerate(_TABLE_ENTRY.findall(emitted.text[emitted.thunks_at :]))
    )


def _compile(emitted: HostCode, language: int) -> tuple[str, str]:
    """Returns the compiler's output for emitted text, and the name of the file that held the text."""
    host = compiler.find()
    flags = [flag for flag in host.flags(0) if flag not in _LENIENT]
    flags += [f"-I{HEADERS}", *host.diagnostic_flags(_MAX_ERRORS)]
    if emitted.program.has_tensors:
        flags += tensors.flags("c++2b", language, tensors.layout())
    flags.append("-Werror=vla")
    if host.kind == "gnu":
        flags.append("-Werror=narrowing")
    with tempfile.TemporaryDirectory(prefix="metalops") as folder:
        path = os.path.join(folder, "kernels.cpp")
        with open(path, "w", encoding="latin-1") as stream:
            stream.write(emitted.without_markers() + _assertions(emitted))
        header = precompiled.flags(host, emitted.text, flags, version(), folder)
        result = precompiled.run(host, flags, header, ["-fsyntax-only", path])
    return result.stderr.decode(errors="replace"), path
