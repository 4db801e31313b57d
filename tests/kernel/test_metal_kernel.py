"""metal_kernel: the generated signature, what the body sees, and calls."""

import copy
import pickle
import threading

import metalops
import pytest
import torch
from metalops.kernel.metal_kernel import program

ATTRIBUTES = {
    "dispatch_quadgroups_per_threadgroup": 1,
    "dispatch_simdgroups_per_threadgroup": 1,
    "dispatch_threads_per_threadgroup": 3,
    "grid_origin": 3,
    "grid_size": 3,
    "quadgroup_index_in_threadgroup": 1,
    "quadgroups_per_threadgroup": 1,
    "simdgroup_index_in_threadgroup": 1,
    "simdgroups_per_threadgroup": 1,
    "thread_execution_width": 1,
    "thread_index_in_quadgroup": 1,
    "thread_index_in_simdgroup": 1,
    "thread_index_in_threadgroup": 1,
    "thread_position_in_grid": 3,
    "thread_position_in_threadgroup": 3,
    "threadgroup_position_in_grid": 3,
    "threadgroups_per_grid": 3,
    "threads_per_grid": 3,
    "threads_per_simdgroup": 1,
    "threads_per_threadgroup": 3,
}


def mps(values, dtype=None):
    return torch.tensor(values, dtype=dtype).to("mps")


def elementwise(kernel, *inputs, dtype=None, **options):
    """A call with one thread for each element of the first input, and one output of its shape."""
    x = inputs[0]
    (out,) = kernel(
        inputs=list(inputs),
        output_shapes=[x.shape],
        output_dtypes=[dtype or x.dtype],
        grid=(x.numel(), 1, 1),
        threadgroup=(256, 1, 1),
        **options,
    )
    return out


def once(source, inputs=(), shape=(1,), dtype=torch.float32, names=None, **options):
    """The output of a kernel that one thread runs."""
    names = names or ["a", "b", "c", "d"][: len(inputs)]
    call = {
        key: options.pop(key)
        for key in ("template", "init_value", "grid", "threadgroup")
        if key in options
    }
    kernel = metalops.metal_kernel("once", names, ["out"], source, **options)
    call = {"grid": (1, 1, 1), "threadgroup": (1, 1, 1), **call}
    (out,) = kernel(inputs=list(inputs), output_shapes=[shape], output_dtypes=[dtype], **call)
    return out


def text_of(source, inputs, names=None, outputs=1, template=None, **options):
    names = names or ["a", "b", "c"][: len(inputs)]
    kernel = metalops.metal_kernel(
        "k", names, [f"out{i}" for i in range(outputs)], source, **options
    )
    return kernel.source(
        inputs=[x.to("mps") if isinstance(x, torch.Tensor) else x for x in inputs],
        output_shapes=[(4,)] * outputs,
        output_dtypes=[torch.float32] * outputs,
        grid=(4, 1, 1),
        threadgroup=(4, 1, 1),
        template=template,
    )


def test_a_small_input_lies_in_the_constant_address_space_and_one_without_dimensions_is_a_reference():
    text = text_of("out0[0] = a[0] + b[0] + c;", [torch.zeros(7), torch.zeros(8), torch.zeros(())])
    assert "const constant float* a [[buffer(0)]]" in text
    assert "const device float* b [[buffer(1)]]" in text
    assert "const constant float& c [[buffer(2)]]" in text
    assert "device float* out0 [[buffer(3)]]" in text


def test_shape_strides_and_ndim_are_parameters_where_the_body_mentions_them():
    x = torch.zeros(2, 3)
    text = text_of("out0[0] = a_shape[0] * a_strides[1] * a_ndim;", [x])
    assert "const constant int* a_shape [[buffer(2)]]" in text
    assert "const constant int64_t* a_strides [[buffer(3)]]" in text
    assert "const constant int& a_ndim [[buffer(4)]]" in text
    assert "a_shape" not in text_of("out0[0] = a[0];", [x])


@pytest.mark.parametrize(
    "source",
    [
        "out0[0] = a[0]; // a_shape thread_position_in_grid",
        "/* a_shape\nthread_position_in_grid */ out0[0] = a[0];",
        "float my_a_shape = 1, thread_position_in_grid_x = 2; out0[0] = my_a_shape + thread_position_in_grid_x;",
    ],
)
def test_only_whole_names_outside_comments_are_mentions(source):
    text = text_of(source, [torch.zeros(2, 3)])
    signature = text[text.index("[[kernel]]") : text.index("{")]
    assert "a_shape" not in signature
    assert "thread_position_in_grid" not in signature


def test_an_input_of_the_name_of_a_shape_is_that_input():
    a, a_shape = mps([1.0, 2.0]), mps([7.0, 8.0])
    out = once("out[0] = a[0] + a_shape[1];", [a, a_shape], names=["a", "a_shape"])
    assert out.tolist() == [9.0]


def test_a_template_argument_of_the_name_of_a_shape_is_that_argument():
    out = once("out[0] = a_ndim;", [mps([[1.0]])], template=[("a_ndim", 7)])
    assert out.tolist() == [7.0]


def test_every_thread_attribute_is_there_with_its_type():
    grid, group = (8, 4, 2), (4, 4, 1)
    body = "".join(
        f"out[{10 * i} + 0] = {name}{'.x' if size == 3 else ''};"
        + (f"out[{10 * i} + 1] = {name}.y; out[{10 * i} + 2] = {name}.z;" if size == 3 else "")
        for i, (name, size) in enumerate(ATTRIBUTES.items())
    )
    # The last thread of the grid.
    body = f"if (thread_position_in_grid.x == 7 && thread_position_in_grid.y == 3 && thread_position_in_grid.z == 1) {{{body}}}"
    # Not -1: the address sanitizer takes memory of ones for memory that nothing has written.
    out = once(body, shape=(20, 10), dtype=torch.int32, grid=grid, threadgroup=group, init_value=-2)
    found = {
        name: row[:size] if size == 3 else row[0]
        for (name, size), row in zip(ATTRIBUTES.items(), out.tolist(), strict=True)
    }
    assert found == {
        "dispatch_quadgroups_per_threadgroup": 4,
        "dispatch_simdgroups_per_threadgroup": 1,
        "dispatch_threads_per_threadgroup": [4, 4, 1],
        "grid_origin": [0, 0, 0],
        "grid_size": [8, 4, 2],
        "quadgroup_index_in_threadgroup": 3,
        "quadgroups_per_threadgroup": 4,
        "simdgroup_index_in_threadgroup": 0,
        "simdgroups_per_threadgroup": 1,
        "thread_execution_width": 32,
        "thread_index_in_quadgroup": 3,
        "thread_index_in_simdgroup": 15,
        "thread_index_in_threadgroup": 15,
        "thread_position_in_grid": [7, 3, 1],
        "thread_position_in_threadgroup": [3, 3, 0],
        "threadgroup_position_in_grid": [1, 0, 1],
        "threadgroups_per_grid": [2, 1, 2],
        "threads_per_grid": [8, 4, 2],
        "threads_per_simdgroup": 32,
        "threads_per_threadgroup": [4, 4, 1],
    }


def test_template_arguments_of_all_kinds_and_inputs_of_several_dtypes():
    a = torch.randn(3, 6)
    c = torch.randn(2, 2).bfloat16()
    kernel = metalops.metal_kernel(
        "arguments",
        ["a", "b", "c", "d"],
        ["out1", "out2"],
        """
        uint elem = thread_position_in_grid.x;
        T tmp = a[0];
        if (e) {
          out1[elem] = a[1] + b[2] + c[3] + d + f + tmp;
        } else {
          out1[elem] = 1;
        }
        out2[elem] = sizeof(T);
        """,
    )
    inputs = [a.to("mps"), mps([3, 4, 5], torch.int32), c.to("mps"), 7.3]
    for e in (True, False):
        out1, out2 = kernel(
            inputs=inputs,
            template=[("e", e), ("f", 3), ("T", torch.float16)],
            grid=(4, 1, 1),
            threadgroup=(2, 1, 1),
            output_shapes=[(2, 2), (4,)],
            output_dtypes=[torch.float32, torch.int32],
        )
        value = a[0, 1] + 5 + c[1, 1].float() + 7.3 + 3 + a[0, 0].half().float()
        torch.testing.assert_close(out1.cpu(), torch.full((2, 2), value.item() if e else 1.0))
        assert out2.tolist() == [2, 2, 2, 2]


def test_template_values_that_compare_equal_are_different_templates():
    def size(value):
        return once("out[0] = sizeof(N);", dtype=torch.int32, template=[("N", value)]).item()

    assert [size(1), size(True), size(1)] == [4, 1, 4]


@pytest.mark.parametrize("value", [-(2**31), -1, 0, 2**31 - 1])
def test_an_integer_template_argument_has_any_value_of_an_int(value):
    assert once("out[0] = N;", dtype=torch.int64, template=[("N", value)]).item() == value


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (True, torch.bool),
        (-5, torch.int32),
        (2**31 - 1, torch.int32),
        (-(2**40), torch.int64),
        (0.1, torch.float32),
        (float("nan"), torch.float32),
    ],
)
def test_a_python_scalar_is_an_input_of_mlx_default_dtype(value, dtype):
    out = once("out[0] = a; out[1] = sizeof(a);", [value], shape=(2,), dtype=torch.float32)
    expected = [torch.tensor(value).to(dtype).float().item(), dtype.itemsize]
    torch.testing.assert_close(out.cpu(), torch.tensor(expected), equal_nan=True)


def test_a_python_scalar_is_a_parameter_of_its_value_at_each_call():
    kernel = metalops.metal_kernel(
        "shift", ["x", "by"], ["out"], "uint i = thread_position_in_grid.x; out[i] = x[i] + by;"
    )
    x = mps([1.0, 2.0])
    assert elementwise(kernel, x, 1).tolist() == [2.0, 3.0]
    assert elementwise(kernel, x, 2).tolist() == [3.0, 4.0]
    assert elementwise(kernel, x, 0.5).tolist() == [1.5, 2.5]
    assert elementwise(kernel, x, True).tolist() == [2.0, 3.0]


def test_complex_numbers_have_complex_arithmetic():
    source = """
      uint i = thread_position_in_grid.x;
      complex64_t z = x[i] * x[i] / by - complex64_t(0.0f, 1.0f);
      out[i] = z.real > 1e9f ? complex64_t(0) : -z;
    """
    kernel = metalops.metal_kernel("complex", ["x", "by"], ["out"], source)
    x = torch.randn(9, dtype=torch.complex64)
    on_device = x.to("mps")
    torch.testing.assert_close(
        elementwise(kernel, on_device, 2 + 3j).cpu(), -(x * x / (2 + 3j) - 1j)
    )
    conjugate = on_device.conj()
    torch.testing.assert_close(elementwise(kernel, conjugate, 1j).cpu(), -(x.conj() ** 2 / 1j - 1j))
    imaginary = metalops.metal_kernel(
        "neg", ["x"], ["out"], "out[thread_position_in_grid.x] = x[thread_position_in_grid.x];"
    )
    torch.testing.assert_close(elementwise(imaginary, conjugate.imag).cpu(), -x.imag)


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.bool,
        torch.int8,
        torch.uint8,
        torch.int16,
        torch.uint16,
        torch.int32,
        torch.uint32,
        torch.int64,
        torch.uint64,
        torch.complex64,
        torch.complex32,
    ],
)
def test_every_dtype_of_the_device_goes_in_and_out(dtype):
    kernel = metalops.metal_kernel(
        "copy_all", ["x"], ["out"], "uint i = thread_position_in_grid.x; out[i] = T(x[i]);"
    )
    x = torch.tensor([0, 1, 1, 0, 1, 0, 0, 0, 1]).to(dtype).to("mps")
    out = elementwise(kernel, x, template=[("T", dtype)])
    assert out.dtype == dtype
    assert out.cpu().view(torch.uint8).tolist() == x.cpu().view(torch.uint8).tolist()


def test_mlx_names_of_half_types_and_functions_of_the_header_are_in_scope():
    out = once(
        "out[0] = twice(bfloat16_t(1.5)) + float(float16_t(0.25)) + ceildiv(7, 2) + log1p(1.0f);",
        header="template <typename T>\nfloat twice(T x) { return 2 * float(x); }",
    )
    torch.testing.assert_close(
        out.cpu(), torch.tensor([3.0 + 0.25 + 4.0]) + torch.tensor(2.0).log()
    )


def test_limits_of_types():
    out = once(
        "out[0] = Limits<int>::max; out[1] = Limits<float>::min; out[2] = Limits<half>::finite_max;"
        "out[3] = Limits<bool>::max; out[4] = Limits<bfloat16_t>::max; out[5] = Limits<char>::finite_min;",
        shape=(6,),
    )
    inf = float("inf")
    assert out.tolist() == [float(2**31), -inf, 65504.0, 1.0, inf, -128.0]


def test_log1p_keeps_small_arguments_and_infinities():
    x = torch.tensor([1e-10, -1e-7, 0.0, -0.5, 3.0, float("inf"), -1.0, float("nan"), 1e30])
    kernel = metalops.metal_kernel(
        "log1p",
        ["x"],
        ["out"],
        "out[thread_position_in_grid.x] = log1p(x[thread_position_in_grid.x]);",
    )
    torch.testing.assert_close(
        elementwise(kernel, x.to("mps")).cpu(), torch.log1p(x), rtol=1e-6, atol=0, equal_nan=True
    )


def test_shuffles_of_64_bit_integers():
    out = once(
        "uint i = thread_position_in_grid.x;"
        "out[i] = simd_shuffle_down(int64_t(i) << 33, 1) + simd_shuffle_down(uint64_t(i), 2);",
        shape=(32,),
        dtype=torch.int64,
        grid=(32, 1, 1),
        threadgroup=(32, 1, 1),
    )
    i = torch.arange(30)
    assert out[:30].tolist() == (((i + 1) << 33) + i + 2).tolist()


def test_atomic_outputs_and_their_initial_value():
    out = once(
        "atomic_fetch_add_explicit(&out[thread_position_in_grid.x % 3], 1, memory_order_relaxed);",
        shape=(3,),
        dtype=torch.int32,
        atomic_outputs=True,
        init_value=10,
        grid=(100, 1, 1),
        threadgroup=(32, 1, 1),
    )
    assert out.tolist() == [44, 43, 43]


@pytest.mark.parametrize("value", [0, 1.5, -0.0, float("-inf"), True])
def test_init_value_fills_every_output_before_the_kernel_runs(value):
    kernel = metalops.metal_kernel(
        "first", ["x"], ["a", "b"], "if (thread_position_in_grid.x == 0) a[0] = x[0];"
    )
    a, b = kernel(
        inputs=[mps([2.0])],
        output_shapes=[(2,), (2, 2)],
        output_dtypes=[torch.float32, torch.float16],
        grid=(1, 1, 1),
        threadgroup=(1, 1, 1),
        init_value=value,
    )
    torch.testing.assert_close(a.cpu(), torch.tensor([2.0, value]), rtol=0, atol=0)
    torch.testing.assert_close(b.cpu(), torch.full((2, 2), value).half(), rtol=0, atol=0)
    assert torch.equal(torch.signbit(b), torch.signbit(torch.full((2, 2), value)).to("mps"))


def views(x):
    return {
        "transposed": x.t(),
        "every second column": x[:, ::2],
        "offset": x[2:, 1:],
        "expanded": x[:1].expand(4, 6),
        "row": x[3],
        "three dimensions": x[:, None, :].expand(5, 2, 6).permute(2, 1, 0),
        "contiguous": x,
    }


LAYOUTS = list(views(torch.zeros(5, 6)))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_inputs_are_copied_to_row_major_order(layout):
    source = "uint i = thread_position_in_grid.x; out[i] = x[i];"
    kernel = metalops.metal_kernel("rows", ["x"], ["out"], source)
    x = torch.randn(5, 6)
    assert torch.equal(elementwise(kernel, views(x.to("mps"))[layout]).cpu(), views(x)[layout])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_without_copies_the_body_sees_strides_and_the_offset_holds(layout):
    source = """
      uint elem = thread_position_in_grid.x;
      uint loc = elem_to_loc(elem, x_shape, x_strides, x_ndim);
      out[elem] = x[loc];
    """
    kernel = metalops.metal_kernel("strided", ["x"], ["out"], source, ensure_row_contiguous=False)
    x = torch.randn(5, 6)
    assert torch.equal(elementwise(kernel, views(x.to("mps"))[layout]).cpu(), views(x)[layout])


def test_every_helper_for_offsets_finds_the_same_element():
    source = """
      uint3 p = thread_position_in_grid;
      uint3 n = threads_per_grid;
      int elem = (p.z * n.y + p.y) * n.x + p.x;
      int64_t loc = elem_to_loc(elem, x_shape, x_strides, x_ndim);
      LoopedElemToLoc<1, int64_t> looped(x_ndim);
      for (int i = 0; i < elem; ++i) looped.next(x_shape, x_strides);
      LoopedElemToLoc<2> jumped(x_ndim);
      jumped.next(elem, x_shape, x_strides);
      bool same = elem_to_loc<int64_t>(elem, x_shape, x_strides, x_ndim) == loc &&
        elem_to_loc(p, x_shape, x_strides, x_ndim) == loc &&
        elem_to_loc_3(p, x_strides) == loc &&
        elem_to_loc_2(p.xy, x_strides + 1) + elem_to_loc_1(p.z, x_strides[0]) == loc &&
        elem_to_loc_2_nd(p, x_shape, x_strides, y_strides, x_ndim).x == loc &&
        elem_to_loc_2_nd(p, x_shape, y_strides, x_strides, x_ndim).y == loc &&
        elem_to_loc_3_nd<uint>(p, x_shape, y_strides, y_strides, x_strides, x_ndim).z == loc &&
        looped.location() == loc && int64_t(jumped.location()) == loc;
      out[elem] = same ? x[loc] : -1;
    """
    kernel = metalops.metal_kernel("all", ["x", "y"], ["out"], source, ensure_row_contiguous=False)
    x = torch.arange(60.0).reshape(5, 4, 3).permute(1, 2, 0)
    (out,) = kernel(
        inputs=[x.to("mps"), torch.zeros(4, 3, 5, device="mps")],
        output_shapes=[x.shape],
        output_dtypes=[x.dtype],
        grid=(5, 3, 4),
        threadgroup=(5, 3, 4),
    )
    assert torch.equal(out.cpu(), x)


def test_the_threadgroup_is_at_most_the_grid():
    out = once(
        "uint2 i = thread_position_in_grid.xy;"
        "if (all(i == 0)) out[0] = dispatch_threads_per_threadgroup.x;"
        "if (all(i == 1)) out[1] = dispatch_threads_per_threadgroup.y;",
        shape=(2,),
        dtype=torch.uint32,
        grid=(2, 3, 1),
        threadgroup=(256, 2, 8),
    )
    assert out.cpu().tolist() == [2, 2]


@pytest.mark.parametrize("group", [1, 3, 7, 64])
def test_the_group_is_as_asked_for_where_the_grid_is_the_first_input(group):
    kernel = metalops.metal_kernel(
        "group", ["x"], ["out"], "out[thread_position_in_grid.x] = threads_per_threadgroup.x;"
    )
    x = torch.zeros(7, device="mps")
    (out,) = kernel(
        inputs=[x],
        output_shapes=[(7,)],
        output_dtypes=[torch.int32],
        grid=(7, 1, 1),
        threadgroup=(group, 1, 1),
    )
    assert out[0].item() == min(group, 7)


def test_the_grid_need_not_be_the_size_of_the_first_input():
    out = once(
        "out[thread_position_in_grid.x] = 1;",
        [torch.zeros(10, device="mps")],
        shape=(10,),
        init_value=0,
        grid=(4, 1, 1),
        threadgroup=(4, 1, 1),
    )
    assert out.tolist() == [1.0] * 4 + [0.0] * 6


@pytest.mark.parametrize("grid", [(0, 1, 1), (1, 0, 1), (4, 4, 0)])
def test_an_empty_grid_runs_nothing(grid):
    out = once("out[0] = 1;", shape=(2,), grid=grid, threadgroup=(4, 1, 1), init_value=5)
    assert out.tolist() == [5.0, 5.0]


def test_an_empty_output_is_no_error():
    kernel = metalops.metal_kernel(
        "empty", ["x"], ["out"], "uint i = thread_position_in_grid.x; out[i] = x[i];"
    )
    x = torch.empty(0, 3, device="mps")
    assert elementwise(kernel, x).shape == (0, 3)
    assert once("out[0] = 1;", shape=(0,)).shape == (0,)


def test_one_empty_output_among_others():
    kernel = metalops.metal_kernel("two", ["x"], ["a", "b"], "b[0] = 3;")
    a, b = kernel(
        inputs=[torch.empty(0, device="mps")],
        output_shapes=[(0, 2), (1,)],
        output_dtypes=[torch.float32, torch.float32],
        grid=(1, 1, 1),
        threadgroup=(1, 1, 1),
    )
    assert a.shape == (0, 2)
    assert b.tolist() == [3.0]


@pytest.mark.parametrize("device", [None, "mps", "mps:0", torch.device("mps")])
def test_a_kernel_without_inputs_takes_a_device(device):
    kernel = metalops.metal_kernel("seven", [], ["out"], "out[thread_position_in_grid.x] = 7;")
    (out,) = kernel(
        inputs=[],
        output_shapes=[(3,)],
        output_dtypes=[torch.int32],
        grid=(3, 1, 1),
        threadgroup=(3, 1, 1),
        device=device,
    )
    assert out.device.type == "mps"
    assert out.tolist() == [7, 7, 7]


def test_verbose_prints_what_source_returns(capsys):
    kernel = metalops.metal_kernel("loud", ["x"], ["out"], "out[0] = x[0];")
    call = {
        "inputs": [mps([2.0])],
        "output_shapes": [(1,)],
        "output_dtypes": [torch.float32],
        "grid": (1, 1, 1),
        "threadgroup": (1, 1, 1),
    }
    text = kernel.source(**call)
    assert capsys.readouterr().out == ""
    kernel(**call)
    assert capsys.readouterr().out == ""
    kernel(**call, verbose=True)
    assert capsys.readouterr().out == text + "\n"


def test_source_takes_the_calls_arguments_and_compiles_nothing():
    kernel = metalops.metal_kernel("broken", ["x"], ["out"], "this is no Metal")
    text = kernel.source(
        inputs=[mps([2.0])],
        output_shapes=[(1,)],
        output_dtypes=[torch.float16],
        grid=(1, 1, 1),
        threadgroup=(1, 1, 1),
        template=[("N", 3)],
        init_value=1.0,
        verbose=True,
        device="mps",
    )
    assert "this is no Metal" in text
    assert "device half* out [[buffer(1)]]" in text
    assert "template <int N>" in text


@pytest.mark.parametrize("mode", ["safe", "relaxed", "fast"])
def test_math_mode_reaches_the_compiler_where_metal_has_it(mode):
    text = text_of("out0[0] = 1;", [], compile_options={"math_mode": mode})
    pragma = f"#if __METAL_VERSION__ >= 320\n#pragma METAL fp math_mode({mode})\n#endif\n"
    assert pragma in text
    out = once("out[0] = exp(a);", [1.0], compile_options={"math_mode": mode})
    torch.testing.assert_close(out.cpu(), torch.tensor([1.0]).exp())


FAST_MATH = """
#ifdef __FAST_MATH__
  out[0] = __FAST_MATH__;
#else
  out[0] = -1;
#endif
"""


@pytest.mark.parametrize("environment", ["0", "1"])
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (None, -1),
        ({}, -1),
        ({"math_mode": "safe"}, -1),
        ({"math_mode": "relaxed"}, -1),  # honours infinities and NaN
        ({"math_mode": "fast"}, 1),
    ],
)
def test_the_fast_mode_alone_defines_its_macro(options, expected, environment, monkeypatch):
    monkeypatch.setenv("PYTORCH_MPS_FAST_MATH", environment)
    kernel = metalops.metal_kernel(
        "mode",
        [],
        ["out"],
        f"// {environment}\n{FAST_MATH}  out[1] = mode;",
        FAST_MATH.replace("out[0]", "constant int mode"),
        compile_options=options,
    )
    for same in (kernel, pickle.loads(pickle.dumps(kernel)), copy.deepcopy(kernel)):
        (out,) = same(
            inputs=[],
            output_shapes=[(2,)],
            output_dtypes=[torch.int32],
            grid=(1, 1, 1),
            threadgroup=(1, 1, 1),
        )
        assert out.tolist() == [expected, expected]


def test_the_same_name_with_another_source_is_another_kernel():
    x = mps([1.0, 2.0])
    results = []
    for factor in (2, 3, 2):
        kernel = metalops.metal_kernel(
            "again",
            ["x"],
            ["out"],
            f"uint i = thread_position_in_grid.x; out[i] = {factor} * x[i];",
        )
        results.append(elementwise(kernel, x).tolist())
    assert results == [[2.0, 4.0], [3.0, 6.0], [2.0, 4.0]]


def test_the_same_kernel_with_another_header_is_another_kernel():
    for value in (1, 2):
        out = once("out[0] = VALUE;", header=f"#define VALUE {value}")
        assert out.item() == value


def test_a_kernel_remembers_no_more_than_it_must(monkeypatch):
    monkeypatch.setattr(program, "_KEPT", 3)
    kernel = metalops.metal_kernel(
        "many", ["x"], ["out"], "out[thread_position_in_grid.x] = x_shape[0];"
    )
    for size in [*range(1, 10), *range(1, 10)]:
        assert elementwise(kernel, torch.zeros(size, device="mps"))[-1].item() == size
    assert len(kernel._launches) <= 3


def test_kernels_are_pickled_and_copied():
    kernel = metalops.metal_kernel(
        "pickled",
        ["x"],
        ["out"],
        "uint i = thread_position_in_grid.x; out[i] = f(x[i]);",
        header="float f(float x) { return x + 1; }",
        backward=_gradient,
    )
    x = mps([1.0, 2.0])
    for other in (pickle.loads(pickle.dumps(kernel)), copy.copy(kernel), copy.deepcopy(kernel)):
        leaf = x.clone().requires_grad_()
        out = elementwise(other, leaf)
        assert out.tolist() == [2.0, 3.0]
        out.sum().backward()
        assert leaf.grad.tolist() == [5.0, 5.0]


def _gradient(grads, inputs, outputs):
    return [5 * grads[0]]


def test_a_module_that_holds_a_kernel_is_copied():
    module = torch.nn.Linear(2, 2)
    module.kernel = metalops.metal_kernel(
        "held", [], ["out"], "out[0] = 1;", backward=lambda *_: []
    )
    assert copy.deepcopy(module).kernel is module.kernel


def test_a_repr_names_the_kernel_and_its_tensors():
    kernel = metalops.metal_kernel(
        "blur", ["x", "w"], ["out"], "", inout_names=["state"], backward=_gradient
    )
    assert repr(kernel) == "<MetalKernel 'blur'; x, w -> out; in place: state; differentiable>"


def test_a_kernel_is_called_from_several_threads():
    kernel = metalops.metal_kernel(
        "threads", ["x"], ["out"], "uint i = thread_position_in_grid.x; out[i] = x[i] * x_shape[0];"
    )
    results = {}

    def work(index):
        for size in range(1, 30):
            x = torch.full((size,), float(index), device="mps")
            results[index, size] = elementwise(kernel, x).tolist() == [float(index * size)] * size

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4 * 29
    assert all(results.values())


def test_positional_and_keyword_arguments_of_the_constructor_are_those_of_mlx():
    kernel = metalops.metal_kernel(
        "p", ["a"], ["o"], "o[0] = g(a[0]);", "float g(float x) { return x; }"
    )
    assert elementwise(kernel, mps([4.0])).tolist() == [4.0]


def test_calls_within_inference_mode_and_no_grad():
    kernel = metalops.metal_kernel(
        "plain", ["x"], ["out"], "uint i = thread_position_in_grid.x; out[i] = x[i];"
    )
    x = torch.ones(3, device="mps", requires_grad=True)
    with torch.no_grad():
        assert not elementwise(kernel, x).requires_grad
    with torch.inference_mode():
        assert elementwise(kernel, x).is_inference()
