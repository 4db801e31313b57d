"""threadgroup_barrier and simdgroup_barrier: order, threads that have returned, and barriers that never complete."""

import pytest
import torch

from .conftest import build

SOURCE = """
kernel void tree_sum(device const float* in, device float* out, uint i [[thread_position_in_grid]],
                     uint t [[thread_index_in_threadgroup]], uint n [[threads_per_threadgroup]],
                     uint group [[threadgroup_position_in_grid]]) {
  threadgroup float s[1024];
  s[t] = in[i];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint k = 1; k < n; k *= 2) {
    float other = t + k < n && t % (2 * k) == 0 ? s[t + k] : 0;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    s[t] += other;
    threadgroup_barrier(mem_flags::mem_threadgroup | mem_flags::mem_device);
  }
  if (t == 0) out[group] = s[0];
}
kernel void after_some_returned(device uint* out, uint t [[thread_index_in_threadgroup]]) {
  threadgroup uint s[256];
  s[t] = t;
  if (t % 3 == 0) return;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[t] = s[(t + 1) % 256];
  threadgroup_barrier(mem_flags::mem_threadgroup);
}
kernel void through_device_memory(device uint* out, uint i [[thread_position_in_grid]], uint n [[threads_per_grid]]) {
  for (uint k = 0; k < 50; ++k) {
    uint next = out[(i + 1) % n];
    threadgroup_barrier(mem_flags::mem_device);
    out[i] = next;
    threadgroup_barrier(mem_flags::mem_device);
  }
}
kernel void neighbours_in_a_simdgroup(device uint* out, uint t [[thread_index_in_threadgroup]]) {
  threadgroup uint s[256];
  for (uint k = 0; k < 20; ++k) {
    s[t] = t * 100 + k;
    simdgroup_barrier(mem_flags::mem_threadgroup);
    out[t] = s[t ^ 31];
    simdgroup_barrier(mem_flags::mem_threadgroup);
  }
}
kernel void different_barriers(device uint* out, uint t [[thread_index_in_threadgroup]]) {
  if (t < 5) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    out[t] = 1;
  } else {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    out[t] = 2;
  }
}
kernel void a_barrier_for_each_simdgroup(device uint* out, uint t [[thread_index_in_threadgroup]]) {
  threadgroup uint s[64];
  s[t] = t;
  if (t < 32) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
  } else {
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  out[t] = s[63 - t];
}
"""


@pytest.mark.full
@pytest.mark.parametrize("group", [1, 31, 33, 64, 100, 256, 1024])
def test_tree_reduction(group):
    threads = 3 * group + group // 2  # the last group is partial
    x = torch.randint(-8, 9, (threads,)).float()
    out = torch.zeros((threads + group - 1) // group)
    build(SOURCE).launch("tree_sum", [x, out], threads, group)
    assert torch.equal(out, torch.stack([part.sum() for part in x.split(group)]))


@pytest.mark.reported("some threads do not reach the barrier")
def test_threads_that_returned_count_as_arrived():
    out = torch.full((256,), -1, dtype=torch.int32)
    build(SOURCE).launch("after_some_returned", [out], 256, 256)
    t = torch.arange(256)
    assert torch.equal(out.long(), torch.where(t % 3 == 0, -1, (t + 1) % 256))


def test_device_memory():
    x = torch.arange(700, dtype=torch.int32)
    expected = x.roll(-50)
    build(SOURCE).launch("through_device_memory", [x], 700, 700)
    assert torch.equal(x, expected)


def test_simdgroup_barrier():
    out = torch.zeros(256, dtype=torch.int32)
    build(SOURCE).launch("neighbours_in_a_simdgroup", [out], 256, 256)
    assert torch.equal(out, (torch.arange(256, dtype=torch.int32) ^ 31) * 100 + 19)


@pytest.mark.reported("some threads do not reach the barrier")
def test_lanes_at_different_barriers_are_an_error_that_names_both():
    out = torch.zeros(32, dtype=torch.int32)
    with pytest.raises(RuntimeError, match="deadlock in kernel 'different_barriers'") as error:
        build(SOURCE).launch("different_barriers", [out], 32, 32)
    lines = (
        SOURCE[: SOURCE.index("void different_barriers")].count("\n") + 1 + 2
    )  # two lines of header
    assert f":{lines + 2}:5 and " in str(error.value)
    assert f":{lines + 5}:5." in str(error.value)
    assert not out.any()


@pytest.mark.reported("some threads do not reach the barrier")
def test_simdgroups_may_use_different_barriers():
    out = torch.zeros(64, dtype=torch.int32)
    build(SOURCE).launch("a_barrier_for_each_simdgroup", [out], 64, 64)
    assert torch.equal(out, 63 - torch.arange(64, dtype=torch.int32))
