"""Kernels that build on each other, launched and looked at one after the other through torch.mps.compile_shader."""

import pytest
import torch

SORT = """
#include <metal_stdlib>
#include <c10/metal/error.h>
using namespace metal;
constant constexpr uint BINS = 64;

kernel void histogram(
    device const int* keys [[buffer(0)]],
    device atomic_uint* counts [[buffer(1)]],
    constant long& size [[buffer(2)]],
    device c10::metal::ErrorMessages* errors [[buffer(3)]],
    uint i [[thread_position_in_grid]],
    uint lane [[thread_index_in_threadgroup]],
    uint width [[threads_per_threadgroup]]) {
  threadgroup atomic_uint local[BINS];
  for (uint bin = lane; bin < BINS; bin += width) {
    atomic_store_explicit(&local[bin], 0, memory_order_relaxed);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (long(i) < size) {
    if (keys[i] < 0 || keys[i] >= int(BINS)) {
      TORCH_REPORT_ERROR(errors, "key ", keys[i], " at ", int(i), " has no bin");
    } else {
      atomic_fetch_add_explicit(&local[keys[i]], 1, memory_order_relaxed);
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint bin = lane; bin < BINS; bin += width) {
    const uint count = atomic_load_explicit(&local[bin], memory_order_relaxed);
    if (count > 0) atomic_fetch_add_explicit(&counts[bin], count, memory_order_relaxed);
  }
}

kernel void prefix_sum(
    device const uint* counts,
    device uint* offsets,
    uint bin [[thread_position_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  threadgroup uint totals[BINS / 32];
  const uint before = simd_prefix_exclusive_sum(counts[bin]);
  if (lane == 31) totals[simdgroup] = before + counts[bin];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  uint start = 0;
  for (uint s = 0; s < simdgroup; ++s) start += totals[s];
  offsets[bin] = start + before;
}

kernel void scatter(
    device const int* keys,
    device atomic_uint* offsets,
    device int* order,
    uint i [[thread_position_in_grid]]) {
  order[atomic_fetch_add_explicit(&offsets[keys[i]], 1, memory_order_relaxed)] = i;
}
"""


@pytest.fixture(scope="module")
def sort():
    return torch.mps.compile_shader(SORT)


def counts_of(sort, keys, threads=None):
    counts = torch.zeros(64, dtype=torch.int32, device="mps")
    options = {"threads": threads} if threads else {}
    sort.histogram(keys, counts, keys.numel(), error_buf_idx=3, group_size=128, **options)
    return counts


@pytest.mark.parametrize("size", [1, 100, 128, 1000])
def test_a_counting_sort_stage_by_stage(sort, size):
    keys = torch.randint(0, 64, (size,), dtype=torch.int32)
    on_device = keys.to("mps")

    counts = counts_of(sort, on_device)
    expected = torch.bincount(keys, minlength=64).int()
    assert torch.equal(counts.cpu(), expected)

    offsets = torch.empty_like(counts)
    sort.prefix_sum(counts, offsets, threads=64, group_size=64)
    assert torch.equal(offsets.cpu(), expected.cumsum(0).int() - expected)

    order = torch.full((size,), -1, dtype=torch.int32, device="mps")
    ends = offsets.clone()
    sort.scatter(on_device, ends, order)
    assert torch.equal(ends.cpu(), expected.cumsum(0).int())
    assert torch.equal(order.cpu().sort().values, torch.arange(size, dtype=torch.int32))
    assert torch.equal(keys[order.cpu()], keys.sort().values)


def test_a_stage_reports_bad_input_and_the_next_pipeline_runs(sort):
    keys = torch.tensor([3, 64, 5], dtype=torch.int32, device="mps")
    counts = counts_of(sort, keys)
    with pytest.raises(torch.AcceleratorError, match="key 64 at 1 has no bin"):
        torch.mps.synchronize()
    assert counts.nonzero().flatten().tolist() == [3, 5]
    assert counts_of(sort, keys[:1]).sum().item() == 1
    torch.mps.synchronize()


def test_more_threads_than_elements(sort):
    keys = torch.zeros(5, dtype=torch.int32, device="mps")
    assert counts_of(sort, keys, threads=256)[0].item() == 5


ADDRESSES = """
#include <metal_stdlib>
using namespace metal;
struct Tensors { device float* at[64]; };

kernel void sum_struct(
    device float* out, constant Tensors& tensors, uint i [[thread_position_in_grid]]) {
  float sum = 0;
  for (uint t = 0; t < 64; ++t) sum += tensors.at[t][i];
  out[i] = sum;
}
kernel void sum_pointers(
    device float* out, device float* constant* tensors, constant long& count,
    uint i [[thread_position_in_grid]]) {
  float sum = 0;
  for (long t = 0; t < count; ++t) sum += tensors[t][i];
  out[i] = sum;
}
kernel void sum_array(
    device float* out, constant array<device float*, 64>& tensors,
    uint i [[thread_position_in_grid]]) {
  float sum = 0;
  for (uint t = 0; t < 64; ++t) sum += tensors[t][i];
  out[i] = sum;
}
kernel void sum_integers(
    device float* out, constant ulong* tensors, uint i [[thread_position_in_grid]]) {
  float sum = 0;
  for (uint t = 0; t < 64; ++t) sum += reinterpret_cast<device const float*>(tensors[t])[i];
  out[i] = sum;
}
kernel void double_each(constant Tensors& tensors, uint2 at [[thread_position_in_grid]]) {
  tensors.at[at.y][at.x] *= 2;
}
"""


def test_an_argument_buffer_of_64_tensors():
    library = torch.mps.compile_shader(ADDRESSES)
    base = torch.randn(64, 20, device="mps")
    tensors = [base[t, 5:15] for t in range(64)]
    expected = base[:, 5:15].sum(0)
    for name, extra in [
        ("sum_struct", ()),
        ("sum_pointers", (64,)),
        ("sum_array", ()),
        ("sum_integers", ()),
    ]:
        out = torch.empty(10, device="mps")
        getattr(library, name)(out, tensors, *extra)
        torch.testing.assert_close(out, expected)
    before = base.clone()
    library.double_each(tuple(tensors), threads=(10, 64))
    before[:, 5:15] *= 2
    assert torch.equal(base, before)


PHILOX = """
#include <c10/metal/random.h>
kernel void uniform(device float* out, constant long& seed, uint i [[thread_position_in_grid]]) {
  out[i] = c10::metal::rand(seed, i);
}
"""


def test_philox_numbers_depend_on_seed_and_position_alone():
    uniform = torch.mps.compile_shader(PHILOX).uniform

    def run(seed, size=4096):
        out = torch.empty(size, device="mps")
        uniform(out, seed)
        return out

    first = run(3)
    assert torch.equal(run(3), first)
    assert torch.equal(run(3, 100), first[:100])
    assert not torch.equal(run(4), first)
    assert 0 <= first.min() and first.max() < 1
    assert abs(first.mean().item() - 0.5) < 0.03
    assert first.unique().numel() > 4000


TEMPLATES = """
#include <metal_stdlib>
using namespace metal;
template <typename T, int Step>
[[kernel]] void fill(device T* out [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  out[i] = static_cast<T>(Step * int(i));
}
#define INSTANTIATE(T, Step) \\
  template [[host_name("fill_" #T "_" #Step)]] [[kernel]] void fill<T, Step>( \\
      device T* [[buffer(0)]], uint [[thread_position_in_grid]]);
INSTANTIATE(half, 2)
INSTANTIATE(int, 3)
INSTANTIATE(bfloat, 1)
"""


def test_instances_of_templates_are_found_by_their_host_names():
    library = torch.mps.compile_shader(TEMPLATES)
    assert sorted(dir(library)) == ["fill_bfloat_1", "fill_half_2", "fill_int_3"]
    for name, dtype, step in [
        ("fill_half_2", torch.float16, 2),
        ("fill_int_3", torch.int32, 3),
        ("fill_bfloat_1", torch.bfloat16, 1),
    ]:
        out = torch.empty(6, dtype=dtype, device="mps")
        getattr(library, name)(out)
        assert out.tolist() == [step * i for i in range(6)]
