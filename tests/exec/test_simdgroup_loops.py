"""Loops that simdgroups run by themselves, with what is uniform in a simdgroup computed once: against fibers, for complete and
incomplete simdgroups, whole ones that diverge, and lanes that do."""

import pytest
from metalops.msl.source.preprocess import preprocess
from metalops.msl.targets.host.emit import emit

from .conftest import HEADER, assert_as_fibers, build, each_optimization
from .test_group_loops import LAUNCHES, PARAMETERS

# What stands in a kernel that reads x[i] into `uint v` and leaves `uint r` in out[i], and the values that are uniform in a
# simdgroup in its loops.
BODIES = {
    "a_running_maximum": ("""
        float most = -INFINITY, total = 0, mine = 0;
        for (uint k = group; k < 9; k += 3) {
          float score = v * 0.25f + k;
          score = simd_sum(score);
          float now = max(most, score);
          float factor, power;
          if (now == -INFINITY) {
            factor = 1;
            power = 0;
          } else {
            factor = exp((most - now) / 64);
            power = exp((score - now) / 64);
          }
          most = now;
          total = total * factor + power;
          mine = mine * factor + power * v;
        }
        r = as_type<uint>(most) ^ as_type<uint>(total) ^ as_type<uint>(mine);""",
        "group most total k score now factor power"),
    "simdgroups_that_take_no_part": ("""
        if (group != 1) {
          for (uint k = 0; k < 3 + group; ++k) { float s = exp(simd_sum(v) / -900.0f); r += uint(s * 1000) + k; }
        }""", "group r s"),
    "lanes_that_take_no_part": ("""
        if (v & 1) { for (uint k = group; k < 7; k += 2) { float s = exp(simd_sum(v) / -900.0f); r += uint(s * 1000) + k; } }""",
        "group r k s"),
    "a_break_of_the_simdgroup": ("""
        uint total = 0;
        for (uint k = 0; k < 12; ++k) {
          total += simd_sum(v & k) / 3;
          if (total > 90) break;
          if (total & 1) continue;
          r += total * k;
        }
        r += total;""", "r total"),
    "lanes_that_leave_a_loop": ("""
        uint total = 7;
        for (uint k = 0; k < 9; ++k) {
          if (k > v) break;
          uint own = simd_sum(v + k) / 3;
          if ((k + lane) % 4 == 1) continue;
          total += own;
          r += own * own;
        }
        r += total;""", "own"),
    "a_loop_that_lanes_run_unequally_often": ("""
        for (uint k = 0; k < v % 5; ++k) { uint s = simd_sum(v + k) / 3; if (lane == 3) r += 50; r += s * s; }""", "s"),
    "a_value_that_varies_in_the_second_round": ("""
        uint best = 1;
        for (uint round = 0; round < 3; ++round) {
          for (uint k = group; k < 4; ++k) { best = max(best, simd_max(v + k)) / 2 + 1; r += best; }
          best += round == 1 ? lane : round;
        }""", "group r best k"),
    "pointers": ("""
        device const uint* p = x + (i - t) + lane;
        device const uint* q = x;
        q += g * 0 + lane * 1;
        float total = 0;
        for (uint k = group; k * 32 + 32 <= size; ++k) {
          total += exp(simd_sum(*p & 3) / -64.0f);
          r += p[0] * 3 + q[0];
          p += 32;
          if (k == 2) --p;
        }
        r += as_type<uint>(total);
        if (size % 32 == 0 && group == 0) r += size > 32 ? p[-32] : 0;""", "group total k"),
    "a_pointer_whose_index_wraps": ("""
        device const uint* p = x + (i - lane);
        p += 4294967291u + lane;
        for (uint k = group; k < 5; ++k) { r += simd_max(v + k) / 3; if (lane >= 5) r += *p; }""", "group k"),
    "a_value_of_the_group_that_changes": ("""
        uint n = 3;
        for (uint k = 0; k < 4; ++k) { n += 2; uint m = simd_max(v & n) / (n - 4); r += m * m + n; }
        r += n;""", "r m"),
    "a_variable_that_is_several": ("""
        for (uint k = group; k < 6; k += 2) {
          uint a = v + k, b = v * k;
          r += a;
          a = simd_sum(a) / 2;
          r += a * 3;
          if (a > 100) { b += a; r ^= b; }
          a += k;
          for (uint j = 0; j < 3; ++j) { r += a * j; a += j; }
          b = simd_max(b) / 3;
          a = a + lane;
          r += a * b;
          a = simd_min(a) / 5;
          if (b & 1) r += a;
        }""", "group k b a"),
    "vectors_and_structs": ("""
        float4 sums = 0;
        for (uint k = 0; k < 3; ++k) {
          Pair pair = {1, k};
          pair.first = simd_sum(v) / 7;
          pair.second += pair.first;
          float4 parts = simd_sum(float4(v, lane, k, 1)) / 3;
          sums += parts * pair.second;
          sums.yz += sqrt(parts.x);
          r += pair.first * lane;
        }
        r += uint(sums.x + sums.y + sums.z) + uint(sums.w);""", "sums pair parts"),
    "conditions_of_the_simdgroup": ("""
        uint limit = 4;
        while (simd_any(v > limit)) {
          if (simd_all(v < 60) && limit > 9) r += 1000 / limit;
          else if (simd_ballot(v > 30).all()) { r += 5; } else r += simd_max(v) / limit;
          limit += simd_min(v) / 2 + 20;
        }
        do { limit = limit / 2; r += simd_sum(limit + v); } while (limit > 3);""", "limit"),
    "broadcasts": ("""
        for (uint k = group; k < 8; k += 3) {
          uint w = v + k, at = simd_min(w) & 7;
          uint a = simd_broadcast(w, 2) / 3, b = simd_shuffle(w * 3, at) / 3, c = simd_broadcast_first(w) / 3;
          uint d = simd_shuffle(w, lane ^ 1) / 3;
          r += a * 2 + b * 3 + c * 5 + d;
          if (v & 1) r += simd_broadcast_first(w * k) / 3;
        }""", "group k at a b c"),
    "chosen_operands": ("""
        for (uint k = group; k < 5; ++k) {
          uint a = lane < 9 ? simd_sum(v) / 3 : 7;
          uint b = k > 2 ? simd_max(v) / 3 : 7;
          uint c = simd_sum(simd_max(v) / (k + 1));
          uint d = v > 7 && simd_any(v == 3) ? 1000 : 0;
          r += a + b * 3 + c * 5 + d;
        }""", "group k c"),
    "rematerialised_values": ("""
        const uint row = group * 4 + 1;
        const uint other = lane + row;
        for (uint k = row; k < 20; k += 4) {
          const uint j = k - row;
          const uint own = other + j;
          uint s = simd_sum(v + own) / 3;
          r += s * j + own;
        }""", "group row k j s"),
    "branches_of_lanes": ("""
        for (uint k = group; k < 5; ++k) {
          float m = exp(simd_max(v) / -64.0f);
          if (lane < 7) {
            uint s = simd_sum(v) / 3;
            s += k;
            r += s;
            m += s;
          }
          if (lane == 9) { r += simd_sum(v) / 3 + 40; }
          if (i % 3 == 0) { r += uint(m * 50) + simd_sum(1u) / 2; } else { r += k; }
        }""", "group k s"),
    "memory_of_the_simdgroup": ("""
        threadgroup uint rows[64];
        rows[t & 63] = v;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        uint sum = 0;
        for (uint k = 0; k < 3; ++k) {
          uint mine = rows[group & 31] / 3;
          sum += mine + simd_max(v) / 5;
          simdgroup_barrier(mem_flags::mem_threadgroup);
          if (lane == 0 && group < 32) rows[32 + group] = sum;
          simdgroup_barrier(mem_flags::mem_threadgroup);
          r += rows[32 + (group & 31)] * k;
        }""", "group r sum mine"),
    "functions": ("r = running(v, group, lane) + running(lane, v & 1, lane) + running(v, 2, lane);", ""),
}  # fmt: skip
HELPERS = """
struct Pair { uint first, second; };
inline uint running(uint x, uint from, uint lane) {
  uint most = from, r = 0;
  for (uint k = from; k < 7; k += 2) { most = max(most, simd_max(x + k) / 3); r += most * lane; }
  return r + most;
}
"""
SOURCE = HELPERS + "".join(
    f"kernel void {name}(device const uint* x, device uint* out, {PARAMETERS}) {{\n"
    f"  uint v = x[i], r = 0;\n  {body}\n  out[i] = r;\n}}\n"
    for name, (body, _) in BODIES.items()
)


@pytest.mark.full
def test_they_have_group_loops_and_uniform_values():
    loops = emit(preprocess(HEADER + SOURCE)).group_loops
    assert {name: " ".join(how.of_simdgroups) for name, how in loops.items()} == {
        name: uniform for name, (_, uniform) in BODIES.items()
    }


@each_optimization
@pytest.mark.parametrize("name", BODIES)
def test_as_fibers(name, optimize):
    assert_as_fibers(SOURCE, name, LAUNCHES, optimize)
    assert build(SOURCE, optimize).kernel_table()


NEITHER = {
    "an_atomic_operation": """
        for (uint k = group; k < 5; ++k) {
          uint s = simd_sum(v) / 3;
          r += s + atomic_fetch_add_explicit(counter, s, memory_order_relaxed);
        }""",
    "an_atomic_operation_in_a_function": "for (uint k = group; k < 5; ++k) r += counted(counter, simd_sum(v) / 3);",
    "a_barrier": """
        for (uint k = 0; k < 5; ++k) { threadgroup_barrier(mem_flags::mem_none); r += simd_sum(v) / 3; }""",
    "a_return": "for (uint k = group; k < 5; ++k) { r += simd_sum(v) / 3; if (r > 50) return; }",
    "nothing_to_save": "for (uint k = 0; k < 5; ++k) r += simd_sum(v + k);",
}


@pytest.mark.parametrize("name", NEITHER)
def test_loops_that_all_threads_run_together(name):
    source = f"""
    inline uint counted(device atomic_uint* counter, uint x) {{
      return atomic_fetch_add_explicit(counter, x, memory_order_relaxed);
    }}
    kernel void k(device const uint* x, device uint* out, device atomic_uint* counter, {PARAMETERS}) {{
      uint v = x[i], r = 0;
      {NEITHER[name]}
      out[i] = r;
    }}
    """
    emitted = emit(preprocess(HEADER + source))
    assert emitted.engines["k"] == ("group", None)
    assert emitted.group_loops["k"].of_simdgroups == []
    assert "each_simdgroup" not in emitted.text
