"""Simdgroup operations that not all lanes reach: those at the same call take part, and the simdgroup comes together again."""

import pytest
import torch

from .conftest import build, engines_of

SOURCE = """
#define PARAMETERS uint i [[thread_position_in_grid]], uint lane [[thread_index_in_simdgroup]]

kernel void both_branches(device uint* out, PARAMETERS) {
  uint r;
  if (lane & 1) {
    r = simd_sum(1u);
  } else {
    r = 100 * simd_sum(1u);
  }
  if (lane < 7) r += 1000 * simd_sum(1u);
  out[i] = r + 100000 * simd_sum(1u);
}
kernel void early_return(device uint* out, PARAMETERS) {
  out[i] = 1000;
  if (lane % 3 == 0) return;
  out[i] = simd_sum(1u);
}
kernel void loop_of_different_length(device uint* out, PARAMETERS) {
  uint r = 0;
  for (uint k = 0; k < lane; ++k) r += simd_sum(1u);
  out[i] = r + 100000 * simd_sum(1u);
}
kernel void broken_off_loop(device uint* out, PARAMETERS) {
  uint r = 0;
  for (uint k = 0; k < 8; ++k) {
    r = r * 10 + simd_sum(1u) % 10;
    if (k >= lane) break;
  }
  out[i] = r;
}
kernel void nested(device uint* out, PARAMETERS) {
  uint r = 0;
  if (lane < 16) {
    if (lane < 8) {
      r = simd_sum(1u);
    } else {
      r = 100 + simd_sum(1u);
    }
    r += 1000 * simd_sum(1u);
  }
  r += 100000 * simd_sum(1u);
  out[i] = r;
}
template <typename T>
T same_call(T v) { return simd_sum(v); }
kernel void two_instantiations(device float* out, PARAMETERS) {
  if (lane & 1) out[i] = same_call(0.5f);
  else out[i] = float(same_call(2));
}
kernel void some_wait_at_a_barrier(device uint* out, PARAMETERS, uint t [[thread_index_in_threadgroup]]) {
  threadgroup uint shared[64];
  uint r = 0;
  if (t < 10) r = simd_sum(1u);
  shared[t] = r;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[i] = shared[t ^ 1];
}
inline uint count_lanes() { return simd_sum(1u); }
kernel void helper_above_the_branch(device uint* out, PARAMETERS) {
  uint r = 0;
  if (lane < 16) r = simd_sum(1u);
  out[i] = r * 100 + count_lanes();
}
kernel void branch_in_a_loop(device uint* out, PARAMETERS) {
  uint r = 0;
  for (uint k = 0; k < 3; ++k) {
    r = r * 100 + simd_sum(1u);
    if (lane < 16) r += simd_sum(1u);
  }
  out[i] = r;
}
kernel void continue_before_an_operation(device uint* out, PARAMETERS) {
  uint r = 0;
  for (uint k = 0; k < 3; ++k) {
    r = r * 100 + simd_sum(1u);
    if (lane % 4 == k) continue;
    r += simd_sum(1u);
  }
  out[i] = r;
}
kernel void operation_in_an_operand(device uint* out, PARAMETERS) {
  uint r = lane < 16 ? simd_sum(simd_max(lane)) : simd_sum(simd_min(lane));
  out[i] = r + 1000 * count_lanes();
}
struct Counter {
  uint operator()(uint from) const;
};
inline uint Counter::operator()(uint from) const { return from + simd_sum(1u); }
kernel void functor_in_its_own_argument(device uint* out, PARAMETERS) {
  Counter count;
  uint r = 0;
  if (lane & 1) r = count(1000);
  out[i] = r + count(lane < 8 ? count(0) : 0);
}
struct Pair {
  uint a, b;
};
inline Pair operator+(Pair x, Pair y) { return {x.a + y.a + simd_sum(1u), x.b + y.b}; }
kernel void free_operator(device uint* out, PARAMETERS) {
  Pair p{lane, 1};
  for (uint k = 0; k < (lane & 3); ++k) p = p + p;
  out[i] = (p + p).a - 2 * p.a;
}
struct Counted {
  uint count, lowest;
  Counted(uint from) : count(from + simd_sum(1u)) { lowest = simd_min(from); }
};
kernel void constructor_above_the_branch(device uint* out, PARAMETERS) {
  uint r = 0;
  if (lane & 1) {
    Counted here(100);
    r = here.count;
  }
  Counted all(lane & 1), braced{lane};
  r += 1000 * all.count + Counted(lane).lowest + Counted{lane}.lowest;
  out[i] = r + 100000 * all.lowest + 1000000 * braced.count;
}
struct Two {
  uint a, b;
  Two(uint x, uint y) : a(x), b(y) {}
};
inline uint lowest(uint x) { return simd_min(x); }
kernel void operands_of_a_constructor(device uint* out, PARAMETERS) {
  uint r = 0;
  Two t(lane < 16 ? simd_sum(1u) : 0, count_lanes() + (lane < 8 ? simd_sum(1u) : 0)), u(lane, r);
  uint single(lowest(lane)), named(simd_max(lane));
  out[i] = t.a + 100 * t.b + 10000 * u.a + 1000000 * single + 1000000 * named;
}
kernel void names_of_its_own(device uint* out, PARAMETERS) {
  auto simd_sum = [](uint x) { return x; };
  uint simd_max = 2;
  out[i] = simd_sum(1u) + simd_max;
}
kernel void active_lanes(device uint* out, PARAMETERS) {
  out[i * 2] = 0;
  out[i * 2 + 1] = 0;
  if (lane >= 4 && lane < 9) {
    out[i * 2] = uint(ulong(simd_vote(simd_active_threads_mask())));
    out[i * 2 + 1] = simd_is_first() + 10 * simd_broadcast_first(lane) + 1000 * simd_all(lane > 3);
  }
}
"""


def run(name, threads=64, group=64, width=1, dtype=torch.int32):
    """The result, the same on every engine that takes the kernel."""
    results = []
    for engine in engines_of(build(SOURCE), name):
        out = torch.full((threads, width), -1, dtype=dtype)
        build(SOURCE).launch(name, [out], threads, group, engine=engine)
        results.append(out if width > 1 else out[:, 0])
    assert all(torch.equal(result, results[0]) for result in results)
    return results[0]


def lanes(threads=64):
    return torch.arange(threads) % 32


@pytest.mark.full
def test_each_branch_counts_its_own_lanes():
    lane = lanes()
    expected = torch.where(lane % 2 == 1, 16, 1600) + torch.where(lane < 7, 7000, 0) + 3200000
    assert torch.equal(run("both_branches").long(), expected)


def test_lanes_that_returned_take_no_part():
    lane = lanes()
    assert torch.equal(run("early_return").long(), torch.where(lane % 3 == 0, 1000, 21))


def test_lanes_leave_a_loop_one_by_one():
    lane = lanes()
    # Round k has the lanes above k.
    expected = torch.tensor([sum(31 - k for k in range(n)) for n in lane.tolist()]) + 3200000
    assert torch.equal(run("loop_of_different_length").long(), expected)


def test_break():
    counts = [(32 - k) % 10 for k in range(8)]
    expected = []
    for lane in lanes().tolist():
        r = 0
        for k in range(min(lane + 1, 8)):
            r = r * 10 + counts[k]
        expected.append(r)
    assert run("broken_off_loop").tolist() == expected


def test_nested_branches_come_together_at_each_level():
    lane = lanes()
    expected = torch.where(lane < 8, 8, 108) + 16000
    expected = torch.where(lane < 16, expected, 0) + 3200000
    assert torch.equal(run("nested").long(), expected)


def test_one_call_in_two_instantiations_of_a_template_is_two_operations():
    lane = lanes()
    assert torch.equal(
        run("two_instantiations", dtype=torch.float32), torch.where(lane % 2 == 1, 8.0, 32.0)
    )


def test_a_barrier_waits_for_lanes_in_a_simdgroup_operation():
    t = torch.arange(64)
    expected = torch.where((t ^ 1) < 10, 10, 0)
    assert torch.equal(run("some_wait_at_a_barrier").long(), expected)


def test_partial_simdgroup_and_divergence():
    lane = lanes(40)
    size = torch.where(torch.arange(40) < 32, 32, 8)
    odd = torch.where(lane % 2 == 1, size // 2, 100 * (size // 2))
    expected = odd + torch.where(lane < 7, 7000, 0) + 100000 * size
    assert torch.equal(run("both_branches", 40, 40).long(), expected)


def test_votes_among_active_lanes():
    out = run("active_lanes", 32, 32, width=2)
    for lane in range(32):
        if 4 <= lane < 9:
            assert out[lane].tolist() == [0b111110000, (lane == 4) + 40 + 1000]
        else:
            assert out[lane].tolist() == [0, 0]


def test_a_helper_that_stands_above_the_branch():
    assert torch.equal(run("helper_above_the_branch"), torch.where(lanes() < 16, 1632, 32).int())


def test_a_branch_in_a_loop():
    assert torch.equal(run("branch_in_a_loop"), torch.where(lanes() < 16, 484848, 323232).int())


def test_continue_before_an_operation():
    expected = [
        sum((32 + 24 * (lane % 4 != k)) * 100 ** (2 - k) for k in range(3)) for lane in lanes()
    ]
    assert run("continue_before_an_operation").tolist() == expected


def test_an_operation_in_the_operand_of_another():
    expected = torch.where(lanes() < 16, 16 * 15, 16 * 16) + 32000
    assert torch.equal(run("operation_in_an_operand"), expected.int())


def test_a_functor_in_its_own_argument():
    lane = lanes()
    expected = torch.where(lane % 2 == 1, 1016, 0) + torch.where(lane < 8, 8, 0) + 32
    assert torch.equal(run("functor_in_its_own_argument"), expected.int())


def test_constructors():
    lane = lanes()
    count = torch.where(lane % 2 == 1, 116, 0) + 1000 * (lane % 2 + 32)
    assert torch.equal(run("constructor_above_the_branch").long(), count + 1000000 * (lane + 32))


def test_operands_of_a_constructor():
    lane = lanes()
    first = torch.where(lane < 16, 16, 0)
    second = 32 + torch.where(lane < 8, 8, 0)
    expected = first + 100 * second + 10000 * lane + 31000000
    assert torch.equal(run("operands_of_a_constructor").long(), expected)


def test_variables_with_the_names_of_operations():
    assert run("names_of_its_own").tolist() == [3] * 64


@pytest.mark.nightly
def test_long_expressions():
    source = (
        "inline uint f(uint x) { return simd_sum(x); }\n"
        "kernel void k(device uint* out, uint lane [[thread_index_in_simdgroup]]) "
        f"{{ out[lane] = {' + '.join(['f(1)'] * 60)} + {' + '.join(['lane'] * 2000)}; }}"
    )
    out = torch.zeros(32, dtype=torch.int32)
    build(source).launch("k", [out], 32, 32)
    assert torch.equal(out, 60 * 32 + 2000 * torch.arange(32, dtype=torch.int32))


@pytest.mark.parametrize("what", ["operator uint() const", "~Counted()"])
def test_what_is_run_without_a_word_has_no_operations(what):
    body = "return simd_sum(1u);" if "uint" in what else "simd_sum(1u);"
    source = (
        f"struct Counted {{ uint v; {what} {{ {body} }} }};\n"
        "kernel void k(device uint* out) { Counted c{1}; out[0] = c.v; }"
    )
    with pytest.raises(
        SyntaxError, match="(conversion|destructor) cannot have simdgroup operations"
    ):
        build(source)


def test_an_operator_outside_of_any_class():
    assert run("free_operator").tolist() == [32] * 64


def test_the_reduction_of_torch_after_a_branch():
    source = """
    #include <c10/metal/reduction_utils.h>
    kernel void k(device float* out, uint t [[thread_position_in_threadgroup]], uint n [[threads_per_threadgroup]]) {
      threadgroup float shared[32];
      float v = 1;
      if (t < 16) v += simd_sum(0.0f);
      out[t] = c10::metal::threadgroup_sum(shared, v, t, n);
    }
    """
    for threads in (32, 64):
        out = torch.zeros(threads)
        build(source).launch("k", [out], threads, threads)
        assert torch.equal(out, torch.full((threads,), float(threads)))


def test_calls_and_loops_nested_too_deeply_say_so():
    calls = "".join(
        f"inline uint f{n}(uint x) {{ return f{n - 1}(x) + 1; }}\n" for n in range(1, 70)
    )
    source = (
        f"inline uint f0(uint x) {{ return simd_sum(x); }}\n{calls}"
        "kernel void k(device uint* out) { out[0] = f69(1); }"
    )
    with pytest.raises(RuntimeError, match="kernel 'k': calls and loops .* nested too deeply"):
        build(source).launch("k", [torch.zeros(1, dtype=torch.int32)], 1, 1, engine="fiber")
