"""Atomic functions as instructions of the GPU (include/msl/cuda/atomic.h). Without a GPU they are compiled."""

import re

import pytest
import torch
from metalops.cuda.library import Library

from .recorded import needs_nvrtc

needs_gpu = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="there is no NVIDIA GPU, or torch has no CUDA"
)
OPERATIONS = {
    "float": ("add", "sub"),
    "int": ("add", "sub", "and", "or", "xor", "max", "min"),
    "uint": ("add", "sub", "and", "or", "xor", "max", "min"),
}


def kernel_of(name, type_):
    """A kernel that combines values in device memory and, as Metal has no float atomics there, others in threadgroup memory."""
    parts = (
        ("", "", "")
        if type_ == "float"
        else (
            f"threadgroup atomic<{type_}> shared; if (i == 0) atomic_store_explicit(&shared, {type_}(5), memory_order_relaxed);",
            f"atomic_fetch_{name}_explicit(&shared, values[i], memory_order_relaxed);",
            "if (i == 0) atomic_store_explicit(x + 1, atomic_load_explicit(&shared, memory_order_relaxed), memory_order_relaxed);",
        )
    )
    return f"""
kernel void {name}_{type_}(device atomic<{type_}>* x [[buffer(0)]], device const {type_}* values [[buffer(1)]],
                           uint i [[thread_position_in_grid]]) {{
  {parts[0]}
  threadgroup_barrier(mem_flags::mem_threadgroup);
  {parts[1]}
  atomic_fetch_{name}_explicit(x, values[i], memory_order_relaxed);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  {parts[2]}
}}
"""


LARGEST = """
kernel void max_ulong(device atomic_ulong* x [[buffer(0)]], device const ulong* values [[buffer(1)]],
                      uint i [[thread_position_in_grid]]) {
  atomic_max_explicit(x, values[i], memory_order_relaxed);
}
kernel void min_ulong(device atomic_ulong* x [[buffer(0)]], device const ulong* values [[buffer(1)]],
                      uint i [[thread_position_in_grid]]) {
  atomic_min_explicit(x, values[i], memory_order_relaxed);
}
"""
SOURCE = (
    "#include <metal_stdlib>\nusing namespace metal;\n"
    + "".join(kernel_of(name, type_) for type_, names in OPERATIONS.items() for name in names)
    + LARGEST
)


@needs_nvrtc
def test_no_loop_of_compare_and_swap():
    code = Library(SOURCE, name="atomics.metal").compile("compute_90").decode()
    kernels = code.split(".entry ")[1:]
    assert len(kernels) >= 18  # some in two forms
    for kernel in kernels:
        assert not re.search(r"\batom\.\S*cas", kernel), kernel.splitlines()[0]


@needs_gpu
@pytest.mark.parametrize("type_", OPERATIONS)
def test_results(type_):
    library = Library(SOURCE, name="atomics.metal")
    dtype = {"float": torch.float32}.get(type_, torch.int32)
    values = torch.randint(0, 1000, (256,), generator=torch.Generator().manual_seed(1)).to(dtype)
    combine = {
        "add": lambda a, b: a + b,
        "sub": lambda a, b: a - b,
        "and": lambda a, b: a & b,
        "or": lambda a, b: a | b,
        "xor": lambda a, b: a ^ b,
        "max": max,
        "min": min,
    }
    for name in OPERATIONS[type_]:
        x = torch.tensor([5, 5], dtype=dtype, device="cuda")
        library.launch(f"{name}_{type_}", [x, values.cuda()], (256, 1, 1), (256, 1, 1))
        expected = 5
        for value in values.tolist():
            expected = combine[name](expected, value)
        assert x.tolist() == [expected, 5 if type_ == "float" else expected], name
