"""Everything that tests/tensorops computes on the software device compiles for NVIDIA's GPUs. This needs NVRTC and no GPU."""

import re

import pytest
import torch
from metalops.cuda import copy_maps, nvrtc
from metalops.cuda.library import Library
from metalops.msl.source import languages
from metalops.msl.targets.host.tensors import OF_TENSOR_CORES
from metalops.ops._cuda import kernel_file

from tests.tensorops import (
    test_convolution2d,
    test_cooperative_tensors,
    test_formats,
    test_matmul2d,
    test_scale_planes,
    test_static_assertions,
    test_tensors,
)
from tests.tensorops.products import HEADER, Product, fill

ARCHITECTURE = "compute_90"

pytestmark = pytest.mark.skipif(
    not nvrtc.is_available(), reason="NVRTC is not installed: pip install nvidia-cuda-nvrtc"
)


def compiled(source, language="4.0", layout="apple10", architecture=ARCHITECTURE):
    number = languages.number_of(language)
    library = Library(HEADER + source, language=number, cooperative_layout=layout)
    text = library.compile(architecture).decode()
    assert text.count(".entry msl_kernel_") == len(library.kernel_names) > 0
    return text


def product(*types, **fields):
    return compiled(Product(*types, **fields).text(), language="4.1")


def instructions(text, *names):
    text = text.partition(".entry msl_fast_0")[2]
    return [len(re.findall(rf"\b{name}\b", text)) for name in names]


@pytest.mark.nightly
def test_planes_of_scales():
    compiled(test_scale_planes.kernels(), language="4.1")


@pytest.mark.nightly
@pytest.mark.parametrize("language", test_matmul2d.OF_TYPES)
@pytest.mark.parametrize("part", range(6))
def test_every_triple_of_types(language, part):
    compiled("".join(p.text() for p in test_matmul2d.OF_TYPES[language][part::6]), language)


@pytest.mark.nightly
@pytest.mark.parametrize("layout", test_matmul2d.LAYOUTS)
def test_cooperative_inputs(layout):
    inputs = [*test_matmul2d.INPUTS["4.0"][::9], *test_matmul2d.TRANSPOSED_INPUTS]
    compiled("".join(p.text() for p in inputs), layout=layout)


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(6))
def test_every_scope_and_shape(part):
    compiled("".join(p.text() for p in test_matmul2d.SCOPES[part::6]))


@pytest.mark.nightly
@pytest.mark.parametrize("layout", ["apple8", "scramble:3"])
def test_other_layouts(layout):
    compiled("".join(p.text() for p in test_matmul2d.SCOPES[::9]), layout=layout)


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(4))
def test_transpositions_steps_and_destinations(part):
    compiled("".join(p.text() for p in test_matmul2d.TRANSPOSED[part::4]))


@pytest.mark.nightly
@pytest.mark.parametrize("layout", ["apple10", "apple8", "scramble"])
def test_cooperative_tensors_reductions_and_conversions(layout):
    here = test_cooperative_tensors
    reductions = fill(here.REDUCE, element="half")
    for source in (here.ATTENTION, here.BROADCAST, here.SCOPES, here.COMPATIBLE, reductions):
        compiled(source, layout=layout)
    places = dict(m=16, n=32, simdgroups=1, tl="false", tr="false")
    for getter in (here.DESTINATION, here.LEFT, here.RIGHT):
        compiled(fill(here.PLACES, **places, getter=getter), layout=layout)


@pytest.mark.full
def test_tensors_and_formats_of_numbers():
    compiled(test_tensors.KERNELS)
    compiled(test_formats.KERNELS, language="4.1")
    compiled(test_scale_planes.EXTREMES, language="4.1")


@pytest.mark.nightly
@pytest.mark.parametrize(
    "scope", ["execution_simdgroup", "execution_simdgroups<4>", "execution_thread"]
)
def test_convolutions(scope):
    here = test_convolution2d
    for _, filters, size, strides, dilations, _ in here.SHAPES[::3]:
        for name, cooperative in (("half", scope != "execution_thread"), ("float", False)):
            compiled(here.kernel(name, filters, size, strides, dilations, scope, cooperative, True))


@pytest.mark.parametrize("message", test_static_assertions.CASES)
def test_is_refused(message):
    here = test_static_assertions
    with pytest.raises(SyntaxError) as error:
        compiled(fill(here.KERNEL, **{**here.FIELDS, **here.CASES[message]}))
    assert message in str(error.value)


@pytest.mark.parametrize("message", test_scale_planes.REFUSED)
def test_scales_are_refused(message):
    here = test_scale_planes
    with pytest.raises(SyntaxError) as error:
        compiled(fill(here.STATIC, **{**here.FIELDS, **here.REFUSED[message]}), language="4.1")
    assert message in str(error.value)


@pytest.mark.nightly
def test_operations_share_a_block_s_memory_with_the_kernel_s_own():
    """All the threadgroup memory that Metal allows, and products of three sizes."""
    kernels = [Product("half", "half", m=m, n=64, simdgroups=4).text() for m in (32, 64, 128)]
    own = "  threadgroup char own[32768];\n  own[tile.x] = 1; C[0] = own[tile.y];\n"
    source = HEADER + "".join(kernels).replace("{\n", "{\n" + own, 1)
    assert Library(source).compile("sm_90")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("factor", ["half", "bfloat"])
@pytest.mark.parametrize("transposed", [False, True])
def test_products_of_threadgroups_are_staged_for_tensor_cores(factor, transposed):
    fields = dict(m=64, n=64, simdgroups=4, transpose_left=transposed, transpose_right=transposed)
    text = product(factor, factor, **fields)
    copies, products, memory = instructions(text, "cp", "mma", r"local")
    assert copies > 0 and products == 2 * 2 * 2 * 2 and memory == 0


@pytest.mark.full
def test_products_of_a_simdgroup_are_made_by_tensor_cores_where_factors_are_exact():
    assert instructions(product("half", "half"), "mma", "fma") == [4, 0]
    for types in (("half", "int4"), ("char", "bfloat", "bfloat"), ("e4m3", "e4m3", "half")):
        assert instructions(product(*types), "mma") == [4]
    for types in (("float", "float"), ("bfloat", "half"), ("float", "char")):
        assert instructions(product(*types), "mma") == [0]


def test_before_tensor_cores_of_16_bits_there_are_other_ways():
    text = compiled(Product("half", "half", simdgroups=4).text(), architecture="compute_75")
    assert instructions(text, "mma") == [0]


@pytest.mark.sampled(4)
@pytest.mark.full
@pytest.mark.parametrize("m, n, simdgroups", [(128, 64, 4), (128, 256, 8)])
@pytest.mark.parametrize("transposed", [False, True])
def test_on_compute_capability_9_0_four_simdgroups_multiply_together(m, n, simdgroups, transposed):
    fields = dict(transpose_left=transposed, transpose_right=transposed)
    product = Product("half", "half", m=m, n=n, simdgroups=simdgroups, **fields)
    text = compiled(product.text(), architecture="compute_90a")
    fragments = m // (16 * simdgroups)  # of 64 rows, for each warpgroup
    # Blocks of 64 inner elements are copied by all threads, or by the copy engine: in lines along K, or where
    # a warpgroup has its rows in sequence.
    ways = 2 if fragments == 1 or not transposed else 1
    found = instructions(text, "wgmma.mma_async", "ldmatrix", "local")
    assert found == [ways * fragments * 4, 0, 0]
    assert ("cp.async.bulk.tensor" in text) == (ways == 2)


# The instruction of each product of factors that are not of 16 bits.
ALONG_K = {
    ("char", "char", "int"): "k32.s32.s8.s8",
    ("uchar", "uchar", "int"): "k32.s32.u8.u8",
    ("char", "int4", "int"): "k32.s32.s8.s8",
    ("float", "float", "float"): "k8.f32.tf32.tf32",
    ("float", "half", "float"): "k8.f32.tf32.tf32",
    ("e4m3", "e4m3", "float"): "k32.f32.e4m3.e4m3",
    ("e5m2", "e5m2", "half"): "k32.f32.e5m2.e5m2",
}


def instructions_of_warpgroups(*types, **fields):
    """The text, and the shapes and types of the products in it."""
    text = compiled(
        Product(*types, **fields).text(), language="4.1", architecture="compute_90a"
    ).partition(".entry msl_fast_0")[2]
    return text, re.findall(r"wgmma\.mma_async\.sync\.aligned\.(\S+)", text)


@pytest.mark.sampled(9)
@pytest.mark.full
@pytest.mark.parametrize("types", ALONG_K, ids="_".join)
def test_on_compute_capability_9_0_other_factors_are_multiplied_together(types):
    fields = dict(m=64, n=64, simdgroups=4, relaxed="int" not in types)
    # The right operand is turned by the threads, or the copy engine copies both as they are, if they are.
    for transposed, ways in ((False, 1), (True, 1 if types[0] != types[1] else 2)):
        text, found = instructions_of_warpgroups(*types, **fields, transpose_right=transposed)
        assert found == [f"m64n64{ALONG_K[types]}"] * 4 * ways
        assert ("cp.async.bulk.tensor" in text) == (ways == 2)
        assert instructions(text, "local") == [0]


@pytest.mark.full
def test_on_compute_capability_9_0_factors_are_exact_unless_the_precision_is_relaxed():
    fields = dict(m=64, n=64, simdgroups=4)
    assert instructions_of_warpgroups("float", "float", **fields)[1] == []
    text, found = instructions_of_warpgroups("e4m3", "e4m3", **fields)
    assert set(found) == {"m64n64k16.f32.f16.f16"} and "cvt.rn.f16x2.e4m3x2" in text


@pytest.mark.nightly
def test_on_compute_capability_9_0_launches_bring_the_memory_of_large_tiles():
    large = Product("half", "half", m=128, n=256, simdgroups=8)
    small = Product("half", "half", m=16, n=32)
    library = Library(HEADER + large.text() + small.text(), language=languages.LANGUAGES["4.0"])
    blocks = 4 * (128 + 256) * 64 * 2
    for architecture in ("sm_90a", "compute_90a"):
        code = library.compile(architecture)
        found = [nvrtc.launch_facts(code, f"msl_kernel_{i}").memory for i in range(2)]
        assert blocks < found[0] < blocks + 2048 and found[1] == 0
    assert nvrtc.launch_facts(library.compile("sm_80"), "msl_kernel_0") == nvrtc.LaunchFacts()


@pytest.mark.nightly
def test_on_compute_capability_9_0_four_simdgroups_attend_together():
    kernel = "attention_forward_by_simdgroups_64_half"
    library = Library(
        kernel_file.text_of("attention"),
        kernels=[kernel],
        language=languages.LANGUAGES["4.0"],
        cooperative_layout=OF_TENSOR_CORES,
    )
    text = library.compile("compute_90a").decode()
    scores, sums = (text.count(f"wgmma.mma_async.sync.aligned.m64n{n}k16") for n in (128, 64))
    assert sums == 2 * scores > 0 and "mma.sync" not in text and "cp.async.bulk.tensor" in text
    before = library.compile("compute_80").decode()
    assert "wgmma" not in before and "mma.sync" in before


@pytest.mark.sampled(2)
@pytest.mark.full
@pytest.mark.parametrize("gradient", ["query", "key_value"])
def test_on_compute_capability_9_0_gradients_of_attention_keep_scores_in_registers(gradient):
    library = Library(
        kernel_file.text_of("attention"),
        kernels=[f"attention_grad_{gradient}_by_warpgroup_64_half"],
        language=languages.LANGUAGES["4.0"],
        cooperative_layout=OF_TENSOR_CORES,
    )
    text = library.compile("compute_90a").decode()
    products = re.findall(r"wgmma\.mma_async\.sync\.aligned\.m64n64k16\.\S+ {[^}]*}, (.)", text)
    # Two products of lines and lines, and one or two of registers and lines.
    assert products.count("{") * 2 == products.count("%") * (1 if gradient == "query" else 2) > 0
    assert "mma.sync" not in text and "cp.async.bulk.tensor" in text


@pytest.mark.nightly
def test_attention_without_copies_by_the_copy_engine_has_no_barriers_of_theirs():
    library = Library(
        kernel_file.text_of("attention"),
        kernels=["attention_forward_by_warpgroup_32_half"],
        language=languages.LANGUAGES["4.0"],
        cooperative_layout=OF_TENSOR_CORES,
    )
    text = library.compile("compute_90a").decode()
    assert "wgmma" in text and "mbarrier" not in text


@pytest.mark.parametrize(
    ("tensor", "matrices"),
    [
        (lambda x: x, [(0, 64, 128, 256)]),
        (lambda x: x.t(), [(0, 64, 128, 256)]),
        (lambda x: x.view(1, 2, 32, 128), [(0, 64, 128, 256)]),
        (lambda x: x.view(1, 64, 1, 128), [(0, 64, 128, 256)]),
        (lambda x: x[8:, 16:48], [(8 * 256 + 32, 56, 32, 256)]),
        (lambda x: x.view(1, 4, 16, 128), [(0, 64, 128, 256)]),
        # (batch, heads, tokens, features) and (tokens, heads, features) with adjacent heads
        (
            lambda x: x.view(2, 32, 4, 32).transpose(1, 2),
            [(0, 256, 32, 64), (0, 64, 128, 256)],
        ),
        (lambda x: x.view(64, 4, 32), [(0, 256, 32, 64), (0, 64, 128, 256)]),
        (lambda x: x.view(64, 4, 32)[:, :2], [(0, 64, 64, 256)]),
        (lambda x: x.view(4, 16, 128)[:, :8], [(0, 4, 1024, 4096)]),
        (lambda x: x.view(2, 2, 16, 128)[:, :, :8], []),
        (lambda x: x[:, 64:].view(64, 2, 32), [(128, 64, 64, 256)]),
        (
            lambda x: x[:, 64:].view(2, 32, 2, 32).transpose(1, 2),
            [(128, 64, 64, 256)],
        ),
        (lambda x: x[:, 1:], []),  # address
        (lambda x: x.view(-1)[:8064].view(128, 63), []),  # stride
        (lambda x: x[:, ::2], []),
        (lambda x: x.view(-1), []),
        (lambda x: x[:0], []),
        # Columns are counted in units of two bytes.
        (lambda x: x.view(torch.int32), [(0, 64, 128, 256)]),
        (lambda x: x.view(torch.int8)[:, :32], [(0, 64, 16, 256)]),
        (lambda x: x.view(torch.int8)[:, :31], []),
        (lambda x: x.view(torch.int64), []),
        (lambda x: x[:1].expand(64, 128), []),
        (lambda x: x.as_strided((64, 128), (64, 1)), []),
    ],
)
def test_matrices_that_the_copy_engine_reads(tensor, matrices):
    x = torch.zeros(64, 128, dtype=torch.half)
    assert x.data_ptr() % 16 == 0
    expected = [(x.data_ptr() + at, *sizes) for at, *sizes in matrices]
    assert copy_maps.matrices_of(tensor(x)) == expected


@pytest.mark.full
def test_tiles_whose_blocks_do_not_fit_are_multiplied_by_simdgroups():
    product = Product("half", "half", m=4096, n=16, simdgroups=32)
    text = compiled(product.text(), architecture="compute_90a")
    assert instructions(text, "wgmma.mma_async") == [0] and "mma.sync" in text


def test_operations_ask_for_no_lanes():
    """A function with an operation in a lambda that has a result, of a type without a name, which some simdgroups leave."""
    compiled("""
    constant constexpr auto d = matmul2d_descriptor(16, 32, 16);
    using T = tensor<device half, dextents<int, 2>, tensor_inline>;
    auto f(T a, T b, int rows) {
      matmul2d<d, execution_simdgroup> op;
      auto sum = op.get_destination_cooperative_tensor<T, T, float>();
      auto one = [&](int k) {
        if (k >= rows) return 0;
        op.run(a, b, sum);
        return k;
      };
      if (one(rows) > 3) return sum[0];
      return sum[1];
    }
    kernel void k(device half* A, device float* C, uint simdgroup [[simdgroup_index_in_threadgroup]]) {
      T a(A, dextents<int, 2>(16, 16)), b(A, dextents<int, 2>(32, 16));
      C[0] = f(a, b, int(simdgroup));
    }""")
