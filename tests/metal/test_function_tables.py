"""Visible functions, and tables of them that are passed to a kernel as lists of their names."""

import pytest
import torch
from metalops import msl

from .common import software_device_only

SOURCE = """
#include <metal_stdlib>
using namespace metal;
[[visible]] float twice(float x, device const float* table) { return 2 * x + table[0]; }
[[visible]] float square(float x, device const float* table) { return x * x; }
namespace more {
  [[visible]] float negative(float x, device const float* table) { return -x; }
  [[visible, host_name("root")]] float sqrt_of(float x, device const float* table) { return sqrt(x); }
}
[[visible]] int whole(int x) { return x; }
[[visible]] float total(float x, device const float* table) { return simd_sum(x); }
[[stitchable]] float sum(float a, float b) { return a + b; }
typedef float Op(float, device const float*);
using Table = visible_function_table<float(float, device const float*)>;
float applied(visible_function_table<Op> t, uint i, float x, device const float* in) { return t[i](x, in); }
kernel void apply(device float* out, device const float* in, visible_function_table<Op> t [[buffer(2)]],
                  Table u, uint i [[thread_position_in_grid]]) {
  out[i] = t[i % t.size()](in[i], in);
  Table copied = u;
  if (!is_null_visible_function_table(u) && !copied.empty()) {
    auto f = copied[0];
    Op* g = u[0];
    out[i] += sum(f(1, in), 10 * applied(u, 0, 2, in)) + (g == nullptr ? 1000 : 0);
  }
}
kernel void shared(device float* out, visible_function_table<Op> t [[buffer(1)]], uint i [[thread_position_in_threadgroup]]) {
  threadgroup float kept[8];
  kept[i] = t[0](out[i], out);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[i] = kept[7 - i];
}
kernel void one(visible_function_table<int(int)> t [[buffer(0)]], device int* out [[buffer(1)]], constant uint& at [[buffer(2)]]) {
  out[0] = t[at](3);
}
"""
pytestmark = software_device_only


@pytest.fixture(scope="module")
def library():
    return torch.mps.compile_shader(SOURCE)


def test_a_table_of_functions_by_name(library):
    x = torch.arange(1.0, 7.0, device="mps")
    out = torch.zeros(6, device="mps")
    library.apply(out, x, ["twice", "square", "negative"], ["root"])
    x = x.cpu()
    expected = torch.stack([2 * x + x[0], x * x, -x])[torch.arange(6) % 3, torch.arange(6)]
    torch.testing.assert_close(out.cpu(), expected + 1 + 10 * 2**0.5)


def test_in_a_kernel_that_synchronises(library):
    out = torch.arange(8.0, device="mps")
    library.shared(out, ["square"])
    assert out.tolist() == [float((7 - i) ** 2) for i in range(8)]


@pytest.mark.parametrize(
    ("table", "error", "message"),
    [
        (["missing"], ValueError, "its source has no visible function 'missing' that a table can hold"),
        (["total"], ValueError, "no visible function 'total' that a table can hold"),
        (["sum"], ValueError, "no visible function 'sum'"),
        (["whole"], TypeError, "'whole' is not of the type of the table in buffer 2"),
        (torch.zeros(3), TypeError, "argument 't' is a table of functions, which takes a list of names"),
        ([1, 2], TypeError, "argument 't' is a table of functions, which takes a list of names"),
    ],
)  # fmt: skip
def test_what_a_table_cannot_hold_is_an_error(library, table, error, message):
    x = torch.ones(6, device="mps")
    if isinstance(table, torch.Tensor):
        table = table.to("mps")
    with pytest.raises(error, match=message):
        library.apply(x, x, table, ["root"])


def test_names_for_an_argument_that_is_no_table(library):
    x = torch.ones(6, device="mps")
    with pytest.raises(RuntimeError, match="Unexpected argument types"):
        library.apply(["twice"], x, ["twice"], ["root"])


@pytest.mark.parametrize(
    ("table", "at", "message"),
    [
        (["whole", None], 1, "has no function there"),
        (["whole"], 1, "an index of a visible_function_table is beyond its end"),
    ],
)
def test_calling_what_is_not_there_is_an_error(library, table, at, message):
    out = torch.zeros(1, dtype=torch.int32, device="mps")
    with pytest.raises(RuntimeError, match=message):
        library.one(table, out, at, threads=1)
    library.one(table, out, 0, threads=1)
    assert out.item() == 3


def test_on_cuda_a_kernel_with_a_table_is_left_out():
    from metalops.cuda.library import Library

    library = Library(SOURCE)
    assert library.kernel_names == ()
    assert library.left_out["one"] == "tables of functions (visible_function_table)"


def test_the_kernel_table_has_it():
    (entry,) = [k for k in msl.kernel_table(SOURCE) if k.name == "one"]
    assert str(entry.arguments[0]) == "visible_function_table<int(int)> t [[buffer(0)]]"
