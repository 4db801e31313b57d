"""torch's C interface to Metal kernels and to operators on mps tensors, which code of AOTInductor and extensions for torch's
stable ABI call: the functions that only torch's build for a Mac defines. Called from Python, without a compiler."""

import ctypes
import gc
import re
import sys
from pathlib import Path

import pytest
import torch
from metalops.build import paths

if sys.platform == "darwin":
    pytest.skip("torch's own functions there", allow_module_level=True)

INCLUDE = Path(paths.torch_include()) / "torch/csrc/inductor/aoti_torch"
HEADERS = [INCLUDE / "c/shim_mps.h", INCLUDE / "generated/c_shim_mps.h"]

shim = ctypes.CDLL(paths.host_library())
torch_cpu = ctypes.CDLL(str(Path(torch.__file__).parent / "lib/libtorch_cpu.so"))
torch_cpu.torch_exception_get_what_without_backtrace.restype = ctypes.c_char_p
shim.aoti_torch_mps_shared_callback.restype = None

SOURCE = b"""
#include <metal_stdlib>
using namespace metal;
kernel void scaled(device float* out [[buffer(0)]], constant float* x [[buffer(1)]], constant float& factor [[buffer(2)]],
                   constant long& offset [[buffer(3)]], uint i [[thread_position_in_grid]]) {
  out[i] = x[i] * factor + float(offset);
}
kernel void groups(device int* out [[buffer(0)]], uint2 i [[thread_position_in_grid]],
                   uint2 size [[threads_per_threadgroup]], uint2 grid [[threads_per_grid]]) {
  out[i.y * grid.x + i.x] = int(size.x * 100 + size.y);
}
"""


def check(code):
    assert code == 0, error()


def error():
    return torch_cpu.torch_exception_get_what_without_backtrace().decode()


def declared():
    text = "".join(header.read_text() for header in HEADERS)
    return sorted({*re.findall(r"\b((?:aoti_)?torch_mps_\w+)\(", text), "torch_mps_set_arg_bytes"})


def test_every_declared_function_is_defined():
    names = declared()
    assert len(names) > 140
    assert [name for name in names if not hasattr(shim, name)] == []


capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
capsule_pointer.restype, capsule_pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)  # fmt: skip
new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype = ctypes.py_object
new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)


class Handle(ctypes.c_void_p):
    """The handle of a tensor, which it keeps alive."""

    def __init__(self, tensor):
        super().__init__(
            capsule_pointer(torch._C._aoti.unsafe_alloc_void_ptr_from_tensor(tensor), None)
        )

    def __del__(self):
        torch_cpu.aoti_torch_delete_tensor_object(self)


def take(handle):
    """The tensor of a handle that a function has returned."""
    return torch._C._aoti.alloc_tensor_by_stealing_from_void_ptr(new_capsule(handle, None, None))


@pytest.fixture(scope="module")
def library():
    handle = ctypes.c_void_p()
    check(shim.aoti_torch_mps_create_shader_library(SOURCE, ctypes.byref(handle)))
    yield handle
    check(shim.aoti_torch_mps_delete_shader_library(handle))


def kernel(library, name):
    handle = ctypes.c_void_p()
    check(shim.aoti_torch_mps_get_kernel_function(library, name, ctypes.byref(handle)))
    return handle


Callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)


def run(function, encode):
    """Calls encode(kernel) in a command block."""
    seen = []

    @Callback
    def callback(handle, data):
        seen.append(data)
        encode(ctypes.c_void_p(handle))

    check(shim.aoti_torch_mps_run_command_block(function, callback, ctypes.c_void_p(77)))
    assert seen == [77]


def array(*values):
    return (ctypes.c_uint64 * len(values))(*values), ctypes.c_size_t(len(values))


def test_arguments_of_all_kinds(library):
    x = torch.arange(12.0, device="mps")[2:]
    out = torch.empty(10, device="mps")
    factor = ctypes.c_float(0.5)

    def encode(f):
        check(shim.aoti_torch_mps_start_encoding(f))
        check(shim.aoti_torch_mps_set_arg_tensor(f, 0, Handle(out)))
        check(shim.aoti_torch_mps_set_arg_tensor(f, 1, Handle(x)))
        size = ctypes.c_uint64(4)
        check(shim.torch_mps_set_arg_bytes(f, 2, ctypes.byref(factor), size))
        check(shim.aoti_torch_mps_set_arg_int(f, 3, ctypes.c_int64(-(2**40))))
        check(shim.aoti_torch_mps_dispatch_single(f, ctypes.c_uint64(10)))

    run(kernel(library, b"scaled"), encode)
    torch.testing.assert_close(out.cpu(), torch.arange(2.0, 12) * 0.5 - 2.0**40)


@pytest.mark.parametrize(
    ("dispatch", "arguments", "group"),
    [
        ("single", (ctypes.c_uint64(24),), None),
        ("single_with_group_size", (ctypes.c_uint64(24), ctypes.c_uint64(8)), 801),
        ("array", array(6, 4), None),
        ("array_with_group_size", (*array(6, 4), *array(3, 2)), 302),
    ],
)
def test_launches(library, dispatch, arguments, group):
    out = torch.zeros(24, dtype=torch.int32, device="mps")

    def encode(f):
        check(shim.aoti_torch_mps_start_encoding(f))
        check(shim.aoti_torch_mps_set_arg_tensor(f, 0, Handle(out)))
        check(getattr(shim, f"aoti_torch_mps_dispatch_{dispatch}")(f, *arguments))

    run(kernel(library, b"groups"), encode)
    assert out.min() > 0
    assert group is None or out.unique().tolist() == [group]


def test_a_kernel_is_found_again(library):
    assert kernel(library, b"scaled").value == kernel(library, b"scaled").value


def test_errors_are_codes_with_a_message(library):
    handle = ctypes.c_void_p()
    assert shim.aoti_torch_mps_create_shader_library(b"kernel void f() { x }", ctypes.byref(handle))
    assert "x" in error()
    assert shim.aoti_torch_mps_get_kernel_function(library, b"none", ctypes.byref(handle))
    assert "none" in error()
    function = kernel(library, b"scaled")
    assert shim.aoti_torch_mps_start_encoding(function)
    assert "startEncoding must be called inside runCommandBlock" in error()

    def encode(f):
        check(shim.aoti_torch_mps_start_encoding(f))
        assert shim.aoti_torch_mps_set_arg_tensor(f, 0, None)
        assert error() == "Tensor is null."
        assert shim.torch_mps_set_arg_bytes(f, 2, None, ctypes.c_uint64(4))
        assert error() == "Pointer is null."
        for size in (0, 4097):
            assert shim.torch_mps_set_arg_bytes(f, 2, bytes(5000), ctypes.c_uint64(size))
            assert f"size must be in (0, 4096], got {size}" in error()

    run(function, encode)


def test_memory():
    gc.collect()
    before = torch.mps.current_allocated_memory()
    a, b = ctypes.c_void_p(), ctypes.c_void_p()
    size = ctypes.c_size_t
    check(shim.aoti_torch_mps_malloc(ctypes.byref(a), size(1000)))
    check(shim.aoti_torch_mps_malloc(ctypes.byref(b), size(1000)))
    assert torch.mps.current_allocated_memory() == before + 2000
    check(shim.aoti_torch_mps_memcpy(a, size(10), size(1), size(3), b"abcdef"))
    check(shim.aoti_torch_mps_copy_buffer(a, b, size(3), size(10), size(500)))
    assert ctypes.string_at(b.value + 500, 3) == b"bcd"
    check(shim.aoti_torch_mps_free(a))
    assert shim.aoti_torch_mps_free(a)
    assert "is not memory of aoti_torch_mps_malloc" in error()
    check(shim.aoti_torch_mps_free(b))
    assert torch.mps.current_allocated_memory() == before
    check(shim.aoti_torch_mps_malloc(ctypes.byref(a), size(0)))
    assert a.value is None
    check(shim.aoti_torch_mps_free(a))


# ---- operators -----------------------------------------------------------------------------------


def operators():
    for name, parameters in re.findall(r" aoti_torch_mps_(\w+)\((.*)\);", HEADERS[1].read_text()):
        yield name, re.findall(r"(\w+)(?:,|$)", parameters)


def schemas(name):
    """The schemas of the overloads whose name and overload, joined by an underscore, are this name."""
    name = re.sub(r"_v\d+$", "", name)
    cuts = [i for i, letter in enumerate(name) if letter == "_" and 0 < i < len(name) - 1]
    overloads = [(name, ""), *((name[:i], name[i + 1 :]) for i in cuts)]
    return [
        schema
        for base, overload in overloads
        for schema in torch._C._jit_get_schemas_for_operator(f"aten::{base}")
        if (schema.name, schema.overload_name) == (f"aten::{base}", overload)
    ]


def test_operators_have_one_name_and_the_parameters_of_their_schemas():
    for name, parameters in operators():
        found = schemas(name)
        assert len({str(schema) for schema in found}) == 1, name
        of_schema = {argument.name: argument for argument in found[0].arguments}
        given = {p for p in parameters if not re.fullmatch(r"ret\d|\w+_(len|index)_", p)}
        assert given <= of_schema.keys(), name
        for left_out in of_schema.keys() - given:
            argument = of_schema[left_out]
            optional = isinstance(argument.type, torch.OptionalType)
            assert optional or argument.has_default_value(), name


def call(name, *arguments, results=1):
    """Calls an operator; results are the last parameters."""
    handles = [ctypes.c_void_p() for _ in range(results)]
    check(getattr(shim, f"aoti_torch_mps_{name}")(*arguments, *map(ctypes.byref, handles)))
    tensors = [take(handle) for handle in handles]
    return tensors[0] if results == 1 else tensors


def ints(*values):
    return (ctypes.c_int64 * len(values))(*values), ctypes.c_int64(len(values))


def random(*shape):
    cpu = torch.randn(*shape)
    return cpu, cpu.to("mps")


def test_a_result_argument():
    (a, x), (b, y), (c, z) = random(3), random(2, 4), random(4, 3)
    out = torch.empty(2, 3, device="mps", requires_grad=True)
    beta, alpha = ctypes.c_double(0.5), ctypes.c_double(2)
    handles = map(Handle, (out, x, y, z))
    assert shim.aoti_torch_mps_addmm_out(*handles, beta, alpha) == 0
    torch.testing.assert_close(out.detach().cpu(), torch.addmm(a, b, c, beta=0.5, alpha=2))


def test_lists_and_flags():
    (a, x), (b, y) = random(1, 3, 6, 6), random(4, 3, 3, 3)
    geometry = (*ints(1, 2), *ints(1, 1), *ints(1, 1), ctypes.c_int32(0), *ints(0, 0))
    one = ctypes.c_int64(1)
    out = call("convolution", Handle(x), Handle(y), None, *geometry, one)
    expected = torch.nn.functional.conv2d(a, b, stride=(1, 2), padding=1)
    torch.testing.assert_close(out.cpu(), expected)

    mask = (ctypes.c_int32 * 3)(1, 0, 1)
    bias_sizes = ctypes.cast(ints(4)[0], ctypes.POINTER(ctypes.c_int64))
    sizes = (ctypes.byref(bias_sizes), ctypes.c_int64(1))
    grad = torch.ones_like(out)
    handles = map(Handle, (grad, x, y))
    first, third = ctypes.c_void_p(), ctypes.c_void_p()
    check(
        shim.aoti_torch_mps_convolution_backward(
            *handles, *sizes, *geometry, one, mask, ctypes.c_int64(3), ctypes.byref(first), None, ctypes.byref(third)
        )
    )  # fmt: skip
    (expected_grad,) = torch.autograd.grad(
        torch.nn.functional.conv2d(a.requires_grad_(), b, stride=(1, 2), padding=1).sum(), a
    )
    torch.testing.assert_close(take(first).cpu(), expected_grad)
    torch.testing.assert_close(take(third).cpu(), torch.full((4,), 18.0))


def test_tensor_lists_optional_tensors_and_strings():
    (a, x), (b, y) = random(2, 3), random(4, 3)
    handles = [Handle(x), Handle(y)]
    tensors = (ctypes.c_void_p * 2)(*(handle.value for handle in handles))
    out = call("cat", tensors, ctypes.c_int64(2), ctypes.c_int64(0))
    assert torch.equal(out.cpu(), torch.cat([a, b]))

    index = Handle(torch.tensor([2, 0], device="mps"))
    indices = (ctypes.c_void_p * 2)(None, ctypes.addressof(index))
    out = call("index_Tensor", Handle(y), indices, ctypes.c_int64(2))
    assert torch.equal(out.cpu(), b[:, [2, 0]])

    value = ctypes.c_double(7)
    out = call("pad", Handle(x), *ints(1, 0), b"constant", ctypes.byref(value))
    assert torch.equal(out.cpu(), torch.nn.functional.pad(a, (1, 0), value=7))


def test_dtypes_devices_and_generators():
    dtype, device = (
        ctypes.c_int32(7),
        ctypes.c_int32(torch_cpu.aoti_torch_device_type_cpu()),
    )  # double
    options = (ctypes.byref(dtype), None, ctypes.byref(device), ctypes.c_int32(0), None)
    out = call("rand", *ints(2, 5), *options)
    assert (out.shape, out.dtype, out.device.type) == ((2, 5), torch.float64, "cpu")
    dtype, device = ctypes.c_int32(6), ctypes.c_int32(torch_cpu.aoti_torch_device_type_mps())
    options = (ctypes.byref(dtype), None, ctypes.byref(device), ctypes.c_int32(0), None)
    torch.mps.manual_seed(3)
    out = call("rand_generator", *ints(4), None, *options)
    torch.mps.manual_seed(3)
    assert torch.equal(out, torch.rand(4, device="mps"))


def test_several_results_and_views_of_conjugates():
    a, x = random(1, 2, 4, 4)
    square = (*ints(2, 2), *ints(2, 2), *ints(0, 0), *ints(1, 1))
    out, where = call("max_pool2d_with_indices", Handle(x), *square, ctypes.c_int32(0), results=2)
    expected = torch.nn.functional.max_pool2d(a, 2, return_indices=True)
    assert torch.equal(out.cpu(), expected[0])
    assert torch.equal(where.cpu(), expected[1])
    a = torch.randn(3, dtype=torch.complex64)
    one = ctypes.c_double(1)
    out = call("add_Tensor", Handle(a.to("mps").conj()), Handle(a.to("mps")), one)
    torch.testing.assert_close(out.cpu(), a.conj() + a)


def test_errors_of_operators():
    (_, x), (_, y) = random(2, 3), random(2, 3)
    out = torch.empty(2, 2, device="mps")
    assert shim.aoti_torch_mps_mm_out(Handle(out), Handle(x), Handle(y))
    assert "cannot be multiplied" in error()
