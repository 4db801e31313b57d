"""Atomic functions on device and threadgroup memory, with several CPU threads at once."""

import numpy as np
import pytest
import torch

from .conftest import build

NAMES = {"int": torch.int32, "uint": torch.uint32}
FETCH = ["add", "sub", "max", "min", "and", "or", "xor"]


def kernels():
    text = []
    for t in NAMES:
        for op in FETCH:
            text.append(
                f"kernel void fetch_{op}_{t}(device atomic_{t}* a, device const {t}* v, "
                "uint i [[thread_position_in_grid]])\n"
                f"{{ atomic_fetch_{op}_explicit(a, v[i], memory_order_relaxed); }}"
            )
        text.append(
            f"kernel void old_values_{t}(device atomic_{t}* a, device {t}* out, uint i [[thread_position_in_grid]])\n"
            f"{{ out[i] = atomic_fetch_add_explicit(a, {t}(1), memory_order_relaxed); }}"
        )
    return "\n".join(text)


SOURCE = (
    kernels()
    + """
kernel void float_sum(device atomic_float* a, device const float* v, uint i [[thread_position_in_grid]]) {
  if (i % 4 == 3) atomic_fetch_sub_explicit(a, -v[i], memory_order_relaxed);
  else atomic_fetch_add_explicit(a, v[i], memory_order_relaxed);
}
kernel void ulong_extremes(device atomic_ulong* a, device const ulong* v, uint i [[thread_position_in_grid]]) {
  atomic_max_explicit(&a[0], v[i], memory_order_relaxed);
  atomic_min_explicit(&a[1], v[i], memory_order_relaxed);
}
kernel void bools(device atomic_bool* a, device const bool* v, uint i [[thread_position_in_grid]]) {
  atomic_fetch_or_explicit(&a[0], v[i], memory_order_relaxed);
  atomic_fetch_and_explicit(&a[1], v[i], memory_order_relaxed);
  atomic_fetch_xor_explicit(&a[2], v[i], memory_order_relaxed);
}
kernel void single_steps(device atomic_int* a, device int* out) {
  out[0] = atomic_load_explicit(a, memory_order_relaxed);
  atomic_store_explicit(a, 11, memory_order_relaxed);
  out[1] = atomic_exchange_explicit(a, 12, memory_order_relaxed);
  int expected = 5;
  out[2] = atomic_compare_exchange_weak_explicit(a, &expected, 13, memory_order_relaxed, memory_order_relaxed);
  out[3] = expected;
  out[4] = atomic_compare_exchange_weak_explicit(a, &expected, 13, memory_order_relaxed, memory_order_relaxed);
  out[5] = atomic_load_explicit(a, memory_order_relaxed);
  device atomic<float>* f = (device atomic<float>*)(a + 1);
  atomic_store_explicit(f, 2.5f, memory_order_relaxed);
  out[6] = int(atomic_exchange_explicit(f, 4.5f, memory_order_relaxed) * 10);
}
kernel void spin_lock(device atomic_uint* lock, device uint* counter, uint i [[thread_position_in_grid]]) {
  uint expected;
  do {
    expected = 0;
  } while (!atomic_compare_exchange_weak_explicit(lock, &expected, 1u, memory_order_relaxed, memory_order_relaxed));
  atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_device);
  counter[0] += 1;
  atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_device);
  atomic_store_explicit(lock, 0u, memory_order_relaxed);
}
kernel void histogram(device const uchar* in, device uint* bins, constant uint& n, uint t [[thread_index_in_threadgroup]],
                      uint group [[threadgroup_position_in_grid]], uint size [[threads_per_threadgroup]]) {
  threadgroup atomic_uint local[256];
  for (uint k = t; k < 256; k += size) atomic_store_explicit(&local[k], 0u, memory_order_relaxed);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint k = t; k < 1000 && group * 1000 + k < n; k += size)
    atomic_fetch_add_explicit(&local[in[group * 1000 + k]], 1u, memory_order_relaxed);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint k = t; k < 256; k += size)
    atomic_fetch_add_explicit((device atomic_uint*)&bins[k], atomic_load_explicit(&local[k], memory_order_relaxed), memory_order_relaxed);
}
"""
)


def launch(name, buffers, grid, group=256, **options):
    build(SOURCE).launch(name, buffers, grid, group, **options)


@pytest.mark.parametrize("name", list(NAMES))
@pytest.mark.parametrize("op", FETCH)
def test_fetch_and_modify(op, name, engine, several_threads):
    n = 100_000
    v = torch.randint(-(2**30), 2**30, (n,), dtype=torch.int32).view(NAMES[name])
    a = torch.tensor([-1 if op == "and" else 1000], dtype=torch.int32).view(NAMES[name])
    with np.errstate(over="ignore"):
        start, x = a.numpy().copy()[0], v.numpy()
        expected = {
            "add": lambda: start + x.sum(dtype=x.dtype),
            "sub": lambda: start - x.sum(dtype=x.dtype),
            "max": lambda: max(start, x.max()),
            "min": lambda: min(start, x.min()),
            "and": lambda: start & np.bitwise_and.reduce(x),
            "or": lambda: start | np.bitwise_or.reduce(x),
            "xor": lambda: start ^ np.bitwise_xor.reduce(x),
        }[op]()
    launch(f"fetch_{op}_{name}", [a, v], n, engine=engine)
    several_threads()
    assert a.numpy()[0] == expected


@pytest.mark.parametrize("name", list(NAMES))
def test_each_thread_sees_another_old_value(name, several_threads):
    a = torch.zeros(1, dtype=torch.int32)
    out = torch.zeros(200_000, dtype=torch.int32)
    launch(f"old_values_{name}", [a, out], 200_000)
    several_threads()
    assert torch.equal(out.sort().values, torch.arange(200_000, dtype=torch.int32))


def test_float_add_and_sub(several_threads):
    v = torch.randint(-100, 100, (100_000,)).float()
    a = torch.zeros(1)
    launch("float_sum", [a, v], 100_000)
    several_threads()
    assert a.item() == v.sum().item()


def test_64_bit_max_and_min(several_threads):
    v = torch.randint(-(2**63), 2**63 - 1, (100_000,))
    unsigned = v.numpy().view(np.uint64)
    a = torch.tensor([0, -1])
    launch("ulong_extremes", [a, v], 100_000)
    several_threads()
    assert a.numpy().view(np.uint64).tolist() == [unsigned.max(), unsigned.min()]


def test_bool():
    for v in (
        torch.zeros(100, dtype=torch.bool),
        torch.ones(100, dtype=torch.bool),
        torch.arange(101) == 50,
    ):
        a = torch.tensor([False, True, False])
        launch("bools", [a, v], len(v))
        assert a.tolist() == [v.any().item(), v.all().item(), bool(v.sum().item() % 2)]


def test_load_store_exchange_compare():
    a = torch.tensor([7, 0], dtype=torch.int32)
    out = torch.zeros(7, dtype=torch.int32)
    launch("single_steps", [a, out], 1)
    assert out.tolist() == [7, 11, 0, 12, 1, 13, 25]
    assert a[1:].view(torch.float32).item() == 4.5


def test_a_lock_excludes_other_threads(several_threads):
    lock, counter = torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    launch("spin_lock", [lock, counter], 200_000)
    several_threads()
    assert counter.item() == 200_000


@pytest.mark.parametrize("group", [32, 100, 256])
def test_threadgroup_atomics(group, several_threads):
    x = torch.randint(0, 256, (12_345,), dtype=torch.uint8)
    bins = torch.zeros(256, dtype=torch.int32)
    launch("histogram", [x, bins, torch.tensor([12_345], dtype=torch.int32)], 13 * group, group)
    several_threads()
    assert torch.equal(bins.long(), torch.bincount(x.int(), minlength=256))
