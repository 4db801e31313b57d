"""torch's C functions for mps are there for extensions that know nothing of metalops, as on a Mac."""

import ctypes
import re
import subprocess
import sys

import pytest
import torch
from metalops._torch import c_shim
from metalops.build import paths
from torch.utils import cpp_extension

if sys.platform == "darwin":
    pytest.skip("torch's own functions there", allow_module_level=True)

process = ctypes.CDLL(None)

# Without its functions for a kernel torch's header declares nothing that a stable extension needs.
SOURCE = r"""
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/inductor/aoti_torch/c/shim_mps.h>

static void launch(AOTIMetalKernelFunctionHandle function, void* tensor) {
  aoti_torch_mps_start_encoding(function);
  aoti_torch_mps_set_arg_tensor(function, 0, (AtenTensorHandle)tensor);
  aoti_torch_mps_set_arg_int(function, 1, 40);
  aoti_torch_mps_dispatch_single(function, 4);
}

extern "C" int add_forty(AtenTensorHandle tensor) {
  AOTIMetalShaderLibraryHandle library = nullptr;
  AOTIMetalKernelFunctionHandle function = nullptr;
  const char* source =
      "kernel void add(device float* x, constant long& n, uint i [[thread_position_in_grid]]) { x[i] += n; }";
  if (aoti_torch_mps_create_shader_library(source, &library)) return 1;
  if (aoti_torch_mps_get_kernel_function(library, "add", &function)) return 2;
  if (aoti_torch_mps_run_command_block(function, &launch, tensor)) return 3;
  return aoti_torch_mps_delete_shader_library(library);
}

extern "C" int wrong() {
  AOTIMetalShaderLibraryHandle library = nullptr;
  return aoti_torch_mps_create_shader_library("kernel void", &library);
}
"""


def test_all_functions_are_global():
    names = c_shim.names(paths.torch_include())
    assert len(names) > 140
    assert [name for name in names if not hasattr(process, name)] == []


def test_nothing_else_of_the_device_is_global():
    symbols = subprocess.run(
        ["nm", "-D", "--defined-only", paths.host_library()],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    names = re.findall(r" [TWVBDR] (_Z\w*(?:metalops|at6native3mps)\w*)", symbols)
    assert len(names) > 300
    assert [name for name in names if hasattr(process, name)] == []


def test_calls_reach_the_device():
    buffer = ctypes.c_void_p()
    before = torch.mps.current_allocated_memory()
    assert process.aoti_torch_mps_malloc(ctypes.byref(buffer), ctypes.c_size_t(1 << 20)) == 0
    assert torch.mps.current_allocated_memory() >= before + (1 << 20)
    assert process.aoti_torch_mps_free(buffer) == 0
    assert torch.mps.current_allocated_memory() == before


@pytest.mark.full
def test_an_extension_of_torch_alone_finds_them(tmp_path):
    (tmp_path / "plain.cpp").write_text(SOURCE)
    cpp_extension.load(
        "plain_mps_extension",
        [str(tmp_path / "plain.cpp")],
        build_directory=str(tmp_path),
        is_python_module=False,
    )
    extension = ctypes.CDLL(str(tmp_path / "plain_mps_extension.so"))
    x = torch.arange(4.0, device="mps")
    handle = torch._C._aoti.unsafe_alloc_void_ptr_from_tensor(x)
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    assert extension.add_forty(ctypes.c_void_p(pointer(handle, None))) == 0
    assert x.tolist() == [40, 41, 42, 43]
    assert extension.wrong() != 0
