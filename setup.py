"""Builds metalops: the software Metal device (not on macOS), the operators and their kernels."""

import os
import sys
import types
import zlib
from glob import glob

from setuptools import setup
from setuptools.command.sdist import sdist

ROOT = os.path.dirname(os.path.abspath(__file__))
PACKAGE = os.path.join(ROOT, "python", "metalops")
# The functions that torch's library for Linux declares for mps and does not define; generated.
C_SHIM = os.path.join("build", "c_shim_mps.cpp")
PRECOMPILED_HEADER = "csrc/precompiled.h"


def import_from_source_tree() -> None:
    """Makes metalops.build and metalops.msl importable from here, without metalops/__init__.py, which needs what is
    only about to be built, and without an installed copy, which `import torch` would look for."""
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    shell = types.ModuleType("metalops")
    shell.__path__ = [PACKAGE]
    sys.modules["metalops"] = shell


def find(*patterns: str) -> list[str]:
    return sorted(
        path for pattern in patterns for path in glob(pattern, root_dir=ROOT, recursive=True)
    )


def units(sources: list[str], count: int = 4) -> list[list[str]]:
    """Parts of the sources, which stay the same when there is another source."""
    parts = [[] for _ in range(count)]
    for source in sources:
        parts[zlib.crc32(source.encode()) % count].append(source)
    return [part for part in parts if part]


def objective_c_library(sources: list[str], flags: list[str]) -> object:
    """Apple's Metal API in Objective-C. A library of its own, which only extensions that use the API load: another
    Objective-C runtime in the process would have functions of the same names."""
    from torch.utils.cpp_extension import CppExtension

    library = CppExtension(
        "metalops._objc",
        sources,
        include_dirs=[
            ROOT,
            *(
                os.path.join(ROOT, folder)
                for folder in (
                    "python/metalops/include/apple",
                    "csrc/host",
                    "python/metalops/msl/include",
                )
            ),
        ],
        extra_compile_args=flags,
        extra_link_args=[
            "-Wl,-soname,_objc.so",
            "-Wl,-Bsymbolic",
            f"-Wl,--version-script={os.path.join(ROOT, 'csrc/host/objc/exported.map')}",
        ],
    )
    library.uses_device = True
    library.objective_c = False  # it is C++
    library.precompiled_header = PRECOMPILED_HEADER
    library.units = [
        find("csrc/host/objc/[a-s]*.cpp"),
        find("csrc/host/objc/foundation/*.cpp"),
        ["csrc/host/objc/torch_mps.cpp", *find("csrc/host/objc/metal/*.cpp")],
        find("csrc/validation/*.cpp"),
    ]
    return library


def extensions() -> list:
    from metalops.build import MetalExtension
    from torch.utils.cpp_extension import CppExtension

    # pybind11 hides its own names, and torch's classes that have a binding are exported all the same.
    # Operators and the device check arguments and call torch, whose time -O2 does not change; -O1 compiles a quarter faster.
    # With the same flags all extensions share the precompiled header.
    flags = ["-O1", "-g0", "-Wno-attributes"]
    # torch's headers then include those of the operators that they use instead of all 2,400.
    flags.append("-DAT_PER_OPERATOR_HEADERS")
    if "clang" not in compilers.cxx_version(compilers.find_cxx()).lower():
        # Otherwise g++ searches its memory for garbage, with all of the precompiled header, in a tenth of its time.
        flags += ["-finline-small-functions", "--param=ggc-min-heapsize=2000000"]
    result = []
    if software_device():
        write_if_changed(C_SHIM, c_shim.source(torch_include()))
        device = find("csrc/host/**/*.cpp", "csrc/host/**/*.S")
        objective_c = find("csrc/host/objc/**/*.cpp", "csrc/host/objc/*.S", "csrc/validation/*.cpp")
        host = CppExtension(
            "metalops._host",
            [*(source for source in device if source not in objective_c), C_SHIM],
            include_dirs=[
                os.path.join(ROOT, folder)
                for folder in (
                    "csrc/host",
                    "python/metalops/include",
                    "python/metalops/include/software_device",
                    "python/metalops/msl/include",
                )
            ],
            extra_compile_args=flags,
            # Operators and other packages' extensions find the device by this name once it is loaded.
            extra_link_args=["-Wl,-soname,libmetalops_host.so"],
        )
        host.precompiled_header = PRECOMPILED_HEADER
        bindings = find(
            "csrc/host/**/bindings.cpp",
            "csrc/host/metal/compile.cpp",
            "csrc/host/metal/python_call.cpp",
        )
        # Private names of these are private names of other sources, too, and they include no large header of torch. Kernels
        # spend time in them.
        alone = find(
            "csrc/host/exec/*_engine.cpp",
            "csrc/host/exec/in_kernel.cpp",
            "csrc/host/exec/sanitize/engine.cpp",
            "csrc/host/exec/sanitize/race_detector.cpp",
        )
        host.optimized = alone
        # Private names of these are private names of their folder, so they are compiled with other ones.
        apart = [
            f"csrc/host/metal/{name}.cpp"
            for name in ("elementwise_unary", "elementwise_ternary", "shader_library")
        ]
        unary, ternary, library = apart
        units_of_folders = [
            [*find("csrc/host/device/*.cpp"), ternary],
            [s for s in find("csrc/host/metal/*.cpp") if s not in apart],
            [*find("csrc/host/*.cpp", "csrc/host/aoti/*.cpp", "csrc/host/exec/**/*.cpp"), unary],
        ]
        host.units = [
            [*bindings, library],
            *([s for s in unit if s not in (*bindings, *alone)] for unit in units_of_folders),
        ]
        result.append(host)
        result.append(objective_c_library(objective_c, flags))
    of_plans = find("csrc/plans/**/*.cpp")
    sources = [
        *find("csrc/distributed/*.cpp", "csrc/ops/**/*.mm", "csrc/python/*.cpp"),
        *([] if software_device() else find("csrc/macos/*.cpp")),
        *of_plans,
        *find("kernels/**/*.metal"),
    ]
    operators = MetalExtension(
        "metalops._C", sources, include_dirs=[ROOT], extra_compile_args=flags
    )
    operators.at_first_use = "kernels/at_first_use.txt"
    operators.precompiled_header = PRECOMPILED_HEADER
    operators.units = [
        *units(find("csrc/ops/**/*.mm")),
        find("csrc/python/*.cpp", "csrc/distributed/*.cpp"),
        of_plans,
    ]
    result.append(operators)
    return result


if sys.platform not in ("linux", "darwin"):
    sys.exit("metalops builds on Linux and macOS only.")
os.chdir(ROOT)
import_from_source_tree()

from metalops import _environment
from metalops._torch import versions
from metalops._version import VERSION

try:
    import torch

    versions.check(torch.__version__, _environment.value("METALOPS_TORCH"))
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    sys.exit(
        f"metalops is built with torch, which is not installed; install torch {versions.listed('or')}."
    )
except (ValueError, versions.Unsupported) as error:
    sys.exit(str(error))

from metalops._torch import c_shim, stock
from metalops.build import BuildExtension, compilers, plans
from metalops.build.ninja import write_if_changed
from metalops.build.paths import software_device, torch_include


class BuildMetalops(BuildExtension):
    """Also records what the package was built with, which is checked when it is imported and told by `info`, and puts what
    operators need on CUDA tensors into what is installed: the kernel files and the library of launch plans."""

    def run(self) -> None:
        super().run()
        if not self.inplace:
            for name in find("kernels/**/*.*"):
                folder = os.path.join(self.build_lib, "metalops", os.path.dirname(name))
                self.mkpath(folder)
                self.copy_file(name, folder)
            if software_device():
                plans.build_plans(ROOT, os.path.join(self.build_lib, "metalops", plans.NAME))
        if software_device():
            for folder in (
                os.path.join(self.build_lib, "metalops"),
                *([PACKAGE] if self.inplace else []),
            ):
                self.mkpath(folder)
                c_shim.build(
                    torch_include(), compilers.find_cxx(), os.path.join(folder, c_shim.JUMPS)
                )
        self._write(
            "_build_info.py",
            '"""What this copy of metalops was built with; generated by setup.py."""\n\n'
            f"TORCH_VERSION = {versions.release(torch.__version__)!r}\n"
            f"PLATFORM = {sys.platform!r}\n"
            f"COMPILER = {compilers.cxx_version(compilers.find_cxx())!r}\n",
        )
        self._write("_stock_overloads.py", stock.generated_module())

    def _write(self, name: str, text: str) -> None:
        write_if_changed(os.path.join(self.build_lib, "metalops", name), text)
        if self.inplace:
            write_if_changed(os.path.join(PACKAGE, name), text)


class SourceDistribution(sdist):
    """Its version does not name a torch, because it can be built with any."""

    def run(self) -> None:
        self.distribution.metadata.version = VERSION
        super().run()


# Without the interpreter's suffix in their names, `_host.so` and `_C.so` are the same files in every kind of build.
setup(
    version=f"{VERSION}+torch{versions.minor(torch.__version__)}",
    install_requires=[
        versions.needed(torch.__version__),
        "tree-sitter>=0.25",
        "tree-sitter-cpp>=0.23",
        # metalops.build compiles other packages' extensions.
        "ninja",
        "setuptools>=77",
    ],
    ext_modules=extensions(),
    cmdclass={
        "build_ext": BuildMetalops.with_options(no_python_abi_suffix=True),
        "sdist": SourceDistribution,
    },
)
