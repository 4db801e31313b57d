"""Compiles generated Metal text, once for each text, with errors at the lines that the user wrote."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable

import torch

from .. import _locks
from .._patience import announced_if_slow

# Libraries kept for their next use. Each takes about five of the 65,530 mappings that a process may have.
_KEPT = 1024

# The least recently used first.
_libraries: OrderedDict[tuple[str, Callable, int], object] = OrderedDict()
_holders: list[weakref.WeakMethod] = []
_compiling: dict[tuple[str, Callable, int], threading.Lock] = {}
_guard = _locks.lock()


def user_text(label: str, text: str) -> str:
    """Returns ``text`` as part of a generated source, so that compile errors in it show its own lines.

    label: its name in errors, instead of a file name, for instance "blur.header".
    """
    label = label.replace("\\", "\\\\").replace('"', '\\"')
    return f'#line 1 "{label}"\n{text.rstrip()}\n'


def generated_text(label: str, text: str) -> str:
    """Returns generated text that follows user text: the counterpart of user_text."""
    return user_text(f"{label}.generated", text)


def compile_library(owner: str, text: str, compiler: Callable[[str], object] | None = None):
    """Returns the shader library of a Metal source, as torch.mps.compile_shader returns it.

    Thread-safe; the same text is compiled once in a process for each Metal version, and the software device and macOS
    cache compiled code on disk. owner: the name of what is compiled, for the progress line. compiler: replaces
    torch.mps.compile_shader. Raises SyntaxError, with the user's lines where the text has them from user_text.
    """
    from ..msl.source import languages  # slow to import, so not with metalops

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
    """Registers a bound method that is called with the text of each library that is dropped, so that its owner drops
    the library's kernels, too. Kernels that are still held keep working."""
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
    with announced_if_slow(owner):
        return compiler(text)
