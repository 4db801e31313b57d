"""What is built runs elsewhere: on another CPU, without a compiler, and without names of this machine's folders."""

import ctypes
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys

import metalops
import pytest
from metalops._cli.info import _LibraryHead

pytestmark = pytest.mark.skipif(
    not metalops._is_software, reason="about libraries of the software device"
)

PACKAGE = pathlib.Path(metalops.__file__).parent
LIBRARIES = [PACKAGE / "_host.so", PACKAGE / "_C.so", *sorted(PACKAGE.glob("_C.kernels/*.so"))]
# The compiler's own headers are where they are on every machine.
_SOURCE = re.compile(rb"(?<![\w.+:/-])/(?!usr/)(?:[\w.+-]+/)+[\w.+-]+\.(?:cpp|h|hpp|metal|mm)\b")
# Of msl::abi::CpuFeature. Processors have AVX512_FP16 or not; none has what no bit is for yet.
FP16, UNKNOWN = 1024, 1 << 31


def run(script, folder, **environment):
    """What a Python program prints in which only libraries that are built are there, or with a PATH."""
    names = ("CXX", "METALOPS_SANITIZE", "PYTHONPATH")
    settings = {name: value for name, value in os.environ.items() if name not in names}
    result = subprocess.run(
        [sys.executable, "-c", script],
        env={
            **settings,
            "PATH": str(folder),
            "METALOPS_CACHE_DIR": str(folder / "cache"),
            "TORCH_EXTENSIONS_DIR": str(folder / "extensions"),
            **environment,
        },
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.parametrize("path", LIBRARIES, ids=lambda path: path.name)
def test_a_library_names_no_folder_of_the_machine_that_built_it(path):
    assert _SOURCE.findall(path.read_bytes()) == []


WITHOUT_COMPILER = """\
import torch, metalops
x = torch.randn(64, device="mps")
metalops.ops.gelu_new(x), torch.special.airy_ai(x), x.sin() + 1
source = "kernel void f(device float* x, uint i [[thread_position_in_grid]]) { x[i] += 1; }"
open("x.mm", "w").close()
for call in (
    lambda: torch.mps.compile_shader(source).f(x),
    lambda: metalops.functor("mish", "x * tanh(log(1 + exp(x)))")(x),
    lambda: metalops.build.load("x", ["x.mm"]),
):
    try:
        call()
    except RuntimeError as error:
        print(error)
"""


@pytest.mark.nightly
def test_without_a_compiler_what_is_built_runs_and_the_rest_says_what_to_install(tmp_path):
    messages = run(WITHOUT_COMPILER, tmp_path).splitlines()
    assert len(messages) == 3
    assert all("install" in line and "g++" in line and "clang++" in line for line in messages)


@pytest.fixture
def another_cpu(tmp_path):
    """A copy of the package in which one library says that it needs what this CPU lacks, as if another had built it."""
    package = tmp_path / "metalops"
    shutil.copytree(PACKAGE, package, copy_function=os.symlink)
    library = package / "_C.kernels" / "window.so"
    head = _LibraryHead.in_dll(ctypes.CDLL(str(library)), "metalops_library")
    before = struct.pack("<II", head.abi_version, head.cpu_features)
    after = struct.pack("<II", head.abi_version, head.cpu_features | FP16 | UNKNOWN)
    content = library.read_bytes()
    assert content.count(before) == 1
    library.unlink()
    library.write_bytes(content.replace(before, after))
    return tmp_path


ON_ANOTHER_CPU = """\
import sys
sys.path.insert(0, ".")
import torch, metalops
try:
    assert torch.kaiser_window(5, device="mps").cpu().allclose(torch.kaiser_window(5))
except RuntimeError as error:
    print(error)
(state,) = [s for s in metalops._C.kernel_libraries() if s["family"] == "window"]
print(state["origin"], state["problem"])
"""


@pytest.mark.nightly
def test_a_library_for_another_cpu_is_compiled_again(another_cpu):
    printed = run(ON_ANOTHER_CPU, another_cpu, PATH=os.environ["PATH"])
    assert printed.startswith("source ")
    lacking = "none" if "AVX512_FP16" in metalops._host.cpu_features() else "AVX512_FP16"
    assert f"was compiled for a CPU with {lacking}, which this CPU lacks" in printed


@pytest.mark.full
def test_without_a_compiler_it_is_told_what_to_install(another_cpu):
    told, _ = run(ON_ANOTHER_CPU, another_cpu).splitlines()
    assert "install g++" in told and "clang++" in told
