"""tensor and extents: shapes, strides, slices, loads and stores."""

import pytest
import torch
from metalops.msl.source import languages

from .products import HEADER, build

KERNELS = """
static_assert(extents<int, 3, dynamic_extent, 5>::rank() == 3, "");
static_assert(extents<int, 3, dynamic_extent, 5>::rank_dynamic() == 1, "");
static_assert(extents<int, 3, dynamic_extent, 5>::static_extent(2) == 5, "");
static_assert(is_same_v<dextents<int, 2>, extents<int, dynamic_extent, dynamic_extent>>, "");
static_assert(is_tensor_inline_v<tensor<device half, dextents<int, 2>, tensor_inline>>, "");
static_assert(is_tensor_handle_v<tensor<device half, dextents<int, 2>>>, "");
static_assert(!has_tensor_offset_v<tensor<device half, dextents<int, 2>>>, "");

kernel void shapes(device int* in, device int* out) {
  tensor<device int, dextents<int, 3>, tensor_inline> t(in, dextents<int, 3>(4, 5, 6));
  extents<int, 7, dynamic_extent> e(9);
  extents<int, dynamic_extent, dynamic_extent> f = e;
  int n = 0;
  for (int r = 0; r < 3; ++r) out[n++] = t.get_extent(r);
  for (int r = 0; r < 3; ++r) out[n++] = t.get_stride(r);
  out[n++] = f.extent(0); out[n++] = f.extent(1);
  out[n++] = t[1, 2, 3];
  out[n++] = t[array<int, 3>{1, 2, 3}];
  auto s = t.slice(1, 2, 3);
  for (int r = 0; r < 3; ++r) out[n++] = s.get_extent(r);
  out[n++] = s[0, 0, 0]; out[n++] = s[1, 1, 1];
  auto u = t.slice<2, dynamic_extent, 3>(1, 1, 1);
  for (int r = 0; r < 3; ++r) out[n++] = u.get_extent(r);
  out[n++] = u[0, 0, 0];
  auto v = u.slice(1, 1, 1);
  out[n++] = v[0, 0, 0];
  out[n++] = t.load(3, 4, 5); out[n++] = t.load(4, 0, 0); out[n++] = t.load(-1, 0, 0);
  t.store(-7, 0, 0, 6);
  t.store(-8, 3, 4, 5);
}

kernel void guided(device float* in, device float* out, constant int& stride) {
  auto t = tensor(in, dextents<int, 2>(3, 2), array<int, 2>({1, stride}));
  auto u = tensor(out, extents<int, 3, 2>());
  for (int j = 0; j < 2; ++j) for (int i = 0; i < 3; ++i) u[i, j] = t[i, j] * 2;
}
"""


def test_shapes_slices_and_elements():
    x = torch.arange(120, dtype=torch.int32).reshape(6, 5, 4)
    y, out = x.clone(), torch.zeros(30, dtype=torch.int32)
    build(KERNELS).launch("shapes", [y, out], 1, 1)
    expected = [4, 5, 6, 1, 4, 20, 7, 9, x[3, 2, 1], x[3, 2, 1]]
    expected += [3, 3, 3, x[3, 2, 1], x[4, 3, 2], 2, 4, 3, x[1, 1, 1], x[2, 2, 2], x[5, 4, 3], 0, 0]
    assert out.tolist()[: len(expected)] == [int(e) for e in expected]
    x[5, 4, 3] = -8
    assert torch.equal(y, x)


def test_types_are_guessed_from_pointers_and_strides():
    x, out = torch.randn(2, 5), torch.zeros(2, 3)
    build(KERNELS).launch("guided", [x, out, torch.tensor([5], dtype=torch.int32)], 1, 1)
    assert torch.equal(out, x[:, :3] * 2)


def test_before_metal_4_there_are_none():
    text = 'static_assert(__METAL_VERSION__ < 400, "");\nkernel void f(device int* x) { x[0] = 1; }'
    from metalops import msl

    options = msl.Options(language=languages.number_of("3.2"))
    header = "#include <metal_stdlib>\n#include <metal_tensor>\n"
    header += "#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>\n"
    assert msl.compile_source(header + text, options=options)
    with pytest.raises(SyntaxError, match="dextents"):
        msl.compile_source(header + "using E = metal::dextents<int, 2>;" + text, options=options)


NEWER = [
    ("dextents", "dextents<int, 2>::rank()", "3.2", "4.0"),
    ("int4b_format", "sizeof(int4b_format)", "3.1", "4.0"),
    ("execution_simdgroups", "execution_simdgroups<2>::size()", "3.2", "4.0"),
    *(
        (name, f"sizeof(metal::{name})", "4.0", "4.1")
        for name in (
            "int2b_format",
            "uint2b_format",
            "metal_fp4_e2m1_format",
            "metal_fp8_e4m3_format",
            "metal_fp8_e5m2_format",
            "metal_fp8_ue8m0_format",
        )
    ),
    ("tensor_blockwise", "sizeof(tensor_blockwise<int, int, 2>)", "4.0", "4.1"),
]


@pytest.mark.parametrize(("name", "expression", "language", "first"), NEWER)
def test_what_a_later_version_brings_is_refused_by_its_name(name, expression, language, first):
    text = f"kernel void f(device int* x) {{\n  x[0] = int({expression});\n}}"
    with pytest.raises(
        SyntaxError, match=rf"{name} needs Metal {first}.*Metal {language}"
    ) as error:
        build(text, language=language)
    assert error.value.lineno == HEADER.count("\n") + 2


def test_a_program_may_have_such_a_name_of_its_own():
    from metalops import msl

    text = (
        "struct dextents { int rank; };\nkernel void f(device int* x) { x[0] = dextents{2}.rank; }"
    )
    assert msl.compile_source(text, options=msl.Options(language=310))
