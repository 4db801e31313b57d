"""NVRTC, the compiler that comes with torch's CUDA builds, and from PyPI as nvidia-cuda-nvrtc: it compiles CUDA C++
text to code for one GPU, or to PTX. It needs no GPU and no CUDA toolkit."""

from __future__ import annotations

import atexit
import ctypes
import functools
import glob
import itertools
import json
import os
import re
import shutil
import sys
import tempfile
from collections import Counter
from ctypes import byref, c_char_p, c_int, c_size_t, c_void_p
from typing import NamedTuple

# Options for every program: all functions are device functions, and there are no warnings about Metal's conversions.
OPTIONS = (
    "-default-device",
    "--device-int128",
    "-w",
)


class NvrtcNotFound(RuntimeError):
    """There is no NVRTC: torch has no CUDA, and nvidia-cuda-nvrtc is not installed."""


class CompileError(Exception):
    """NVRTC's log for a program that does not compile."""


def _candidates() -> list[str]:
    """Returns libraries that are already loaded, of packages beside the others, and of the system."""
    found = []
    for folder in dict.fromkeys(sys.path):
        for pattern in ("cu1[0-9]/lib", "cuda_nvrtc/lib"):
            path = os.path.join(folder, "nvidia", pattern, "libnvrtc.so.*")
            found += [p for p in glob.glob(path) if ".alt." not in p]
    return [*sorted(found, reverse=True), "libnvrtc.so.13", "libnvrtc.so.12"]


@functools.cache
def _library() -> ctypes.CDLL:
    for path in _candidates():
        # The libraries that it loads by name must be loaded already, since its folder is on no search path.
        for builtins in glob.glob(os.path.join(os.path.dirname(path), "libnvrtc-builtins.so.*")):
            if os.path.isabs(builtins):
                ctypes.CDLL(builtins, mode=ctypes.RTLD_GLOBAL)
        try:
            return ctypes.CDLL(path)
        except OSError:
            continue
    raise NvrtcNotFound(
        "metalops.cuda needs NVRTC, which torch's CUDA builds bring along: "
        "`pip install nvidia-cuda-nvrtc` brings it alone"
    )


def is_available() -> bool:
    try:
        _library()
    except NvrtcNotFound:
        return False
    return True


def path() -> str:
    """Returns where the library is, or its name if the system has found it. Raises NvrtcNotFound."""
    return _library()._name


@functools.cache
def version() -> tuple[int, int]:
    major, minor = c_int(), c_int()
    _library().nvrtcVersion(byref(major), byref(minor))
    return major.value, minor.value


def _text(program: c_void_p, what: str) -> bytes:
    size = c_size_t()
    getattr(_library(), f"nvrtcGet{what}Size")(program, byref(size))
    text = ctypes.create_string_buffer(max(size.value, 1))
    getattr(_library(), f"nvrtcGet{what}")(program, text)
    return text.raw[: size.value]


# Errors in the program itself: the names of headers are paths.
_ERROR = re.compile(r"^[^\n(/]*\((\d+)\): (?:catastrophic )?error: (.*)$", re.MULTILINE)


def errors(log: str) -> list[tuple[int, str]]:
    """Returns the lines (from 1) and texts of the errors in a CompileError's log."""
    return [(int(line), text) for line, text in _ERROR.findall(log)]


_HEAD_OF_FUNCTION = re.compile(rb"\.(?:(entry)|func)\s+(?:\([^)]*\)\s*)?([\w$]+)")
_LAUNCHED_MEMORY = re.compile(rb"// msl_launched_memory (\d+)")
_GATHERED = re.compile(rb"// msl_gathered (\d+) (\d+) (\d+) (\d+) (\d+)")
_NOTE = b"\n// for launches: "


class GatheredOperand(NamedTuple):
    """An operand of which the launch makes a map for the copy engine: include/msl/cuda/gathered_maps.h."""

    number: int  # of the operation's operands
    kind: int  # msl::msl_impl::MappedKind
    buffer: int
    parameters: int  # the buffer that describes it
    offset: int  # of the description, in bytes


class LaunchFacts(NamedTuple):
    """The needs of a kernel's launch. memory: bytes of shared memory beside the threadgroup arguments, for
    operations on tensors that stage more than blocks have by themselves."""

    memory: int = 0
    gathered: tuple[GatheredOperand, ...] = ()


def launch_facts(code: bytes, kernel: str) -> LaunchFacts:
    """Returns what a kernel of a compiled program asks of its launches."""
    if code.startswith(b"\x7fELF"):
        memory, gathered = json.loads(code.rpartition(_NOTE)[2]).get(kernel, (0, ()))
        return LaunchFacts(memory, tuple(GatheredOperand(*numbers) for numbers in gathered))
    heads = [*_HEAD_OF_FUNCTION.finditer(code)]
    ends = [head.start() for head in heads[1:]] + [len(code)]
    memory, gathered = 0, set()
    for head, end in zip(heads, ends, strict=True):
        # The kernel itself, and functions that it may call.
        if not head[1] or head[2] == kernel.encode():
            found = _LAUNCHED_MEMORY.findall(code, head.end(), end)
            memory = max([memory, *map(int, found)])
            for numbers in _GATHERED.findall(code, head.end(), end):
                gathered.add(GatheredOperand(*map(int, numbers)))
    return LaunchFacts(memory, tuple(sorted(gathered)))


def _with_note(cubin: bytes, ptx: bytes) -> bytes:
    """Returns a cubin and, behind it, what its kernels ask of their launches: only PTX says it."""
    names = [head[2].decode() for head in _HEAD_OF_FUNCTION.finditer(ptx) if head[1]]
    facts = {name: launch_facts(ptx, name) for name in names}
    told = {name: fact for name, fact in facts.items() if fact != LaunchFacts()}
    return cubin + _NOTE + json.dumps(told).encode()


# How many programs this process has compiled, by what NVRTC's precompiled headers depend on.
_compiled: Counter[tuple[object, ...]] = Counter()


@functools.cache
def _folder_of_headers() -> str:
    """A folder of this process: NVRTC takes precompiled headers only in the process that has made them."""
    folder = tempfile.mkdtemp(prefix="metalops-nvrtc-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _headers_options(text: str, architecture: str, options: tuple[str, ...]) -> tuple[str, ...]:
    """Returns options by which NVRTC reads the leading includes from a precompiled header. A program then takes half the
    time, but making the header takes half as much again, so the second program that begins alike makes it."""
    if version() < (12, 8):
        return ()
    includes = tuple(itertools.takewhile(lambda line: line.startswith("#"), text.splitlines()))
    key = (includes, architecture.rpartition("_")[2], options)
    _compiled[key] += 1
    return () if _compiled[key] == 1 else ("--pch", f"--pch-dir={_folder_of_headers()}")


def compile_program(text: str, name: str, architecture: str, options: tuple[str, ...]) -> bytes:
    """Compiles a program. architecture: "sm_90" and the like for a cubin, "compute_90" for PTX. Raises CompileError,
    NvrtcNotFound."""
    library = _library()
    program = c_void_p()
    result = library.nvrtcCreateProgram(byref(program), text.encode(), name.encode(), 0, None, None)
    if result != 0:
        raise RuntimeError(f"NVRTC makes no program: error {result}")
    try:
        headers = _headers_options(text, architecture, options)
        every = [*OPTIONS, *options, f"-arch={architecture}", *headers]
        encoded = (c_char_p * len(every))(*(o.encode() for o in every))
        result = library.nvrtcCompileProgram(program, len(every), encoded)
        if result != 0:
            log = _text(program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
            library.nvrtcGetErrorString.restype = c_char_p
            raise CompileError(log or library.nvrtcGetErrorString(result).decode())
        ptx = _text(program, "PTX")
        return _with_note(_text(program, "CUBIN"), ptx) if architecture.startswith("sm_") else ptx
    finally:
        library.nvrtcDestroyProgram(byref(program))
