"""A second opinion: clang's OpenCL C++ mode, whose address spaces and overload rules are Metal's.

The source is read with a small metal_stdlib of this package (include/metal_opencl.h). Constructs that OpenCL writes in
another way are rewritten first, and messages that only reflect differences between the two languages are left out.
"""

from __future__ import annotations

import functools
import itertools
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass

from ..analysis.program import Program, ProgramError
from ..analysis.types import DATA_SPACES
from ..dialect.edits import Edits
from ..dialect.emitted import Emitted
from ..dialect.thread_values import with_parameters
from ..source.locations import LineMap
from ..source.parse import STAGES, Source, Word
from ..source.preprocess import Preprocessed
from ..source.vocabulary import FRAGMENT_FUNCTIONS
from .checked import Finding, let_pass
from .messages import errors, place_of
from .rules import rule
from .sources import library_words

OPENCL = rule(
    "opencl",
    "4",
    "clang's OpenCL C++ mode, whose address spaces are Metal's, accepts the source (where there is "
    "clang 15 or newer).",
)

_HEADER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "include", "metal_opencl.h")
_EXTENSIONS = "+all,+__cl_clang_function_pointers,+__cl_clang_variadic_functions"
_FLAGS = [
    "-x",
    "clcpp",
    "-cl-std=clc++2021",
    "-cl-no-stdinc",
    "-cl-single-precision-constant",
    "-fsyntax-only",
    "-w",
    "-target",
    "x86_64-linux-gnu",
    "-Xclang",
    "-ffake-address-space-map",
    "-Xclang",
    f"-cl-ext={_EXTENSIONS}",
    "-fno-caret-diagnostics",
    "-fno-elide-type",
    "-fdiagnostics-color=never",
    "-ferror-limit=0",
]
# Names in clang's messages, with their Metal spelling.
_NAMES = [
    (re.compile(r"'[^']*' \(aka ('[^']*')\)"), r"\1"),
    (re.compile(r"__global\b"), "device"),
    (re.compile(r"__local\b"), "threadgroup"),
    (re.compile(r"__constant\b"), "constant"),
    (re.compile(r"(?<=[*&])__private\b"), ""),
    (re.compile(r"__private\b"), "thread"),
    (re.compile(r"\b(\w+) __attribute__\(\(ext_vector_type\((\d)\)\)\)"), r"\1\2"),
    (re.compile(r"\bsimdgroup_matrix<(\w+), 8, 8>"), r"simdgroup_\g<1>8x8"),
    (re.compile(r"\bmatrix<(\w+), (\d), (\d)>"), r"\1\2x\3"),
    (re.compile(r"\bvec<(\w+), (\d)>"), r"\1\2"),
    (re.compile(r" \(vector of \d+ '[^']*' values\)"), ""),
    (re.compile(r"\bmetal_(?=generic|global|local|pipe|read_|write_|atomic_)"), ""),
    (re.compile(r"__bf16\b"), "bfloat"),
]
_VECTOR = re.compile(
    r"(?:metal::)?(?:packed_)?(?:bool|u?char|u?short|u?int|u?long|half|float|bfloat)[234]$"
)
_SPACED = r"(?:const )?(?:(?:device|constant|threadgroup|thread) )?(?:const )?"
_CLASS = r"[A-Za-z_][\w:<>, ]*?"
_NUMBER = r"'(?:thread )?(?:const )?(?:u?char|u?short|u?int|u?long|half|float|bfloat)[234]?'"


@dataclass(frozen=True)
class _Filter:
    """Messages that only reflect differences between the languages: their text, the text of a note about a candidate,
    and the difference."""

    text: re.Pattern
    difference: str
    candidates: re.Pattern | None = None

    def leaves_out(self, text: str, notes: list[str]) -> bool:
        if not self.text.search(text):
            return False
        candidates = [n for n in notes if n.startswith("candidate")]
        return self.candidates is None or any(map(self.candidates.search, candidates))


_FILTERS = [
    _Filter(
        re.compile(r"^excess elements in (?:scalar|vector) initializer$"),
        "Metal makes a vector of several values under any name, also a template parameter's.",
    ),
    _Filter(
        re.compile(rf"^(?:static_cast|functional-style cast) from {_NUMBER} to {_NUMBER} is"),
        "Metal converts vectors of as many components, and half and bfloat, into one another.",
    ),
    _Filter(
        re.compile(r"^no matching function for call to"),
        "The same, where a template asks whether a conversion exists.",
        re.compile(
            r"substitution failure \[with \w+ = "
            r"(?:half, \w+ = bfloat\b|bfloat, \w+ = half\b|\w+[234],|[\w ]+, \w+ = \w+[234]\b)"
        ),
    ),
    _Filter(
        re.compile(r"from vector '[\w ]+?([234])' to vector '[\w ]+?\1' of different size$"),
        "The same, in a C cast.",
    ),
    _Filter(
        re.compile(
            r"^no matching (?:(?:member )?function for call to|constructor for initialization of)"
        ),
        "Metal makes a vector of values in braces, also as an argument.",
        re.compile(
            r"cannot convert initializer list argument to '(?:const )?(?:thread )?(?:const )?\w+[234]'$"
        ),
    ),
    _Filter(
        re.compile(r"^explicitly-defaulted copy assignment operator must return '__generic "),
        "In Metal it returns a reference to thread memory.",
    ),
    _Filter(
        re.compile(r"^scalar operand type has greater rank than"),
        "Metal converts a scalar to the type of the vector's elements.",
    ),
    _Filter(
        re.compile(
            r"^no matching conversion for (?:functional-style cast|C-style cast|static_cast) from "
            rf"'{_SPACED}(?P<class>{_CLASS})' to '{_SPACED}(?P=class)'$"
        ),
        "Metal copies a structure out of any address space.",
    ),
    _Filter(
        re.compile(
            rf"^no viable conversion from '(?:const )?(?:device|constant|threadgroup) (?:const )?{_CLASS}' to "
        ),
        "The same, of a member in braces. What has no conversion at all is found by the compiler.",
    ),
    _Filter(
        re.compile(
            r"^no (?:matching (?:conversion for|constructor for initialization of)|viable conversion from)"
        ),
        "The object that a cast or a value makes is in thread memory in Metal, in none for clang.",
        re.compile(r"cannot be used to construct an object in address space unqualified$"),
    ),
    _Filter(
        re.compile(r"^no matching function for call to"),
        "Functions are arguments of templates in Metal. What fits none is found by the compiler.",
        re.compile(r"invalid explicitly-specified argument for template parameter"),
    ),
    _Filter(
        re.compile(
            rf"^incompatible operand types \('{_SPACED}(?P<class>{_CLASS})' and '{_SPACED}(?P=class)'\)$"
        ),
        "The same, in a conditional expression.",
    ),
    _Filter(
        re.compile(r"^non-const static data member must be initialized out of line$"),
        "A static member in constant memory is const in Metal. Others are found by program-scope.",
    ),
    _Filter(
        re.compile(r"^variable in constant address space must be initialized$"),
        "A static member has its initialiser where it is defined. Other constants without one are found by "
        "program-scope.",
    ),
    _Filter(
        re.compile(r"'(?:const )?(?:thread )?int([234])' .*'(?:char|short|long)\1'"),
        "A comparison of vectors is a vector of bool in Metal, of integers of their size in OpenCL.",
    ),
    _Filter(
        re.compile(r"^non-defining declaration of enumeration with a fixed underlying type"),
        "Metal takes what the NS_ENUM of Apple's headers stands for.",
    ),
    _Filter(
        re.compile(r"to value of type '__generic .*' changes address space$"),
        "The object of a method without an address space is in thread memory in Metal, anywhere in "
        "OpenCL.",
    ),
    _Filter(
        re.compile(r"^no matching constructor for initialization of"),
        "Metal copies a structure out of any address space.",
        re.compile(r"implicit copy constructor.* cannot bind reference in address space"),
    ),
    _Filter(
        re.compile(
            r"^no matching (?:constructor for initialization of|(?:member )?function for call to)"
        ),
        "The object that a value is bound to is in thread memory in Metal, in none for clang.",
        re.compile(r"in default address space to object in address space 'thread'"),
    ),
    _Filter(
        re.compile(
            r"^reference of type '(?:const thread|thread const) [^']*&' cannot bind to a temporary object "
            r"because of address space mismatch$"
        ),
        "The same, of a function without overloads: a component of a vector, a sum, a result.",
    ),
    _Filter(
        re.compile(
            r"^binding reference of type '(?:const thread|thread const) [^']*' to value of type "
            r"'(?!(?:const )?(?:device|threadgroup|constant|thread) )[^']*' changes address space$"
        ),
        "The same, of a value that is converted.",
    ),
    _Filter(
        re.compile(r"^no matching (?:member )?function for call to"),
        "The same, where a template deduces its type.",
        re.compile(
            r"cannot deduce a type for '\w+' that would make '(?:const )?thread \w+' equal "
            r"'(?!const )(?!device |threadgroup |constant |thread )[^']*'$"
        ),
    ),
    _Filter(
        re.compile(r"'[^']*\bdecltype\(\w+\)[^']*'"),
        "The type of a variable has its own address space for clang, so that no specialisation fits it.",
    ),
    _Filter(
        re.compile(r"^no viable overloaded '='$"),
        "The same, where a structure is assigned.",
        re.compile(r"implicit copy assignment operator.* cannot bind reference in address space"),
    ),
]


# clang reports what is in a template once; for later calls the template has no such specialisation. The same holds for a function
# that returns a copy of a structure.
_COPIED = re.compile(r"^no matching constructor for initialization of '(?:\w+::)*(\w+)'")
_FAILED = re.compile(r"substitution failure \[with \w+ = (?:\w+::)*(\w+)\]")
_INSTANCE = re.compile(
    r"^in instantiation of function template specialization '.*?(\w+)<[^:]*' requested here$"
)
_CALL = re.compile(r"^no matching (?:member )?function for call to '(\w+)'$")


def check(
    preprocessed: Preprocessed, present: Program, is_wanted: Callable[[str], bool]
) -> list[Finding]:
    """Returns clang's findings about a source, in the user's terms; nothing without a clang that can read it. present:
    the source's program without what needs absent features."""
    command = find()
    if command is None:
        return []
    lines = LineMap(preprocessed.text, preprocessed.name, dict(preprocessed.sources))
    try:
        program = with_parameters(present, lines, let_pass)
    except ProgramError:
        return []  # compiled.py says the same
    text, runs = _rewritten(program.source, program)
    emitted = Emitted(text, lines, runs)
    found = []
    output, path = _compile(command, text)
    messages = errors(output, path)
    if any(_is_left_out(message.text) for message in messages):
        return []
    copied: set[str] = set()  # structures that functions return out of any address space
    left_out: set[str] = set()  # function templates with messages that are left out
    for message in messages:
        at = place_of(message, emitted.position, is_wanted)
        text, notes = _readable(message.text), [_readable(note) for note in message.notes]
        if any(f.leaves_out(text, notes) for f in _FILTERS):
            copied.update(_COPIED.findall(text))
            left_out.update(_INSTANCE.findall(notes[0] if notes else ""))
        elif _is_later_call(text, notes, left_out):
            pass
        elif at is not None and not copied.intersection(_FAILED.findall(" ".join(notes))):
            found.append(Finding(at.file, at.line, at.column, OPENCL.name, text))
    return found


def _is_later_call(text: str, notes: list[str], left_out: set[str]) -> bool:
    call = _CALL.match(text)
    candidates = [note for note in notes if note.startswith("candidate")]
    failed = [note for note in candidates if "substitution failure" in note]
    return call is not None and call[1] in left_out and len(failed) == len(candidates) > 0


_UNKNOWN = re.compile(
    r"^(?:use of undeclared identifier|unknown type name|no (?:type|template|member) named) '(\w+)'"
)


def _is_left_out(text: str) -> bool:
    """Returns true if a message is about something that Metal has and this small metal_stdlib lacks (textures,
    vec<bool, N>, bfloat where clang has none ...): other messages about such a source may follow from it."""
    if text == "invalid vector element type 'bool'":
        return True
    match = _UNKNOWN.match(text)
    return match is not None and (
        match[1] in FRAGMENT_FUNCTIONS or match[1] in library_words(r"\b[A-Za-z_]\w*")
    )


def find() -> tuple[str, ...] | None:
    """Returns the command of a clang that reads this metal_stdlib, or None."""
    return _find(os.environ.get("PATH", ""))


@functools.cache
def _find(path: str) -> tuple[str, ...] | None:
    names = [f"clang-{number}" for number in range(30, 14, -1)]
    for name in ("clang", *names):
        command = shutil.which(name, path=path)
        if command is not None and not _compile((command,), "")[0]:
            return (command,)
    return None


def _compile(command: tuple[str, ...], text: str) -> tuple[str, str]:
    """Returns clang's output for a text, and the name of the file that held it."""
    with tempfile.TemporaryDirectory(prefix="metalops") as folder:
        path = os.path.join(folder, "kernels.clcpp")
        with open(path, "w", encoding="latin-1") as stream:
            stream.write(text)
        result = subprocess.run(
            [*command, *_FLAGS, "-include", _HEADER, path],
            capture_output=True,
            env={**os.environ, "LC_ALL": "C"},
            check=False,
        )
    return result.stderr.decode(errors="replace"), path


def _readable(message: str) -> str:
    for pattern, name in _NAMES:
        message = pattern.sub(name, message)
    return message


_DIRECTIVE = re.compile(r"^[ \t]*#[^\n]*", re.MULTILINE)


def _rewritten(source: Source, program: Program) -> tuple[str, list[tuple[int, int, bool]]]:
    """Returns the source as OpenCL C++, and the map back to the source (see Emitted)."""
    edits = Edits(source.text)
    for directive in _DIRECTIVE.finditer(source.text):
        edits.blank(*directive.span())
    for function in program.functions:
        if function.stage not in (None, "kernel"):
            edits.erase(function.head, function.node.end_byte)
    for attributes in source.attribute_lists:
        edits.blank(attributes.start, attributes.end)
    for word, following in itertools.zip_longest(source.words, source.words[1:]):
        if word.text in STAGES or _is_of_variable(source, word, following):
            edits.blank(word.start, word.end)
    for literal in source.literals:
        if literal.suffix == "bf":
            edits.replace(literal.start, literal.end, f"((bfloat){literal.digits})")
    _function_constants(source, program, edits)
    _threadgroup_variables(source, program, edits)
    for node in source.find("(call_expression function: (_) @f)"):
        if _VECTOR.match(source.masked_text(node)):
            edits.wrap(node.start_byte, node.end_byte, "::metal::make<", ">")
    return edits.apply()


def _is_of_variable(source: Source, word: Word, following: Word | None) -> bool:
    """Returns true for the first word of `thread const device T* rows[4]`: the space of the variable, beside that of what
    it points to. Public kernels that are built for Macs have it; OpenCL has no place for it."""
    if word.text != "thread" or following is None or following.text not in DATA_SPACES:
        return False
    between = source.text[word.end : following.start]
    return re.fullmatch(r"\s+(?:(?:const|volatile)\s+)*", between) is not None


def _function_constants(source: Source, program: Program, edits: Edits) -> None:
    """Gives function constants a value, which OpenCL requires of every constant."""
    for node, _, head in program.declarations:
        names = {a.name for a in source.attributes_in(head, node.end_byte)}
        if "function_constant" in names:
            for declarator in node.children_by_field_name("declarator"):
                edits.append(declarator.end_byte, "{}")


def _threadgroup_variables(source: Source, program: Program, edits: Edits) -> None:
    """Makes threadgroup variables references: OpenCL allows such variables only in the outermost block of a kernel,
    which cannot be a template."""
    for kernel in program.kernels:
        by_declaration: dict[int, list] = {}
        for variable in kernel.threadgroup_variables:
            by_declaration.setdefault(variable.declaration.start_byte, []).append(variable)
        for variables in by_declaration.values():
            declaration = variables[0].declaration
            if len(variables) != len(declaration.children_by_field_name("declarator")):
                continue
            type_node = declaration.child_by_field_name("type")
            pieces = []
            for variable in variables:
                declarator = variable.declarator
                if declarator.type == "init_declarator":
                    declarator = declarator.child_by_field_name("declarator")
                name = source.node_text(variable.identifier)
                before = source.text[declarator.start_byte : variable.identifier.start_byte]
                after = source.text[variable.identifier.end_byte : declarator.end_byte]
                alias = f"threadgroup_{name}_type"
                pieces.append(
                    f"typedef {source.node_text(type_node)} {before}{alias}{after}; "
                    f"threadgroup {alias}& {name} = *(threadgroup {alias}*)0;"
                )
            start = min(declaration.start_byte, variables[0].space_word.start)
            edits.replace(start, declaration.end_byte, " ".join(pieces).replace("\n", " "))
