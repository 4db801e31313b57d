"""`python -m metalops info`: what this copy of metalops is, runs on and was built with."""

from __future__ import annotations

import argparse
import ctypes
import os

import torch

import metalops
from metalops import _environment


class _LibraryHead(ctypes.Structure):
    """The beginning of msl::abi::Library in include/msl/abi.h."""

    _fields_ = [
        ("abi_version", ctypes.c_uint32),
        ("cpu_features", ctypes.c_uint32),
        ("build", ctypes.c_char_p),
    ]


def _built_with(path: str) -> str:
    """Compiler and flags of a kernel library for the software device."""
    head = _LibraryHead.in_dll(ctypes.CDLL(path), "metalops_library")
    return head.build.decode() if head.build else "unknown compiler"


def library_lines(*, opened: bool = False) -> list[str]:
    """Of every kernel library how it was built and opened; opened: of those that were used so far."""
    libraries = sorted(
        (x for x in metalops._C.kernel_libraries(open=not opened) if x["origin"]),
        key=lambda entry: entry["family"],
    )
    width = max((len(entry["family"]) for entry in libraries), default=0)
    lines = []
    builds = set()
    for entry in libraries:
        if entry["origin"] == "prebuilt":
            origin = f"built ahead of time: {entry['prebuilt']}"
            if metalops._is_software:
                builds.add(_built_with(entry["prebuilt"]))
        else:
            origin = f"compiled here from its source ({entry['problem']})"
        lines.append(f"{entry['family']:{width}}  {origin}")
    return lines + [f"built with {build}" for build in sorted(builds)]


def _cache_line() -> str:
    from metalops.msl import cache

    try:
        size = cache.total_size() / 2**20
    except PermissionError as error:
        return str(error)
    return f"{cache.directory()}: {len(cache.entries())} libraries, {size:.1f} MiB"


def _kernel_compiler() -> str:
    from metalops.msl import CompilerNotFound
    from metalops.msl.targets.host import compiler

    try:
        found = compiler.find()
    except CompilerNotFound as error:
        return str(error)
    return f"{' '.join(found.command)} {found.version}"


def _cuda_lines() -> list[str]:
    from metalops.cuda import NvrtcNotFound, nvrtc

    try:
        lines = [f"NVRTC {'.'.join(map(str, nvrtc.version()))}: {nvrtc.path()}"]
    except NvrtcNotFound as error:
        return [str(error)]
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        lines.append(
            f"cuda:{index}: {properties.name}, compute capability {properties.major}.{properties.minor}"
        )
    return lines if len(lines) > 1 else [*lines, "no GPU"]


def _device_line() -> str:
    if metalops._problem is not None and not torch.backends.mps.is_available():
        return "no mps device"
    kind = "software Metal device" if metalops._is_software else "Apple GPU"
    name = torch.backends.mps.get_name()
    return f"{name}: {kind}, {torch.backends.mps.get_core_count()} cores"


def describe(*, libraries: bool = True) -> list[tuple[str, list[str]]]:
    """(title, lines) of each part of the report. libraries: which are opened for it, and that takes time on a Mac."""
    if metalops._problem is None:
        from metalops import _build_info

        report = [
            ("metalops", [metalops.__version__]),
            ("device", [_device_line()]),
            (
                "torch",
                [f"{torch.__version__} (metalops was built for {_build_info.TORCH_VERSION})"],
            ),
            ("compiler", [_build_info.COMPILER]),
        ]
        if libraries:
            report.append(("kernel libraries", library_lines()))
    else:
        report = [
            ("metalops", [metalops.__version__]),
            ("device", [_device_line()]),
            ("torch", [torch.__version__]),
            ("compiler", []),
            ("compiled parts", [f"none: {metalops._problem}"]),
        ]
    report.append(("cuda", _cuda_lines()))
    if metalops._is_software:
        report[3][1].append(f"{_kernel_compiler()} (for kernels at run time)")
        report.append(("cache", [_cache_line()]))
    settings = [
        f"{name}={os.environ[name]}" for name in _environment.VARIABLES if name in os.environ
    ]
    report.append(("environment", settings or ["nothing set"]))
    return report


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m metalops info", description=__doc__)
    parser.add_argument(
        "--variables", action="store_true", help="the environment variables that there are"
    )
    if parser.parse_args(arguments).variables:
        print(_environment.markdown())
        return 0
    for title, lines in describe():
        for line in lines:
            print(f"{title:18}{line}")
            title = ""
    return 0
