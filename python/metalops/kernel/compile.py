"""Compiling generated Metal text, once for each text, with errors at the lines that the user wrote."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Callable

import torch

from ..msl.locations import is_generated

# How long a compile may take before a line on stderr says what is going on, in seconds.
_PATIENCE = 2.0

_libraries: dict[tuple[str, Callable | None], object] = {}
_locks: dict[tuple[str, Callable | None], threading.Lock] = {}
_guard = threading.Lock()


def user_text(label: str, text: str) -> str:
    """``text`` as part of a generated source, such that compile errors in it show its own lines.

    label: what the errors call it instead of a file name, for instance "blur.header"; in angle brackets it is no text of
    the user's (metalops.msl.locations.is_generated).
    """
    label = label.replace("\\", "\\\\").replace('"', '\\"')
    return f'#line 1 "{label}"\n{text.rstrip()}\n'


def generated_text(label: str, text: str) -> str:
    """The counterpart of user_text for the parts around it: errors there that follow from the user's are left out."""
    return user_text(f"<{label}>", text)


def compile_library(owner: str, text: str, compiler: Callable[[str], object] | None = None):
    """The shader library of a Metal source, as torch.mps.compile_shader returns it.

    Thread-safe; the same text is compiled once in a process, and the software device and macOS keep what they
    compiled on disk. owner: what is compiled, for the progress line. compiler: takes torch.mps.compile_shader's place.
    Raises SyntaxError, with the user's lines where the text has them from user_text.
    """
    key = (text, compiler)
    with _guard:
        library = _libraries.get(key)
        lock = _locks.setdefault(key, threading.Lock()) if library is None else None
    if library is not None:
        return library
    with lock:
        if key not in _libraries:
            _libraries[key] = _compile(owner, text, compiler or torch.mps.compile_shader)
        with _guard:
            _locks.pop(key, None)
        return _libraries[key]


def _compile(owner: str, text: str, compiler: Callable[[str], object]):
    timer = threading.Timer(_PATIENCE, _report, [owner])
    timer.daemon = True
    timer.start()
    try:
        return compiler(text)
    except SyntaxError as error:
        # The front end of the software device knows more about the text than its errors say, and has left them out.
        if not hasattr(error, "diagnostics"):
            error.msg = _own_errors(error.msg)
        raise
    finally:
        timer.cancel()


_PLACE = re.compile(r"(?P<file>[^\n:]+):\d+:(?:\d+:)? (?P<kind>(?:fatal )?error|warning|note): ")


def _own_errors(message: str) -> str:
    """What a compiler said, without the errors outside the user's text if there are some in it."""
    parts: list[
        tuple[bool, list[str]]
    ] = []  # an error or a warning with its notes, and whether it is kept
    for line in message.split("\n"):
        place = _PLACE.match(line)
        if place and place["kind"] != "note":
            kept = place["kind"] != "warning" and not is_generated(place["file"])
            parts.append((kept, [line]))
        elif parts:
            parts[-1][1].append(line)
    own = [line for kept, lines in parts if kept for line in lines]
    return "\n".join(own) or message


def _report(owner: str) -> None:
    if os.environ.get("METALOPS_QUIET", "0") != "1":
        print(f"metalops: compiling {owner} ...", file=sys.stderr, flush=True)
