"""`python -m metalops info`: what this copy of metalops is, runs on and was built with."""

from __future__ import annotations

import argparse
import ctypes
import os
import platform

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
    """Returns compiler and flags of a kernel library for the software device."""
    head = _LibraryHead.in_dll(ctypes.CDLL(path), "metalops_library")
    return head.build.decode() if head.build else "unknown compiler"


def library_lines(*, opened: bool = False) -> list[str]:
    """Returns how each kernel library was built and opened; opened: only libraries that have been used so far."""
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
    from metalops.msl.source import compiler

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
    if not torch.backends.mps.is_available():
        return "no mps device: torch.backends.mps.is_available() is False"
    kind = "software Metal device" if metalops._is_software else "Apple GPU"
    name = torch.backends.mps.get_name()
    return f"{name}: {kind}, {torch.backends.mps.get_core_count()} cores"


def _trial() -> str:
    """Returns the result of running one kernel as a trial."""
    try:
        x = torch.tensor([0.5, -2.0], device="mps")
        found = metalops.ops.softcap(x, 1.0).cpu()
        right = bool(torch.isclose(found, torch.tensor([0.5, -2.0]).tanh(), atol=1e-6).all())
    except Exception as error:  # whatever it is, the user needs to see it
        return f"does not work: {type(error).__name__}: {error}"
    if right:
        return "works"
    return "computes wrong results: please run `python -m metalops selftest` and attach its report to an issue"


def _torch_line() -> str:
    versions = f"{torch.__version__}, Python {platform.python_version()}"
    if metalops._problem is None:
        from metalops import _build_info

        return f"{versions} (metalops was built for torch {_build_info.TORCH_VERSION})"
    return versions


def _environment_lines() -> list[str]:
    settings = [
        f"{name}={os.environ[name]}" for name in _environment.VARIABLES if name in os.environ
    ]
    return [*_environment.unknown(os.environ), *settings]


def describe(*, libraries: bool = True) -> list[tuple[str, list[str]]]:
    """Returns (title, lines) of each part of the report, the most important first. libraries: true to add a trial of
    the device, and the kernel libraries, which are opened for it; that takes time on a Mac."""
    device = [_device_line()]
    compiler = []
    report = [
        ("metalops", [metalops.__version__]),
        ("torch", [_torch_line()]),
        ("device", device),
    ]
    if metalops._problem is None:
        from metalops import _build_info

        if libraries:
            device.insert(0, _trial())
        compiler.append(f"{_build_info.COMPILER} (metalops was built with it)")
    else:
        report.append(("compiled parts", [f"none: {metalops._problem}"]))
    if metalops._is_software:
        compiler.insert(0, f"{_kernel_compiler()} (for kernels at run time)")
    report.append(("compiler", compiler))
    report.append(("environment", _environment_lines() or ["nothing set"]))
    if metalops._is_software:
        report.append(("cache", [_cache_line()]))
    report.append(("cuda", _cuda_lines()))
    if libraries and metalops._problem is None:
        report.append(("kernel libraries", library_lines()))
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
