"""The compiler's sanitizers for kernels: the flags that build them in, the libraries that must be loaded before the
program starts, and the runtime that this process has."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable

from .... import _environment
from ... import cache
from ...source import compiler
from ...source.compiler import Compiler
from ...source.paths import HEADERS

# The values of METALOPS_SANITIZE, with the one name for each mode.
MODES = {
    "address": "address",
    "address,undefined": "address",
    "undefined,address": "address",
    "thread": "thread",
}
HOOKS = os.path.join(HEADERS, "sanitizer_hooks.cpp")

_RUNTIME_SYMBOL = {"address": "__asan_init", "thread": "__tsan_init"}
_FLAGS = {
    "address": [
        "-fsanitize=address,undefined,float-cast-overflow",
        # Metal takes shift counts modulo the width, and so does the emitted code. There are no virtual functions in
        # Metal. AddressSanitizer knows the sizes of objects better.
        "-fno-sanitize=shift,vptr,object-size",
        "-fsanitize-recover=address,undefined,float-cast-overflow",
        "-DMSL_SANITIZE_ADDRESS=1",
    ],
    "thread": ["-fsanitize=thread", "-DMSL_SANITIZE_THREAD=1"],
}
# Links without the runtime, which must be part of the process already: loaded later it would end the process.
_LINK = {"gnu": ["-nodefaultlibs", "-lc", "-lgcc"], "clang": []}
# Every check is a call, which the device handles (include/msl/instrument.h).
_OUTLINED = {
    "gnu": ["--param=asan-instrumentation-with-call-threshold=0"],
    "clang": ["-mllvm", "-asan-instrumentation-with-call-threshold=0"],
}
_DEBUG = {"gnu": ["-g1"], "clang": ["-gline-tables-only", "-gdwarf-4"]}


class SanitizerUnavailable(RuntimeError):
    """The compiler has no sanitizer runtime that could be loaded; the message says which, in one sentence."""


def mode_of(text: str) -> str:
    """ "address" or "thread", for a value of METALOPS_SANITIZE. Raises ValueError."""
    try:
        return MODES[text.strip().replace(" ", "")]
    except KeyError:
        raise ValueError(
            f"METALOPS_SANITIZE is 'address,undefined' or 'thread', not {text!r}"
        ) from None


def loaded() -> str:
    """Returns the sanitizer whose runtime is part of this process; empty without one."""
    process = ctypes.CDLL(None)
    for mode, symbol in _RUNTIME_SYMBOL.items():
        if hasattr(process, symbol):
            return mode
    return ""


def flags(mode: str, host: Compiler) -> list[str]:
    """Returns the flags to compile and link a kernel library with."""
    outlined = _OUTLINED[host.kind] if mode == "address" else []
    debug = [*_DEBUG[host.kind], "-fno-omit-frame-pointer"]
    return [*_FLAGS[mode], *outlined, *debug, *_LINK[host.kind]]


def host_for(mode: str) -> Compiler:
    """Returns the compiler of sanitized kernels: that of all kernels, or, if it lacks the sanitizer's runtime (clang++
    comes without compiler-rt in some systems) and $CXX does not name it, the first other one that has it."""
    first = compiler.find()
    if _environment.value("CXX") or _has_runtimes(mode, first):
        return first
    return next((one for one in compiler.working() if _has_runtimes(mode, one)), first)


@functools.cache
def _has_runtimes(mode: str, host: Compiler) -> bool:
    return None not in _runtimes(mode, host)


def _runtimes(mode: str, host: Compiler) -> list[str | None]:
    if host.kind == "gnu":
        return [_library(host, [name]) for name in _names(mode, host)]
    return [_library(host, _names(mode, host))]


def _names(mode: str, host: Compiler) -> list[str]:
    """Returns the runtime's libraries: those of g++, which are all needed, or the possible names of clang's."""
    if host.kind == "gnu":
        return {"address": ["libasan.so", "libubsan.so"], "thread": ["libtsan.so"]}[mode]
    short = {"address": "asan", "thread": "tsan"}[mode]
    return [f"libclang_rt.{short}-{os.uname().machine}.so", f"libclang_rt.{short}.so"]


def preloads(mode: str, host: Compiler) -> list[str]:
    """Returns the libraries that LD_PRELOAD has to name. Raises SanitizerUnavailable."""
    runtimes = _runtimes(mode, host)
    if None in runtimes:
        names = _names(mode, host)
        raise SanitizerUnavailable(
            f"the compiler {host.command[0]} has no {' and '.join(names)}, which running kernels "
            f"under its {mode} sanitizer needs: install "
            + ("the package of that name" if host.kind == "gnu" else "compiler-rt")
            + ", or name another compiler in $CXX."
        )
    # The runtimes look for C++ functions before the program has loaded its own library of them.
    return [_hooks(host), *runtimes, _library(host, ["libstdc++.so.6"]) or "libstdc++.so.6"]


def _library(host: Compiler, names: list[str]) -> str | None:
    """Returns the first of these libraries that the compiler knows a path for."""
    for name in names:
        path = host.run([f"-print-file-name={name}"]).stdout.decode().strip()
        if os.path.isabs(path) and os.path.exists(path):
            return os.path.realpath(path)
    return None


def _hooks(host: Compiler) -> str:
    """Returns the library of functions that the runtimes call when they report something."""
    key = cache.key_of("sanitizer hooks", host.identity, cache.file_hash(HOOKS))
    return cache.lookup(key) or cache.store(key, [], _build_hooks(host))


def _build_hooks(host: Compiler) -> Callable[[str], None]:
    def build(output: str) -> None:
        result = host.run(["-O1", "-fPIC", "-shared", HOOKS, "-o", output])
        if result.returncode:
            raise SanitizerUnavailable(
                f"{host.command[0]} cannot build {HOOKS}: {result.stderr.decode(errors='replace')}"
            )

    return build


def address_reader(host: Compiler) -> str | None:
    """Returns a program that finds the source line of an instruction, called as addr2line is."""
    names = ["llvm-addr2line", "addr2line"] if host.kind == "clang" else ["addr2line"]
    for name in names:
        path = host.run([f"-print-prog-name={name}"]).stdout.decode().strip()
        folders = [os.path.dirname(path)] if os.path.isabs(path) else []
        folders += os.environ.get("PATH", "").split(os.pathsep)
        for folder in folders:
            for candidate in (name, *(f"{name}-{host.version.split('.')[0]}",)):
                found = os.path.join(folder, candidate)
                if os.access(found, os.X_OK) and os.path.isfile(found):
                    return found
    return None


__all__ = [
    "MODES",
    "SanitizerUnavailable",
    "address_reader",
    "flags",
    "host_for",
    "loaded",
    "mode_of",
    "preloads",
]
