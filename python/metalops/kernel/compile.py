"""Compiling generated Metal text, once for each text, with errors at the lines that the user wrote."""

from __future__ import annotations

import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable

import torch

from .. import _environment, _locks

# How long a compile may take before a line on stderr says what is going on, in seconds.
_PATIENCE = 2.0

# Libraries kept for their next use. Each takes about five of the 65,530 mappings that a process may have.
_KEPT = 1024

# The least recently asked for first.
_libraries: OrderedDict[tuple[str, Callable, int], object] = OrderedDict()
_holders: list[weakref.WeakMethod] = []
_compiling: dict[tuple[str, Callable, int], threading.Lock] = {}
_guard = _locks.lock()


def user_text(label: str, text: str) -> str:
    """``text`` as part of a generated source, such that compile errors in it show its own lines.

    label: what the errors call it instead of a file name, for instance "blur.header".
    """
    label = label.replace("\\", "\\\\").replace('"', '\\"')
    return f'#line 1 "{label}"\n{text.rstrip()}\n'


def generated_text(label: str, text: str) -> str:
    """The counterpart of user_text for the parts around it, after user text."""
    return user_text(f"{label}.generated", text)


def compile_library(owner: str, text: str, compiler: Callable[[str], object] | None = None):
    """The shader library of a Metal source, as torch.mps.compile_shader returns it.

    Thread-safe; the same text is compiled once in a process for each Metal version, and the software device and macOS
    keep what they compiled on disk. owner: what is compiled, for the progress line. compiler: takes torch.mps.compile_shader's place.
    Raises SyntaxError, with the user's lines where the text has them from user_text.
    """
    from ..msl.source import languages  # takes longer to import than what is imported with metalops

    compiler = compiler or torch.mps.compile_shader
    key = (text, compiler, languages.current())
    with _guard:
        library = _libraries.get(key)
        if library is not None:
            _libraries.move_to_end(key)
        lock = _compiling.setdefault(key, _locks.lock()) if library is None else None
    if library is not None:
        return library
    with lock:
        library = _libraries.get(key)
        if library is None:
            library = _libraries[key] = _compile(owner, text, compiler)
            _forget_some()
        with _guard:
            _compiling.pop(key, None)
        return library


def when_forgotten(forget: Callable[[str], None]) -> None:
    """Has a bound method called with the text of each library that is no longer kept, so that its owner lets go of
    the library's kernels too. Kernels that are still held work on."""
    _holders.append(weakref.WeakMethod(forget))


def _forget_some() -> None:
    while True:
        with _guard:
            if len(_libraries) <= _KEPT:
                return
            (text, *_), _ = _libraries.popitem(last=False)
        for holder in _holders:
            forget = holder()
            if forget is not None:
                forget(text)


def _compile(owner: str, text: str, compiler: Callable[[str], object]):
    timer = threading.Timer(_PATIENCE, _report, [owner])
    timer.daemon = True
    timer.start()
    try:
        return compiler(text)
    finally:
        timer.cancel()


def _report(owner: str) -> None:
    if _environment.value("METALOPS_QUIET") != "1":
        print(f"metalops: compiling {owner} ...", file=sys.stderr, flush=True)
