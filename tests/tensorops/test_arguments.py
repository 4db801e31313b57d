"""Tensors as arguments of kernels: torch's tensors in their place, of compile_shader, metal_kernel and TorchMetalKernel."""

import metalops
import pytest
import torch
from metalops import msl, trace
from metalops._shaders.compile import by_definition
from metalops._shaders.declared import of_source
from metalops.trace.replay import SoftwareDevice, replay

from .products import HEADER, fill

PRODUCT = (
    HEADER
    + """
kernel void product(tensor<device half, dextents<int32_t, 2>> A, tensor<device const half, dextents<int32_t, 2>> B [[buffer(1)]],
                    tensor<device float, dextents<int32_t, 2>> C, constant float& factor,
                    uint2 tile [[threadgroup_position_in_grid]]) {
  constexpr auto d = matmul2d_descriptor(16, 32, static_cast<int>(dynamic_extent));
  matmul2d<d, execution_simdgroup> op;
  auto a = A.slice(0, tile.y * 16);
  auto b = B.slice(tile.x * 32, 0);
  auto c = C.slice(tile.x * 32, tile.y * 16);
  auto sum = op.get_destination_cooperative_tensor<decltype(a), decltype(b), float>();
  op.run(a, b, sum);
  for (auto it = sum.begin(); it != sum.end(); ++it) *it *= factor;
  sum.store(c);
}
"""
)


def tiles(rows, columns):
    return dict(threads=(32 * -(-columns // 32), -(-rows // 16), 1), group_size=(32, 1, 1))


def test_tensors_are_passed_with_their_dimensions_reversed():
    a, b = torch.randn(33, 20).half(), torch.randn(20, 50).half()
    c = torch.zeros(33, 50, device="mps")
    shader = metalops.compile_shader(PRODUCT, language="4.0")
    shader.product(a.to("mps"), b.to("mps"), c, 2.0, **tiles(33, 50))
    torch.testing.assert_close(
        c.cpu().double(), 2 * (a.double() @ b.double()), rtol=1e-5, atol=1e-4
    )


def test_torchs_own_compile_shader_takes_them_too():
    a, b = torch.randn(16, 16).half(), torch.randn(16, 32).half()
    c = torch.zeros(16, 32, device="mps")
    torch.mps.compile_shader(PRODUCT).product(a.to("mps"), b.to("mps"), c, 1.0, **tiles(16, 32))
    torch.testing.assert_close(c.cpu().double(), a.double() @ b.double(), rtol=1e-5, atol=1e-4)


def test_views_are_passed_with_their_offset_and_strides():
    whole = torch.randn(40, 64).half().to("mps")
    result = torch.zeros(32, 48, device="mps")
    a, b, c = whole[3:20, 5:25], whole[7:27, 11:50], result[2:19, 4:43]
    metalops.compile_shader(PRODUCT).product(a, b, c, 1.0, **tiles(17, 39))
    expected = torch.zeros(32, 48, dtype=torch.float64)
    expected[2:19, 4:43] = a.cpu().double() @ b.cpu().double()
    torch.testing.assert_close(result.cpu().double(), expected, rtol=1e-5, atol=1e-4)


FACTS = (
    HEADER
    + """
kernel void facts(tensor<device ELEMENT, EXTENTS> x, device int* out) {
  out[0] = x.get_rank();
  for (int d = 0; d < x.get_rank(); ++d) {
    out[1 + 2 * d] = x.get_extent(d);
    out[2 + 2 * d] = x.get_stride(d);
  }
}
"""
)


def facts(element, extents, tensor):
    out = torch.full((33,), -1, dtype=torch.int32, device="mps")
    shader = metalops.compile_shader(fill(FACTS, element=element, extents=extents), language="4.1")
    shader.facts(tensor, out, threads=1)
    rank = out[0].item()
    return out[1 : 1 + 2 * rank].view(rank, 2).tolist()


@pytest.mark.full
def test_extents_and_strides_by_rank():
    x = torch.zeros(2, 3, 4, 5, device="mps")
    assert facts("float", "dextents<int, 4>", x) == [[5, 1], [4, 5], [3, 20], [2, 60]]
    assert facts("float", "dextents<long, 3>", x[1, :, 1:3]) == [[5, 1], [2, 5], [3, 20]]
    assert facts("float", "dextents<short, 1>", x[0, 0, 0]) == [[5, 1]]
    assert facts("float", "extents<int>", x[0, 0, 0, 0]) == []
    assert facts("float", "extents<int, 5, dynamic_extent>", x[0, 0]) == [[5, 1], [4, 5]]
    assert facts("float", "dextents<int, 2>", x[0, 0].t()[:1, :1]) == [[1, 1], [1, 1]]
    sixteen = torch.zeros([1] * 14 + [2, 3], device="mps")
    assert facts("float", "dextents<int, 16>", sixteen)[:3] == [[3, 1], [2, 3], [1, 6]]


@pytest.mark.parametrize(
    ("element", "dtype"),
    [
        ("float", torch.float32),
        ("half", torch.float16),
        ("bfloat", torch.bfloat16),
        ("char", torch.int8),
        ("uchar", torch.uint8),
        ("short", torch.int16),
        ("ushort", torch.uint16),
        ("int", torch.int32),
        ("uint", torch.uint32),
        ("long", torch.int64),
        ("ulong", torch.uint64),
        ("bool", torch.bool),
    ],
)
def test_elements_are_of_the_dtype(element, dtype):
    x = torch.zeros(3, 8, dtype=dtype, device="mps")
    assert facts(element, "dextents<int, 2>", x) == [[8, 1], [3, 8]]
    other = torch.int16 if dtype == torch.int32 else torch.int32
    with pytest.raises(TypeError, match=f"has elements of {element}, but got a tensor of"):
        facts(element, "dextents<int, 2>", torch.zeros(3, 8, dtype=other, device="mps"))


@pytest.mark.parametrize(
    ("element", "dtype", "packed"),
    [
        ("int4b_format", torch.uint8, 2),
        ("uint4b_format", torch.int8, 2),
        ("int2b_format", torch.uint8, 4),
        ("uint2b_format", torch.uint8, 4),
        ("metal_fp4_e2m1_format", torch.uint8, 2),
        ("metal_fp8_e4m3_format", torch.uint8, 1),
        ("metal_fp8_e5m2_format", torch.uint8, 1),
        ("metal_fp8_ue8m0_format", torch.uint8, 1),
    ],
)
def test_bytes_hold_the_elements_of_formats(element, dtype, packed):
    x = torch.zeros(3, 8, dtype=dtype, device="mps")
    expected = [[8 * packed, 1], [3, 8 * packed]]
    assert facts(element, "dextents<int, 2>", x) == expected
    with pytest.raises(TypeError, match=f"has elements of {element}, but got a tensor of Float"):
        facts(element, "dextents<int, 2>", x.float())


@pytest.mark.parametrize(
    ("extents", "tensor", "message"),
    [
        ("dextents<int, 2>", lambda: torch.zeros(3, device="mps"), "has 2 dimensions, but got"),
        (
            "extents<int, 4, 4>",
            lambda: torch.zeros(4, 8, device="mps"),
            "has extent 4 in dimension 0",
        ),
        (
            "dextents<int, 2>",
            lambda: torch.zeros(4, 8, device="mps").t(),
            r"the elements of a row must follow each other, but the strides are \[1, 8\]",
        ),
        (
            "dextents<short, 1>",
            lambda: torch.zeros(1, device="mps").expand(40000).contiguous(),
            "counts elements in 16 bits",
        ),
    ],
)
def test_shapes_that_are_refused(extents, tensor, message):
    with pytest.raises(ValueError, match=f"argument 'x' .*{message}"):
        facts("float", extents, tensor())


def test_what_is_no_tensor_is_refused():
    shader = metalops.compile_shader(fill(FACTS, element="float", extents="dextents<int, 1>"))
    out = torch.zeros(3, dtype=torch.int32, device="mps")
    for value in (1.0, 3, [1, 2], [out, out]):
        with pytest.raises(TypeError, match="Metal kernel 'facts': buffer 0 takes a tensor"):
            shader.facts(value, out, threads=1)
    with pytest.raises(RuntimeError, match="takes a tensor on mps"):
        shader.facts(torch.zeros(2), out, threads=1)
    with pytest.raises(RuntimeError, match="nothing is bound to buffer"):
        shader.facts(threads=1)


def test_on_a_mac_kernels_with_handles_are_refused_and_others_are_not():
    text = (
        fill(FACTS, element="float", extents="dextents<int, 1>")
        + "kernel void other(device int* x) { x[0] = 1; }"
    )
    shader = by_definition(text, of_source(text, msl.runtime_options(400)), {}, {})
    x = torch.zeros(1, dtype=torch.int32, device="mps")
    shader.other(x)
    assert x.item() == 1
    with pytest.raises(NotImplementedError, match="kernel 'facts': argument 'x' is a tensor"):
        shader.facts  # noqa: B018


def test_a_launch_that_is_recorded_gives_the_same_when_it_is_replayed(tmp_path):
    a, b = (torch.randn(16, n, device="mps").half() for n in (16, 32))
    c = torch.zeros(16, 32, device="mps")
    shader = metalops.compile_shader(PRODUCT)
    with metalops.debug.capture(tmp_path / "product.trace"):
        shader.product(a, b, c, 1.0, **tiles(16, 32))
    recorded = trace.load(tmp_path / "product.trace")
    (row,) = replay(recorded, SoftwareDevice(), check=True)
    assert row.problems == ()


SCALED = metalops.metal_kernel(
    name="scaled_product",
    input_names=["a", "b", "factor"],
    output_names=["c"],
    header="""
        #include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
        using namespace mpp::tensor_ops;
    """,
    source="""
        constexpr auto d = matmul2d_descriptor(16, 32, static_cast<int>(dynamic_extent));
        matmul2d<d, execution_simdgroup> op;
        const uint2 tile = threadgroup_position_in_grid.xy;
        auto x = a_tensor.slice(0, tile.y * 16);
        auto y = b_tensor.slice(tile.x * 32, 0);
        auto z = c_tensor.slice(tile.x * 32, tile.y * 16);
        auto sum = op.template get_destination_cooperative_tensor<decltype(x), decltype(y), T>();
        op.run(x, y, sum);
        for (auto it = sum.begin(); it != sum.end(); ++it) *it *= factor;
        sum.store(z);
    """,
    ensure_row_contiguous=False,
)


def scaled(a, b, factor=1.0, dtype=torch.float32):
    (c,) = SCALED(
        inputs=[a, b, factor],
        template=[("T", dtype)],
        output_shapes=[(a.shape[0], b.shape[1])],
        output_dtypes=[dtype],
        grid=(32 * -(-b.shape[1] // 32), -(-a.shape[0] // 16), 1),
        threadgroup=(32, 1, 1),
    )
    return c


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("rows", "inner", "columns"), [(16, 16, 32), (37, 5, 70), (1, 3, 2)])
def test_metal_kernel_has_tensors_of_inputs_and_outputs(dtype, rows, inner, columns):
    a, b = torch.randn(rows, inner).to(dtype), torch.randn(inner, columns).to(dtype)
    c = scaled(a.to("mps"), b.to("mps"), 3.0)
    torch.testing.assert_close(
        c.cpu().double(), 3 * (a.double() @ b.double()), rtol=1e-5, atol=1e-4
    )


def test_metal_kernel_passes_the_strides_of_what_is_not_copied():
    whole = torch.randn(20, 64).half().to("mps")
    a, b = whole[:, 3:11], whole[4:12, 8:60]
    c = scaled(a, b)
    torch.testing.assert_close(
        c.cpu().double(), a.cpu().double() @ b.cpu().double(), rtol=1e-5, atol=1e-4
    )


def test_metal_kernels_of_tensors_are_compiled_with_the_rest():
    a, b = torch.randn(16, 8, device="mps"), torch.randn(8, 32, device="mps")
    compiled = torch.compile(lambda a, b: scaled(a + 1, b).relu(), fullgraph=True)
    expected = ((a.cpu() + 1).double() @ b.cpu().double()).relu()
    torch.testing.assert_close(compiled(a, b).cpu().double(), expected, rtol=1e-5, atol=1e-4)


def test_tensors_of_metal_kernels_are_inline_and_of_any_rank():
    kernel = metalops.metal_kernel(
        name="kinds",
        input_names=["x"],
        inout_names=["y"],
        output_names=["z"],
        source="""
            using T = metal::tensor<device float, metal::dextents<int, 2>, metal::tensor_inline>;
            static_assert(metal::is_same_v<metal::remove_cv_t<decltype(x_tensor)>, T>);
            z_tensor[1, 0] = x_tensor[2, 1];
            y_tensor[1] = x_tensor.get_extent(0) * 10 + x_tensor.get_extent(1);
        """,
    )
    x = torch.tensor([[1.0, 2, 3], [4, 5, 6]], device="mps")
    y = torch.zeros(2, device="mps")
    (z,) = kernel(
        inputs=[x, y],
        output_shapes=[(1, 2)],
        output_dtypes=[torch.float32],
        grid=(1, 1, 1),
        threadgroup=(1, 1, 1),
        init_value=0,
    )
    assert z.tolist() == [[0, 6]] and y.tolist() == [0, 32]


def _product(A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
    return A @ B


TORCH_PRODUCT = metalops.TorchMetalKernel(
    "case_tensorops_product",
    input_names=["A", "B"],
    result_names=["C"],
    helper_src="""
        #include <metal_tensor>
        #include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
        using namespace mpp::tensor_ops;
    """,
    src="""
        constexpr auto d = matmul2d_descriptor(16, 32, static_cast<int>(dynamic_extent));
        matmul2d<d, execution_simdgroup> op;
        auto a = A.slice(0, tile.y * 16);
        auto b = B.slice(tile.x * 32, 0);
        auto c = C.slice(tile.x * 32, tile.y * 16);
        op.run(a, b, c);
        if (tile.x == 0 && tile.y == 0) C[0, 0] = C[0, 0] * 1;
    """,
    torch_defn=_product,
    metal_params=[metalops.MetalParameter("tile", "uint2", "threadgroup_position_in_grid")],
)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_torch_metal_kernels_take_tensors(dtype):
    a, b = torch.randn(20, 24).to(dtype), torch.randn(24, 40).to(dtype)

    def run(device):
        return TORCH_PRODUCT(
            a.to(device),
            b.to(device),
            threads_per_grid=(64, 2, 1),
            threads_per_thread_group=(32, 1, 1),
            result_shapes=[[20, 40]],
        ).cpu()

    torch.testing.assert_close(run("mps"), run("cpu"), rtol=2e-3, atol=2e-3)


def _same(A: torch.Tensor) -> torch.Tensor:
    return A.clone()


def test_without_the_header_torch_metal_kernels_have_views():
    kernel = metalops.TorchMetalKernel(
        "case_tensorops_view",
        ["A"],
        ["B"],
        "B[i] = A[i];",
        _same,
        metal_params=[metalops.MetalParameter("i", "uint", "thread_position_in_grid")],
    )
    text = kernel.source(
        torch.zeros(2, 2),
        threads_per_grid=(4, 1, 1),
        threads_per_thread_group=(4, 1, 1),
        result_shapes=[[2, 2]],
    )
    assert "metal_tensor" not in text and "tensor_view<float, 2> A" in text
