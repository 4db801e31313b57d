"""Cooperative tensors: where their elements are, iterators, loads and stores, conversions and reductions, for every policy
of layouts."""

import pytest
import torch

from .products import build, fill

LAYOUTS = ["apple10", "apple8", "scramble", "scramble:12345"]
every_layout = pytest.mark.parametrize("layout", LAYOUTS)

# Each thread writes, for each of its slots, -1 or row * 1000 + column of the element that is there.
PLACES = """
constant constexpr auto d = matmul2d_descriptor(M, N, 16, TL, TR);
kernel void places(device int* out, constant int& capacity, uint t [[thread_index_in_threadgroup]]) {
  matmul2d<d, execution_simdgroups<SIMDGROUPS>> op;
  using T = tensor<device half, dextents<int, 2>, tensor_inline>;
  auto c = op.GETTER;
  for (int i = 0; i < capacity; ++i) out[t * capacity + i] = -2;
  for (uint16_t i = 0; i < c.get_capacity(); ++i) {
    auto p = c.get_multidimensional_index(i);
    out[t * capacity + i] = c.is_valid_element(i) ? p[1] * 1000 + p[0] : -1;
  }
}
"""
DESTINATION = "get_destination_cooperative_tensor<T, T, float>()"
LEFT = "get_left_input_cooperative_tensor<half, half, float>()"
RIGHT = "get_right_input_cooperative_tensor<half, half, float>()"


def places(m, n, getter=DESTINATION, simdgroups=1, layout="apple10", tl=False, tr=False):
    """(thread, slot) -> row * 1000 + column of the operand's own matrix, -1 where there is none."""
    fields = dict(m=m, n=n, getter=getter, simdgroups=simdgroups)
    fields |= dict(tl=str(tl).lower(), tr=str(tr).lower())
    text = fill(PLACES, **fields)
    capacity = 200
    out = torch.zeros(32 * simdgroups, capacity, dtype=torch.int32)
    size = torch.tensor([capacity], dtype=torch.int32)
    build(text, layout=layout).launch("places", [out, size], 32 * simdgroups, 32 * simdgroups)
    return out[:, : int((out[0] != -2).sum())]


def elements(found, rows, columns):
    """How many slots there are for each element."""
    counts = torch.zeros(rows, columns, dtype=torch.long)
    for at in found[found >= 0].tolist():
        counts[at // 1000, at % 1000] += 1
    return counts


@pytest.mark.sampled(8)
@every_layout
@pytest.mark.parametrize(
    ("m", "n", "simdgroups"), [(16, 32, 1), (8, 16, 1), (64, 40, 1), (64, 64, 4), (16, 16, 4)]
)
def test_each_element_is_in_one_slot(layout, m, n, simdgroups):
    found = places(m, n, simdgroups=simdgroups, layout=layout)
    assert (elements(found, m, n) == 1).all()
    if layout.startswith("scramble"):
        assert (found == -1).any()  # slots that hold nothing


@pytest.mark.sampled(6)
@every_layout
@pytest.mark.parametrize("transposed", [False, True])
def test_coordinates_of_inputs_are_those_of_the_operand(layout, transposed):
    left = places(16, 32, LEFT, layout=layout, tl=transposed)
    assert (elements(left, *((16, 16) if transposed else (16, 16))) == 1).all()
    right = places(16, 32, RIGHT, layout=layout, tr=transposed)
    assert (elements(right, *((32, 16) if transposed else (16, 32))) == 1).all()


def test_seeds_scramble_differently():
    assert not torch.equal(places(16, 32, layout="scramble:1"), places(16, 32, layout="scramble:2"))


def law(rows, columns, lane, slot):
    """Where MLX's BaseNAXFrag::get_coord and torch's attention for Apple10 have an element."""
    row = (lane >> 1 & 3) | (lane >> 4) << 2 | (slot >> 2 & 1) << 3
    column = slot & 3 | (lane & 1) << 2 | (lane >> 3 & 1) << 3
    if columns == 32:
        column |= (slot >> 3 & 1) << 4
        row |= (slot >> 4 & 1) << 4 if rows == 32 else 0
    elif rows == 32:
        row |= (slot >> 3 & 1) << 4
    return row, column


@pytest.mark.parametrize(("m", "n"), [(16, 32), (32, 16), (32, 32), (16, 16)])
def test_layout_of_apple10(m, n):
    found = places(m, n)
    assert found.shape[1] == m * n // 32
    for lane in range(32):
        for slot in range(found.shape[1]):
            row, column = law(m, n, lane, slot)
            assert found[lane, slot] == row * 1000 + column


@pytest.mark.parametrize("transposed", [False, True])
def test_layout_of_operands_of_apple10(transposed):
    found = places(16, 32, RIGHT, tr=transposed)
    for lane in range(32):
        for slot in range(16):
            # A transposed operand is as its memory is: coordinates are (k, n), the law's (row, column) = (n, k) swapped.
            br, bc = law(16, 16, lane, slot % 8)
            k, n = (bc, br + slot // 8 * 16) if transposed else (br, bc + slot // 8 * 16)
            assert found[lane, slot] == (n * 1000 + k if transposed else k * 1000 + n)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("m", "n"), [(16, 32), (32, 32), (16, 16)])
def test_layout_before_apple10(m, n):
    """Fragments of 8 x 8, row by row, each as a simdgroup_matrix."""
    found = places(m, n, layout="apple8")
    for lane in range(32):
        for slot in range(m * n // 32):
            fragment = slot >> 1
            row = (lane >> 4 & 1) * 4 + (lane >> 1 & 3) + fragment // (n // 8) * 8
            column = (lane >> 3 & 1) * 4 + (lane & 1) * 2 + (slot & 1) + fragment % (n // 8) * 8
            assert found[lane, slot] == row * 1000 + column


ATTENTION = """
// Rows of softmax(x) v for one simdgroup: a product, reductions of its rows, and a second product of what became of it.
constant constexpr auto first = matmul2d_descriptor(16, 32, 16, false, true);
constant constexpr auto second = matmul2d_descriptor(16, 16, 32, false, false, false, matmul2d_descriptor::mode::multiply);
kernel void attend(device half* Q, device half* K, device half* V, device float* out, device int* converted,
                   uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float scratch[16 * 32];
  tensor<device half, extents<int, 16, 16>, tensor_inline> q(Q, extents<int, 16, 16>());
  tensor<device half, extents<int, 16, 32>, tensor_inline> k(K, extents<int, 16, 32>());
  tensor<device half, extents<int, 16, 32>, tensor_inline> v(V, extents<int, 16, 32>());
  tensor<device float, extents<int, 16, 16>, tensor_inline> o(out, extents<int, 16, 16>());
  matmul2d<first, execution_simdgroup> qk;
  matmul2d<second, execution_simdgroup> pv;
  auto s = qk.get_destination_cooperative_tensor<decltype(q), decltype(k), float>();
  qk.run(q, k, s);
  auto largest = qk.get_row_reduction_destination_cooperative_tensor<decltype(q), decltype(k), float>();
  auto sum = qk.get_row_reduction_destination_cooperative_tensor<decltype(q), decltype(k), float>();
  reduce_rows(s, largest, reduction_operation::max, -INFINITY);
  for (auto it = s.begin(); it != s.end(); ++it) {
    if (it.is_valid_element()) *it = exp(*it - *largest.map_iterator(it));
  }
  for (uint16_t i = 0; i < s.get_capacity(); ++i) s.set(i, s.get(i));
  reduce_rows(s, sum);
  for (auto it = s.begin(); it != s.end(); it++) {
    if (s.is_valid_element(it)) *it = *it / *sum.map_iterator(it);
  }
  using P = remove_addrspace_t<decltype(pv.get_left_input_cooperative_tensor<float, half, float>())>;
  auto r = pv.get_destination_cooperative_tensor<P, decltype(v), float>();
  if (pv.is_compatible_as_left_input<float, half, float>(s)) {
    auto p = pv.get_left_input_cooperative_tensor<float, half, float>(s);
    pv.run(p, v, r);
    if (lane == 0) converted[0] = 1;
  } else {
    tensor<threadgroup float, extents<int, 32, 16>, tensor_inline> t(scratch, extents<int, 32, 16>());
    s.store(t);
    simdgroup_barrier(mem_flags::mem_threadgroup);
    auto p = pv.get_left_input_cooperative_tensor<float, half, float>();
    p.load(t);
    pv.run(p, v, r);
    if (lane == 0) converted[0] = 0;
  }
  r.store(o);
}
"""


@pytest.mark.sampled(2)
@every_layout
def test_reductions_conversions_and_a_second_product(layout):
    q, k, v = torch.randn(16, 16).half(), torch.randn(32, 16).half(), torch.randn(32, 16).half()
    out, converted = torch.zeros(16, 16), torch.full((1,), -1, dtype=torch.int32)
    build(ATTENTION, layout=layout).launch("attend", [q, k, v, out, converted], 32, 32)
    expected = torch.softmax(q.double() @ k.double().t(), -1) @ v.double()
    torch.testing.assert_close(out.double(), expected, rtol=1e-4, atol=1e-4)
    assert converted.item() == (0 if layout.startswith("scramble") else 1)


REDUCE = """
constant constexpr auto d = matmul2d_descriptor(16, 32, 16);
using T = tensor<device ELEMENT, extents<int, 32, 16>, tensor_inline>;
kernel void reduce(device ELEMENT* x, device ELEMENT* rows, device ELEMENT* columns, constant int& op) {
  matmul2d<d, execution_simdgroup> product;
  T in(x, extents<int, 32, 16>());
  auto c = product.get_destination_cooperative_tensor<T, T, ELEMENT>();
  c.load(in);
  auto r = product.get_row_reduction_destination_cooperative_tensor<T, T, ELEMENT>();
  auto l = product.get_column_reduction_destination_cooperative_tensor<T, T, ELEMENT>();
  using I = reduction_operation_identity<ELEMENT>;
  if (op == 0) { reduce_rows(c, r); reduce_columns(c, l); }
  if (op == 1) {
    reduce_rows(c, r, reduction_operation::max, I::max_identity);
    reduce_columns(c, l, reduction_operation::max, I::max_identity);
  }
  if (op == 2) {
    reduce_rows(c, r, reduction_operation::min, I::min_identity);
    reduce_columns(c, l, reduction_operation::min, I::min_identity);
  }
  r.store(tensor<device ELEMENT, extents<int, 16>, tensor_inline>(rows, extents<int, 16>()));
  l.store(tensor<device ELEMENT, extents<int, 32>, tensor_inline>(columns, extents<int, 32>()));
}
"""


@pytest.mark.sampled(6)
@every_layout
@pytest.mark.parametrize("name", ["float", "half", "int"])
def test_reductions(layout, name):
    dtype = {"float": torch.float32, "half": torch.float16, "int": torch.int32}[name]
    library = build(fill(REDUCE, element=name), layout=layout)
    x = (torch.randn(16, 32) * 4).to(dtype)
    for op, function in enumerate((torch.sum, torch.amax, torch.amin)):
        rows, columns = torch.zeros(16, dtype=dtype), torch.zeros(32, dtype=dtype)
        number = torch.tensor([op], dtype=torch.int32)
        library.launch("reduce", [x, rows, columns, number], 32, 32)
        for found, dim in ((rows, 1), (columns, 0)):
            expected = function(x.double(), dim).to(dtype)
            torch.testing.assert_close(found, expected, rtol=2e-3, atol=1e-5)


BROADCAST = """
constant constexpr auto d = matmul2d_descriptor(16, 32, 16);
kernel void add_bias(device float* x, device float* row, device float* column, device float* out) {
  matmul2d<d, execution_simdgroup> op;
  using T = tensor<device float, dextents<int, 2>, tensor_inline>;
  auto c = op.get_destination_cooperative_tensor<T, T, float>();
  auto r = op.get_destination_cooperative_tensor<T, T, float>();
  auto l = op.get_destination_cooperative_tensor<T, T, float>();
  T in(x, dextents<int, 2>(20, 10)), result(out, dextents<int, 2>(20, 10));
  c.load(in);
  r.load(T(row, dextents<int, 2>(32, 1)));
  l.load(T(column, dextents<int, 2>(1, 16)));
  for (uint16_t i = 0; i < c.get_capacity(); ++i) {
    if (c.is_valid_element(i)) c[i] += r[i] + l[i];
  }
  c.store(result);
}
"""


@every_layout
def test_loads_expand_and_stores_stop_at_the_extents(layout):
    x, row, column = torch.randn(10, 20), torch.randn(1, 32), torch.randn(16, 1)
    out = torch.zeros(11, 20)
    build(BROADCAST, layout=layout).launch("add_bias", [x, row, column, out], 32, 32)
    expected = x + (row[:, :20] + column[:10])
    assert torch.equal(out[:10], expected)
    assert (out[10:] == 0).all()


def test_an_unknown_layout_is_refused(monkeypatch):
    from metalops import msl

    monkeypatch.setenv("METALOPS_COOPERATIVE_LAYOUT", "apple9")
    with pytest.raises(ValueError, match="METALOPS_COOPERATIVE_LAYOUT is 'apple9'"):
        msl.compile_source("kernel void f(device int* x) { x[0] = 1; }")


SCOPES = """
constant constexpr auto d = matmul2d_descriptor(64, 32, 16);
kernel void product(device float* x, device float* out) {
  matmul2d<d, execution_simdgroups<4>> op;
  tensor<device float, dextents<int, 2>, tensor_inline> a(x, dextents<int, 2>(16, 64)), b(x, dextents<int, 2>(32, 16));
  tensor<device float, dextents<int, 2>, tensor_inline> c(out, dextents<int, 2>(32, 64));
  op.run(a, b, c);
}
"""


def test_another_number_of_simdgroups_is_an_error():
    library = build(SCOPES)
    x, out = torch.randn(1024), torch.zeros(64, 32)
    library.launch("product", [x, out], 128, 128)
    expected = x[:1024].reshape(64, 16).double() @ x[:512].reshape(16, 32).double()
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(RuntimeError, match="'product'.*(execution_simdgroups<N>|128 threads)"):
        library.launch("product", [x, out], 64, 64)


COMPATIBLE = """
constant constexpr auto d = matmul2d_descriptor(16, 32, 16);
constant constexpr auto narrow = matmul2d_descriptor(16, 16, 16);
constant constexpr auto high = matmul2d_descriptor(32, 32, 16);
using T = tensor<device float, dextents<int, 2>, tensor_inline>;
using Op = matmul2d<d, execution_simdgroup>;
kernel void compare(device int* out, uint lane [[thread_index_in_simdgroup]]) {
  Op op;
  auto tile = op.get_destination_cooperative_tensor<T, T, float>();
  auto halves = op.get_destination_cooperative_tensor<T, T, half>();
  auto input = op.get_left_input_cooperative_tensor<float, float, float>();
  auto rows = op.get_row_reduction_destination_cooperative_tensor<T, T, float>();
  auto columns = op.get_column_reduction_destination_cooperative_tensor<T, T, float>();
  matmul2d<narrow, execution_simdgroup> other;
  auto of_narrow = other.get_destination_cooperative_tensor<T, T, float>();
  matmul2d<high, execution_simdgroup> third;
  auto of_high = third.get_destination_cooperative_tensor<T, T, float>();
  if (lane != 0) return;
  out[0] = is_iterator_compatible(tile, rows);
  out[1] = is_iterator_compatible(of_narrow, rows);
  out[2] = is_iterator_compatible(of_high, rows);
  out[3] = is_iterator_compatible(halves, rows);
  out[4] = is_iterator_compatible(input, rows);
  out[5] = is_iterator_compatible(tile, tile);
  out[6] = is_iterator_compatible(tile, columns);
  out[7] = is_iterator_compatible(of_high, columns);
  out[8] = is_iterator_compatible(of_narrow, columns);
}
"""


@every_layout
def test_which_iterators_reductions_take(layout):
    """Rows where tiles have as many; columns, by a mistake of Apple's headers, where they have not."""
    out = torch.full((9,), -1, dtype=torch.int32)
    build(COMPATIBLE, layout=layout).launch("compare", [out], 32, 32)
    assert out.tolist() == [1, 1, 0, 0, 0, 0, 0, 0, 1]
