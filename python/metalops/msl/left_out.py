"""Compiles kernels that a library leaves out, from the source that it contains, when they are asked for; and kernels that
it has as group loops for fibers.

The parts of a library are compiled in threads of their own, a few at a time: each part once, however many threads ask
for it, and before it is needed where it is known that it will be (begin). What somebody waits for comes first. The
result is in the cache on disk, which processes share.
"""

from __future__ import annotations

import atexit
import functools
import os
import threading
import warnings
import zlib
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

from .._patience import announced_if_slow
from .analysis.needed import Needed
from .analysis.program import Program
from .build import Options, compile_text, host_program, preprocess_text
from .source import compiler
from .targets.host.emit import HostProgram

_THREADS = 8  # at most, since each may run a compiler


@dataclass(frozen=True)
class _Part:
    """Kernels to compile together for some engines, of a source (deflated by zlib) in a Metal version."""

    source: bytes
    language: int
    kernels: tuple[str, ...]
    engines: str


@dataclass
class _State:
    lock: threading.Lock = field(default_factory=threading.Lock)
    emitting: threading.Lock = field(default_factory=threading.Lock)
    futures: dict[_Part, Future] = field(default_factory=dict)  # begun and not finished
    waiting: deque[_Part] = field(default_factory=deque)
    threads: list[threading.Thread] = field(default_factory=list)


_state = _State()


def compile_left_out(
    source: bytes, language: int, kernels: Iterable[str], engines: str = "auto"
) -> str:
    """Compiles kernels that a library leaves out, from the source that it contains, and returns the path of theirs. The
    software device calls this at the first use of such a kernel. engines: see Options.

    Raises SyntaxError and RuntimeError that name the kernel, CompilerNotFound without a host compiler.
    """
    part = _Part(source, language, tuple(kernels), engines)
    with announced_if_slow(part.kernels[0]):
        return _begin(part, soon=True).result()


def begin_left_out(source: bytes, language: int, kernels: Iterable[str]) -> None:
    """Begins to compile what compile_left_out() will be asked for. Errors are raised there."""
    _begin(_Part(source, language, tuple(kernels), "auto"), soon=False)


def _begin(part: _Part, soon: bool) -> Future:
    with _state.lock:
        future = _state.futures.get(part)
        if future is None:
            future = _state.futures[part] = Future()
            _state.waiting.append(part)
        if soon and part in _state.waiting:
            _state.waiting.remove(part)
            _state.waiting.appendleft(part)
        if len(_state.threads) < min(os.cpu_count() or 1, _THREADS) and _state.waiting:
            thread = threading.Thread(target=_work, name="metalops-compile", daemon=True)
            _state.threads.append(thread)
            thread.start()
    return future


def _work() -> None:
    state = _state
    with compiler.detached():
        while True:
            with state.lock:
                if not state.waiting:
                    state.threads.remove(threading.current_thread())
                    return
                part = state.waiting.popleft()
                future = state.futures[part]
            try:
                path = _compile(part)
            except BaseException as error:
                outcome = functools.partial(future.set_exception, error)
            else:
                outcome = functools.partial(future.set_result, path)
            with state.lock:  # who asks again finds the result on disk, or gets another try
                del state.futures[part]
            outcome()


def _compile(part: _Part) -> str:
    text = zlib.decompress(part.source).decode(errors="replace")
    options = Options(language=part.language, kernels=part.kernels, engines=part.engines)
    name = part.kernels[0]
    try:
        try:
            return compile_text(text, None, options, lambda chosen: _program_of(text, chosen))
        except SyntaxError as error:
            failed = error
        path = compile_text(text, None, options)
    except SyntaxError as error:
        error.msg = f"kernel {name!r}: {error.msg}"
        raise
    except RuntimeError as error:
        raise RuntimeError(f"kernel {name!r}: {error}") from error
    warnings.warn(
        f"what kernel {name!r} needs of its source does not compile alone, which is an error of metalops; it was "
        f"compiled with all of its source, which is slower (line {failed.lineno}: {failed.msg})",
        RuntimeWarning,
        stacklevel=2,
    )
    return path


def _program_of(text: str, options: Options) -> HostProgram:
    """Returns a program with the kernels of the options and, if that is one, with those that differ from it in their template
    arguments: only the launch code tells them apart, so that the next one is compiled without another look at the source."""
    with _state.emitting:
        kernels = options.kernels
        if len(kernels) == 1:
            kernels = _needed(text, options.language).alike(kernels[0])
        return _program(text, replace(options, kernels=kernels))


@functools.lru_cache(maxsize=4)
def _program(text: str, options: Options) -> HostProgram:
    needed = _needed(text, options.language).text(options.kernels)
    return host_program(preprocess_text(needed, None, options), options)


@functools.lru_cache(maxsize=2)
def _needed(text: str, language: int) -> Needed:
    """Keeps the last ones, since parsing takes long and other kernels of a source follow."""
    parsed = preprocess_text(text, None, Options(language=language)).parsed
    return Needed(Program(parsed, forbid=lambda message, offset: None))


def _forget() -> None:
    """In a forked child: the threads are those of the parent."""
    global _state
    _state = _State()


def _end() -> None:
    """At the end of the process: what nobody waits for any more is not compiled."""
    with _state.lock:
        _state.waiting.clear()
        threads = [*_state.threads]
    compiler.end_detached()
    for thread in threads:
        thread.join(timeout=5)


os.register_at_fork(after_in_child=_forget)
atexit.register(_end)
