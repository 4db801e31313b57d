"""The host C++ compiler that builds kernels: its choice, its flags, its messages.

$CXX if it can build kernels, else the first clang++ or g++ that can. clang is preferred because it vectorises
half-precision arithmetic and group loops better than g++ 12. Success of the probe is remembered on disk by the
compiler's path, size and time; failure is not, because the reason may be gone the next time (a full disk, a busy
machine).
"""

from __future__ import annotations

import contextlib
import functools
import glob
import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

from ... import _environment
from .. import cache
from .errors import CompilerNotFound

# The first versions that have _Float16 in C++ (g++ 11 compiles host code, but no kernel). The documentation says the
# same.
NEEDED = "g++ 12 or newer or clang++ 15 or newer"
MAX_ERRORS = 20  # that are reported for a source

# Safe math: no reassociation, NaN and infinity kept. Contraction is off, although Metal would allow it, so that results
# agree bit for bit with torch's CPU kernels wherever these are plain arithmetic.
_COMMON = (
    "-std=c++17 -fPIC -fvisibility=hidden -fno-math-errno -fno-trapping-math "
    "-fno-strict-aliasing -fwrapv -ffp-contract=off -fsigned-char -fno-stack-protector -w"
).split()
# The growth limit would stop inlining in files of many kernels, and loops with calls do not vectorise.
_GNU = [
    "-fno-gnu-unique",
    "-fno-semantic-interposition",
    "-fno-thread-jumps",
    "-Wno-narrowing",
    "--param=inline-unit-growth=400",
]
# These flags give kernels the gains of -O3 in two thirds of its time: loops are vectorised whatever the trip count, and
# short ones are unrolled first.
_GNU_OPTIMIZE = ["-O2", "-ftree-vectorize", "-fvect-cost-model=dynamic", "-fpeel-loops"]
# Conversions to integers saturate, as on GPUs, wherever the front end does not replace them (dialect/conversions.py).
_CLANG = [
    "-Wno-c++11-narrowing",
    "-Xclang",
    "-ffloat16-excess-precision=none",
    "-fno-strict-float-cast-overflow",
]
# GPUs load vectors at the alignment of an element, where x86-64 has instructions that require the vector's alignment.
# clang has a flag for that; g++ has none, but GNU's assembler has one, which clang needs, too, where its sanitizer has
# to know the alignment of types.
_CAPPED = ["-fmax-type-align=8"]
_ASSEMBLER = ["-Wa,-muse-unaligned-vector-move"]

_PROBE = """
struct half_sum { _Float16 a; };
extern "C" _Float16 probe(_Float16 a, float b) { return a + static_cast<_Float16>(b); }
template <class T, class = decltype(T() + 1)> constexpr bool works(int) { return true; }
static_assert(works<float>(0), "");
"""


@dataclass(frozen=True)
class Compiler:
    """A working host compiler. command: the words that call it. kind: "clang" or "gnu". assembler: the flags with which
    no instruction requires aligned vectors; empty if the assembler does not know them or they are not needed."""

    command: tuple[str, ...]
    kind: str
    version: str
    identity: str  # changes if another compiler is installed at the same path
    assembler: tuple[str, ...] = ()

    def flags(self, optimize: int = 3, arch: str = "native", sanitized: bool = False) -> list[str]:
        flags = [f"-O{optimize}", *_COMMON, *architecture_flags(arch)]
        flags += _CAPPED if self.kind == "clang" and not sanitized else self.assembler
        if self.kind == "gnu" and optimize == 3:
            flags = [*_GNU_OPTIMIZE, *flags[1:]]
        if platform.machine() == "x86_64":
            # Used where there is AVX-512. Both compilers prefer half of that on CPUs that lower their frequency for it,
            # which costs a third of the speed of exp in half precision and of unpacking codes.
            flags.append("-mprefer-vector-width=512")
        if self.kind == "clang":
            flags += _CLANG
            if _is_glibc_x86():
                flags.append("-fveclib=libmvec")
        else:
            flags += _GNU
            if platform.machine() == "x86_64":
                # g++ 12 leaves out conversions to half and back where it has instructions on halves, so that
                # intermediate results are not rounded to half.
                flags.append("-mno-avx512fp16")
            if int(self.version.split(".")[0]) >= 13:
                flags.append("-fexcess-precision=16")
        return flags

    def diagnostic_flags(self, max_errors: int = MAX_ERRORS) -> list[str]:
        """Returns flags for errors of one line each, with columns in bytes."""
        if self.kind == "gnu":
            return [
                "-fdiagnostics-color=never",
                f"-fmax-errors={max_errors}",
                "-fdiagnostics-column-unit=byte",
                "-fno-diagnostics-show-caret",
            ]
        return [
            "-fdiagnostics-color=never",
            f"-ferror-limit={max_errors}",
            "-fno-caret-diagnostics",
        ]

    def run(self, arguments: list[str], **options) -> subprocess.CompletedProcess:
        environment = {**os.environ, "LC_ALL": "C"}
        environment.pop("LD_PRELOAD", None)  # a sanitizer's runtime is not meant for the compiler
        command = [*self.command, *arguments]
        if not getattr(_thread, "is_detached", False):
            return subprocess.run(command, capture_output=True, env=environment, **options)
        return _run_detached(command, env=environment, **options)


# Whether the compilers that a thread runs are detached, and those that are running.
_thread = threading.local()
_detached: set[subprocess.Popen] = set()


@contextlib.contextmanager
def detached() -> Iterator[None]:
    """Detaches the compilers that this thread runs in the block: Ctrl-C in the terminal does not end them, and
    end_detached() does."""
    _thread.is_detached = True
    try:
        yield
    finally:
        _thread.is_detached = False


def end_detached() -> None:
    """Ends the detached compilers that are running now, for the end of the process."""
    for process in [*_detached]:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _run_detached(
    command: list[str], input: bytes | None = None, timeout: float | None = None, **options
) -> subprocess.CompletedProcess:
    pipe = subprocess.PIPE
    stdin = subprocess.DEVNULL if input is None else pipe
    with subprocess.Popen(
        command, stdin=stdin, stdout=pipe, stderr=pipe, start_new_session=True, **options
    ) as process:
        _detached.add(process)
        try:
            output, messages = process.communicate(input, timeout)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        finally:
            _detached.discard(process)
    return subprocess.CompletedProcess(command, process.returncode, output, messages)


def architecture_flags(arch: str = "native") -> list[str]:
    """Returns flags for a CPU by the compiler's name, for this machine's ("native"), or for most CPUs ("portable"):
    with AVX2 on x86-64, where the loops that matter are compiled for AVX-512, too."""
    machine = platform.machine()
    if machine in ("x86_64", "AMD64", "i686"):
        return ["-march=x86-64-v3", "-DMSL_PORTABLE"] if arch == "portable" else [f"-march={arch}"]
    return ["-mcpu=generic" if arch == "portable" else f"-mcpu={arch}"]


def _is_glibc_x86() -> bool:
    return platform.machine() == "x86_64" and platform.libc_ver()[0] == "glibc"


def _candidates() -> list[list[str]]:
    found = [["clang++"]]
    versioned = set()
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        for path in glob.glob(os.path.join(glob.escape(folder), "clang++-*")):
            match = re.fullmatch(r"clang\+\+-(\d+)", os.path.basename(path))
            if match:
                versioned.add(int(match.group(1)))
    found += [[f"clang++-{number}"] for number in sorted(versioned, reverse=True)]
    found += [["g++"], ["c++"]]
    return found


def _identity(path: str) -> str:
    real = os.path.realpath(path)
    status = os.stat(real)
    return f"{real}:{status.st_size}:{status.st_mtime_ns}"


def _memory_file() -> str:
    return os.path.join(cache.directory(), "compilers.json")


def _probe(command: list[str]) -> Compiler | str:
    """Returns the compiler, or the reason why it cannot build kernels."""
    path = shutil.which(command[0])
    if path is None:
        return f"{command[0]} is not installed"
    # The name is part of the key: ccache stands for all the compilers that link to it.
    known_by = repr([path, *command[1:]])
    identity = hashlib.sha256((_identity(path) + known_by).encode()).hexdigest()[:16]
    facts = _read_memory().get(identity)
    if not isinstance(facts, dict) or not {"kind", "version", "assembler"} <= facts.keys():
        try:
            facts = _try(command)
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"{command[0]} does not run ({error})"
        if isinstance(facts, str):
            return facts
        _remember(identity, facts)
    return Compiler(
        (path, *command[1:]),
        facts["kind"],
        facts["version"],
        identity,
        tuple(facts["assembler"]),
    )


def _try(command: list[str]) -> dict[str, object] | str:
    """Returns the facts to remember about a compiler, or the reason why it cannot build kernels."""
    version = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=60)
    kind = "clang" if "clang" in version.stdout.lower() else "gnu"
    number = re.search(r"(\d+\.\d+(?:\.\d+)?)", version.stdout.split("\n")[0])
    number = number.group(1) if number else "0"
    trial = Compiler(tuple(command), kind, number, "")
    with tempfile.TemporaryDirectory() as folder:
        source = os.path.join(folder, "probe.cpp")
        with open(source, "w") as stream:
            stream.write(_PROBE)
        output = os.path.join(folder, "probe.so")
        words = [*trial.flags(1), "-shared", source, "-o", output, "-lm"]
        result = trial.run(words, timeout=60)
        assembler: list[str] = []
        if platform.machine() == "x86_64" and not result.returncode:
            assembler = [*(["-fno-integrated-as"] if kind == "clang" else []), *_ASSEMBLER]
            if trial.run([*words, *assembler], timeout=60).returncode:
                assembler = []
    if result.returncode:
        first = next(
            (x for x in result.stderr.decode(errors="replace").splitlines() if "error" in x), ""
        )
        reason = (
            "has no _Float16"
            if "_Float16" in first
            else f"cannot build a shared library ({first.strip()})"
        )
        return f"{command[0]} {number} {reason}"
    return {"kind": kind, "version": number, "assembler": assembler}


def _read_memory() -> dict:
    path = _memory_file()
    if not cache.is_trusted(path):
        return {}
    try:
        with open(path) as stream:
            memory = json.load(stream)
    except (OSError, ValueError):
        return {}
    return memory if isinstance(memory, dict) else {}


def _remember(identity: str, facts: dict) -> None:
    memory = {**_read_memory(), identity: facts}
    path = _memory_file()
    try:
        handle, temporary = cache.temporary_file(os.path.dirname(path))
        with os.fdopen(handle, "w") as stream:
            json.dump(memory, stream)
        os.replace(temporary, path)
    except OSError:
        return  # probed again next time


def find() -> Compiler:
    """Returns the compiler to use. Raises CompilerNotFound, with one sentence, if there is none."""
    return _find(_environment.value("CXX"), os.environ.get("PATH", ""))


def working() -> Iterator[Compiler]:
    """Yields the compilers that can build kernels, the best first, whatever $CXX says."""
    for candidate in _candidates():
        found = _probe(candidate)
        if isinstance(found, Compiler):
            yield found


@functools.cache
def _find(cxx: str, path: str) -> Compiler:
    reasons = []
    if cxx:
        found = _probe(shlex.split(cxx))
        if isinstance(found, Compiler):
            return found
        reasons.append(f"$CXX: {found}")
    for candidate in _candidates():
        found = _probe(candidate)
        if isinstance(found, Compiler):
            if reasons and reasons[0].startswith("$CXX"):
                warnings.warn(
                    f"kernels are compiled with {found.command[0]}, because {reasons[0]}",
                    stacklevel=4,
                )
            return found
        if "is not installed" not in found:
            reasons.append(found)
    detail = f" ({'; '.join(reasons)})" if reasons else ""
    raise CompilerNotFound(
        "metalops needs a C++ compiler with _Float16 to build Metal kernels, and found none: "
        f"install {NEEDED}, or name one in $CXX{detail}."
    )
