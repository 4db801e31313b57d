"""The frame around the rewriting of a program, for every target: reads the program, reports errors in terms of the
source, and assembles the emitted text."""

from __future__ import annotations

import contextlib
import gc
import json
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from ..analysis import confinement, restrictions
from ..analysis.absent import present_program
from ..analysis.program import Program, ProgramError, parameter_ranges
from ..analysis.reserved import erased_names, names_of_types, reserved_name
from ..source.errors import Diagnostic, syntax_error
from ..source.locations import LineMap
from ..source.parse import unbalanced_bracket
from ..source.preprocess import Preprocessed
from .async_copies import with_copies
from .designators import with_elements
from .rewrite import Rewritten
from .space_copies import separated
from .split_declarations import with_split_declarations
from .thread_values import with_parameters

_LINE_DIRECTIVE = re.compile(r"(?m)^#.*$")


@dataclass
class Piece:
    """Some emitted text, and the offset in the source that errors in it refer to (None: no particular one)."""

    text: str
    offset: int | None


@contextlib.contextmanager
def garbage_left() -> Iterator[None]:
    """Leaves garbage to be collected after the block. Translating makes very many objects, of which few are garbage before
    it ends, and a tenth of its time went into looking for that."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextlib.contextmanager
def errors_at(lines: LineMap) -> Iterator[None]:
    """Turns a ProgramError in the block into the SyntaxError that users see."""
    try:
        yield
    except ProgramError as error:
        position = lines.position(error.offset)
        message = error.message
        if error.other is not None:
            file, line = lines.place(error.other)
            message += f" (the first is at {file}:{line})"
        raise syntax_error(
            [
                Diagnostic(
                    position.file,
                    position.line,
                    position.column,
                    message,
                    lines.source_line(position.file, position.line),
                )
            ]
        ) from None


def read_program(
    preprocessed: Preprocessed, only: Collection[str], lines: LineMap, is_for_gpus: bool = False
) -> Program:
    """Returns the program of a source, with the kernels named in `only` (none: all). lines: the map of the source's
    text; it becomes that of the program's, which has some longer names (separated.py). is_for_gpus: see
    present_program.

    Raises ProgramError for constructs that Metal forbids and C++ compilers would accept, ValueError for unknown
    kernels.
    """
    for breach in confinement.breaches(preprocessed.text):
        raise ProgramError(breach.message, breach.offset)
    source = preprocessed.parsed
    # The grammar has brackets in pairs.
    fault = unbalanced_bracket(source.masked) if source.root.has_error else None
    if fault is not None:
        raise ProgramError(*fault)
    for offset, name in erased_names(source):
        raise ProgramError(reserved_name(name), offset)
    program = present_program(source, None, is_for_gpus)
    for offset, name in names_of_types(program):
        raise ProgramError(reserved_name(name), offset)
    program = with_parameters(program, lines)
    program = with_copies(program, lines)
    program = with_elements(program, lines)
    program = with_split_declarations(program, lines)
    left_out = program.left_out
    program = separated(program, lines)
    program.left_out = left_out
    if is_for_gpus:
        for kernel in program.kernels:
            kernel.unsupported = kernel.unsupported or kernel.textures_in_memory
    if only:
        missing = sorted(set(only) - {i.name for i in program.instances})
        if missing:
            reason = dict(program.skipped()).get(missing[0])
            note = "" if reason is None else f" for this device: {reason}"
            raise ValueError(f"the source has no kernel {missing[0]!r}{note}")
        program.instances = [i for i in program.instances if i.name in only]
    restrictions.check(program, preprocessed.language)
    return program


def parameter_types(rewritten: Rewritten, parameters) -> list[str]:
    """Returns the types of a list of parameters, as emitted."""
    types = []
    for node, start, end in parameter_ranges(parameters):
        if rewritten.program.source.masked_text(node).strip() == "void":
            continue
        default = node.child_by_field_name("default_value")
        text = rewritten.edits.text_of(start, default.start_byte if default else end)
        types.append(re.sub(r"\s+", " ", _LINE_DIRECTIVE.sub("", text)).strip().rstrip("= "))
    return types


def in_namespaces(path: tuple[str, ...], text: str) -> str:
    opening = "".join(f"namespace {p} {{ " for p in ("msl", *path))
    return f"{opening}\n{text}\n{'}' * (len(path) + 1)}\n"


def assemble(
    head: str,
    body: str,
    runs: list[tuple[int, int, bool]],
    pieces: Iterable[Piece],
    lines: LineMap,
) -> tuple[str, list[tuple[int, int, bool]], int]:
    """Returns the whole text, its runs (see Emitted), and where the user's code ends. body, runs: of the edited
    program."""
    text = [head, body, "\n}\n"]
    all_runs = [(0, -1, False)]
    all_runs += [(len(head) + at, there, copied) for at, there, copied in runs]
    end = len(head) + len(body)
    all_runs.append((end, -1, False))
    length = end + len(text[-1])
    for piece in pieces:
        if piece.offset is not None:
            file, line = lines.place(piece.offset)
            marker = f"# {line} {json.dumps(file)}\n"
        else:
            marker = '# 1 "kernel table"\n'
        all_runs.append((length, -1 if piece.offset is None else piece.offset, False))
        text += [marker, piece.text]
        length += len(marker) + len(piece.text)
    return "".join(text), all_runs, end
