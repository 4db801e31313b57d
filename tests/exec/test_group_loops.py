"""Kernels that are run as loops over the threads of a group: each construct that is cut where threads synchronise, against
fibers, for whole and partial groups of one and several dimensions, with each compiler that there is."""

import re

import pytest
import torch
from metalops import _host, msl
from metalops.msl.source.preprocess import preprocess
from metalops.msl.targets.host.emit import emit
from metalops.msl.targets.host.group.form import Form

from .conftest import (
    HEADER,
    assert_as_fibers,
    assert_left_to_fibers,
    build,
    each_optimization,
    engines_of,
)

PARAMETERS = """uint i [[thread_position_in_grid]], uint t [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]], uint group [[simdgroup_index_in_threadgroup]],
    uint size [[threads_per_threadgroup]], uint g [[threadgroup_position_in_grid]]"""

# What stands in a kernel that reads x[i] into `uint v` and leaves `uint r` in out[i].
BODIES = {
    "uniform_values": "uint n = size / 2; n += 3; r = simd_sum(v) + n;",
    "a_value_that_differs_after_a_loop": """
        uint n = 0;
        for (uint k = 0; k < v % 5; ++k) { n += simd_max(v) & 3; }
        r = n;""",
    "loops_that_begin_with_an_assignment": """
        uint stride = 1, last, own, n = 0;
        while (stride < size) stride <<= 1;
        for (stride >>= 1, last = 2; stride > 0; stride >>= 1) r += simd_sum(v & stride) + last;
        for (own = v; own < 9; ++own) r += own * 3;
        for (own = lane; own < 40; own += simd_max(own & 3) + 1) r += simd_sum(own);
        for (stride = 3; stride != 0; --stride) { if (v > 4) { r += simd_sum(1u) * stride; } }
        for (own += simd_sum(v); n < 2; ++n) r += simd_max(own + n);
        if (v & 1) { for (n = 0; n < v % 4; ++n) r ^= simd_sum(n + own); }
        for (stride++; stride < 6; stride++) { threadgroup_barrier(mem_flags::mem_none); r += stride; }
        for ((void)own; n < 8; ++n) r += simd_sum(n);""",
    "private_arrays": """
        uint kept[4] = {v, v + 1};
        for (uint k = 0; k < 4; ++k) kept[k] += simd_sum(kept[k]);
        r = kept[v & 3] + kept[0];""",
    "arrays_of_arrays": """
        uint kept[3][4] = {{v, v + 1}, {2, lane}}, other[2][2];
        const uint fixed[2][3] = {{v, 1, 2}, {3, v, 5}};
        for (uint k = 0; k < size / 8 + 2; ++k) {
          kept[k % 3][k & 3] += k * kept[(k + 1) % 3][k & 3] + fixed[k & 1][k % 3];
          other[k & 1][0] = other[k & 1][1] = k + v;
        }
        simdgroup_barrier(mem_flags::mem_none);
        for (uint k = 0; k < 3; ++k) r += simd_sum(kept[k][1]) + kept[k][v & 3] * fixed[lane & 1][k];
        r += other[v & 1][lane & 1];""",
    "arrays_of_vectors_and_structs": """
        uint4 kept[2] = {uint4(v), uint4(lane)};
        Pair pairs[3] = {{1, 2}, {v, 3}};
        for (uint k = 0; k < 2; ++k) {
          kept[k] += simd_sum(kept[k]);
          kept[k].yz += kept[1 - k].x;
          kept[k][3] *= 3;
          pairs[k].second += simd_max(pairs[k].first);
          pairs[k + 1].swap();
          pairs[k].first = pairs[v & 1].sum();
        }
        r = kept[0].x + kept[v & 1].y + kept[1].w + pairs[0].second * 7 + pairs[2].first + pairs[lane & 1].sum();""",
    "memory_of_a_thread_by_two_names": """
        uint kept[2][2] = {{v}}, more[2][2] = {{v, 1}, {2, v}};
        uint4 parts = v;
        thread uint& second = kept[1][0];
        second += simd_sum(second + v);
        for (uint y = 0; y < 2; ++y) { for (uint x = 0; x < 2; ++x) second += kept[y][x] + x; }
        simdgroup_barrier(mem_flags::mem_none);
        parts += simd_sum(second);
        parts[v & 1] += 3;
        more[0][v & 1] += 3;
        r = more[0][0] + parts.x;
        more[0][0] = 7;
        parts.x = lane;
        r += more[0][1] * 3 + parts[lane & 1] + simd_sum(more[0][lane & 1] + parts.z) + kept[1][0];""",
    "arrays_with_masks": """
        uint kept[2] = {v, lane}, total[4] = {};
        if (lane & 1) kept[0] += simd_sum(kept[1]);
        for (uint k = 0; k < v % 6; ++k) { kept[k & 1] += simd_sum(k); total[k & 3] += kept[0]; }
        if (v == 9) { out[i] = kept[0]; return; }
        kept[v & 1] += simd_max(kept[0]);
        r = kept[0] + 3 * kept[1] + total[0] + total[v & 3];""",
    "arrays_in_loops_of_a_thread": """
        uint sums[4][4] = {}, large[160] = {}, first[4];
        for (uint k = 0; k < 40; k += size) {
          for (uint i = 0; i < 3; ++i) {
            for (uint y = 0; y < 4; ++y) {
              if (y == v % 7) break;
              for (uint x = 0; x < 4; ++x) sums[y][x] += v * y + i * x + large[i * y + x];
              large[y * 30 + i] += sums[y][i];
            }
          }
          r += simd_sum(sums[1][2]);
        }
        for (uint y = 0; y < 4; ++y) {
          first[y] = v;
          for (uint x = 0; x < 4; ++x) first[y] += sums[y][x] * large[x * 30 + y];
        }
        r += simd_max(first[3]) + first[v & 3];""",
    "arrays_that_are_passed": """
        uint whole[3] = {v, 2, lane}, one[2] = {v, 1}, counted[4] = {1, v}, held[2] = {v, 3}, taken[2][2] = {{v}};
        add_to_all(whole, 3, v);
        add_sum(one[1], lane & 1);
        r = add_sum(one[v & 1], false) + total_of(&counted[1], 3) + total_of(*taken + 1, 2) + sizeof(held);
        thread uint* at = held;
        at[1] += simd_sum(at[0]);
        thread uint& second = taken[1][0];
        second += simd_sum(second + v);
        auto look = [&] { return held[1] + counted[3]; };
        auto copied = [=] { return one[1] + held[0]; };
        one[1] = 7;
        r += look() + copied();
        for (uint y = 0; y < 2; ++y) { for (uint x = 0; x < 2; ++x) second += taken[y][x] + x; }
        simdgroup_barrier(mem_flags::mem_none);
        r += simd_sum(whole[1]) + whole[2] + one[0] * 3 + taken[1][0] + held[v & 1];""",
    "references": """
        uint a = v, b = 2 * v;
        thread uint& chosen = lane & 1 ? a : b;
        chosen += simd_sum(1u);
        r = a * 3 + b;""",
    "types_that_are_deduced": """
        auto a = v * 2.5f;
        const auto b = simd_sum(a), c = a + 1;
        r = uint(b + c);""",
    "choices": """
        r = (lane < 7 ? simd_sum(v) : simd_max(v)) + (lane & 1 && simd_any(v == 3) ? 1000 : 0)
            + (lane < 3 || simd_all(v < 60) ? 5000 : 0);""",
    "switches": """
        switch (v % 5) {
          case 0: r = simd_sum(1u); break;
          case 1: r = 7;
          case 2: r += simd_sum(10u); break;
          default: r = simd_sum(100u);
        }""",
    "a_switch_of_the_group": """
        switch (g) { case 0: r = simd_sum(v); break; case 1: r = simd_max(v); default: r += simd_min(v); }""",
    "break_and_continue": """
        for (uint k = 0; k < 9; ++k) {
          if ((k + lane) % 4 == 1) continue;
          r += simd_sum(k);
          if (k > v) break;
        }""",
    "loops_of_other_kinds": """
        uint k = v % 3;
        while (k < 5) { r += simd_sum(1u); ++k; }
        do { r += 100 * simd_sum(1u); } while (k-- > lane);""",
    "a_condition_in_which_threads_meet": "while (simd_sum(r) < 40) r += 1 + (v & 1);",
    "early_returns": """
        if (v % 7 == 0) { out[i] = 5; return; }
        r = simd_sum(v);
        for (uint k = 0; k < 4; ++k) { if (k > v % 6) { out[i] = r; return; } r += simd_sum(1u); }""",
    "functions": "r = helper(v, lane) + helper(3u, size);",
    "functions_that_write": "uint more = v; r = add_sum(more, lane & 1); r += more;",
    "templates": "r = twice<uint>(v) + uint(twice(float(v)));",
    "members": "Counter counter{v}; r = counter.add(2u) + counter.add(lane) + counter.value;",
    "members_of_the_object": "Counter counter{v}; r = counter.add_twice(lane) + counter.value;",
    "static_members": "r = Counter::total(v);",
    "functors": "Counter counter{1u}; r = counter(v);",
    "threadgroup_memory": """
        threadgroup uint shared[1024];
        shared[t] = v;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint k = 1; k < 8; k *= 2) {
          uint other = t >= k ? shared[t - k] : 0;
          threadgroup_barrier(mem_flags::mem_threadgroup);
          shared[t] += other;
          threadgroup_barrier(mem_flags::mem_threadgroup);
        }
        r = shared[t] + shared[0];""",
    "strided_loops": """
        threadgroup uint shared[1024];
        shared[t] = v;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint k = t; k < 1000; k += size) r += k % 7 + shared[k % size];
        for (uint k = 2 * t; k < 300; k += 64) r += k;""",
    "strided_indices_that_wrap": """
        threadgroup uint shared[1024];
        for (uint k = t; k < 1024; k += size) shared[k] = 7 * k;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        const uint back = 0u - 8u * (g + 1);
        threadgroup uint* middle = shared + 500;
        for (uint k = t; k < 300; k += size) {
          r += k >= 3 ? shared[k - 3u] : 1;
          r += k < 8 * (g + 1) ? 5 : shared[back + k];
        }
        for (int k = t; k < 300; k += size) r += 3 * middle[k - 400];
        for (uint k = t; k < 300; k += size) {
          auto sum = [&](uint j) { return shared[j + 2] + shared[k + 1]; };
          r += sum(k);
        }""",
    "strided_variables_that_wrap": """
        r = simd_sum(v);
        for (ushort k = ushort(t + 64990); k < 65000; k += 600) r += k;
        for (uint k = t; k < size * 1.5f; k += size) r += k;
        uint c = v;
        for (uint k = c++ + lane; k < 90; k += 16) r += k;
        for (uint k = numbered(c, lane, 0, t) + t; k < 5000; k += 100) r += c;
        for (uint k = t; k < 300; k += size) r += 3 * k;
        r += c;""",
    "threads_by_number": """
        if (lane == 3) r += 1 + v;
        if (group == 1) r += 100 * simd_sum(v);
        if (t == 5) r += 1000;
        if (lane == 40 || v == 70) r += 1;
        if (lane == 40) r += 2;
        if (t == 5000) r += 3;
        if (v & 1) {
          if (lane == 3) r += 10 + simd_sum(2u);
          if (group == 0) r += simd_sum(3u);
          if (t == 7) r += simd_max(v);
        }
        r += numbered(v, lane, group, t);""",
    "barriers_that_all_reach_as_it_happens": """
        threadgroup uint shared[1024];
        shared[t] = v;
        for (uint k = 0; k < (v < 1000 ? 3 : 4); ++k) {
          threadgroup_barrier(mem_flags::mem_threadgroup);
          uint other = shared[(t + 1) % size];
          if (other < 100000) {
            threadgroup_barrier(mem_flags::mem_threadgroup);
            shared[t] += other;
          } else {
            threadgroup_barrier(mem_flags::mem_threadgroup);
          }
        }
        switch (v / 1000) {
          case 0: threadgroup_barrier(mem_flags::mem_threadgroup); r = shared[t ^ (t % 2 < size % 2 ? 0 : 1)];
        }""",
    "barriers_behind_returns": """
        threadgroup uint shared[1024];
        shared[t] = v;
        if (v % 7 == 0) { out[i] = 5; return; }
        if (v < 1000) { threadgroup_barrier(mem_flags::mem_threadgroup); r = shared[t / 2]; }
        r += exchange(shared, t, r, v < 1000);""",
    "barriers_that_some_do_not_come_to": """
        if (v & 1) { threadgroup_barrier(mem_flags::mem_none); r = v; } else { r = 2 * v; }
        r += exchanged_early(v);""",
    "functors_of_an_unknown_class": "r = apply(Smallest{v}, v) + apply(Swapped{2u}, lane) + apply(Total(), v); Nothing nothing; nothing(v);",
    "functors_that_call_themselves_otherwise": "Total total; r = total(v, 3u);",
    "constants_in_what_is_passed": "Fixed fixed{v}; r = apply(fixed, simd_sum(v));",
    "members_that_are_constant_expressions": "Tile tile; tile.fill(v); r = tile.sum();",
    "the_type_of_a_variable": """
        Tile tile;
        tile.fill(simd_sum(v));
        threadgroup_barrier(mem_flags::mem_none);
        for (uint k = 0; k < decltype(tile)::kSize; ++k) r += tile.at(k) + simd_max(k);""",
    "a_pointer_that_is_passed_by_reference": """
        const device uint* here = x + g * size;
        advance(here, size - 1);
        r = simd_sum(*here) + uint(here - x);""",
    "arrays_that_are_passed_by_reference": "uint kept[3] = {v, lane, 7}; r = sum_all(kept);",
    "arrays_of_a_constant_size": """
        const uint count = 3;
        uint kept[count];
        for (uint k = 0; k < count; ++k) kept[k] = simd_sum(v + k);
        for (uint k = 0; k < 3; ++k) r += kept[k] * (k + 1);""",
    "memory_that_is_passed_by_reference": """
        threadgroup uint total, most;
        keep_first(total, most, t, v);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        r = total + 100 * most;""",
    "memory_that_all_write": """
        threadgroup uint same;
        same = size;
        uint n = same;
        r = simd_sum(v) + n;""",
    "the_type_of_a_variable_in_a_choice": """
        auto half_of = v * 0.5f;
        auto sum = simd_sum(half_of);
        auto chosen = sum > 40.0f ? half_of : static_cast<decltype(half_of)>(v);
        r = uint(simd_max(chosen)) + uint(chosen);""",
    "what_a_function_refers_to": "Tile tile; tile.fill(v); add_sum(tile.at(1), lane & 1); r = tile.at(0) + 7 * tile.at(1);",
    "what_is_constructed": """
        uint before = v + 2 * group;
        Constructed pair(before, group), other(lane, size);
        r = simd_sum(pair.a + other.a) + pair.b + 100 * other.b;""",
    "what_is_computed_again_in_the_midst": """
        uint first = v * 3;
        const uint place = 8 * group + lane;
        uint second = first + place;
        r = simd_sum(second) + second;""",
    "defaults": "r = scaled(v) + scaled(v, 2u) + scaled(v, lane);",
    "choices_of_members": """
        const uint2 both = {size, g};
        const uint chosen = v < 9 ? both.x : both.y;
        r = simd_sum(chosen) + chosen;""",
    "shuffles": """
        r = simd_shuffle(v, (lane + 3) % 4) + 3 * simd_shuffle_xor(v, 1) + 5 * simd_shuffle_down(v, 2)
            + 7 * simd_shuffle_up(v, 1) + simd_broadcast(v, 0) + simd_prefix_exclusive_sum(v)
            + quad_sum(v) + quad_shuffle_xor(v, 1) + uint(ulong(simd_ballot(v & 1)))
            + (simd_is_first() ? 9 : 0) + simd_broadcast_first(v) + simd_shuffle_rotate_down(v, 1);""",
    "the_name_of_the_function": "r = simd_sum(uint(__func__[4])) + sizeof(__func__);",
    "matrices": """
        threadgroup float shared[2048], made[2048];
        for (uint k = t; k < 2048; k += size) shared[k] = made[k] = k % 7;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        shared[2 * t] = v % 8;
        shared[2 * t + 1] = (v + lane) % 5;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        simdgroup_float8x8 a, sums[2][2];
        simdgroup_half8x8 b[2];
        simdgroup_bfloat8x8 c = make_filled_simdgroup_matrix<bfloat, 8, 8>(bfloat(lane));
        for (uint y = 0; y < 2; ++y) {
          for (uint x = 0; x < 2; ++x) sums[y][x] = make_filled_simdgroup_matrix<float, 8, 8>(y + lane * x);
        }
        simdgroup_load(a, shared + group * 64);
        simdgroup_load(b[0], shared + group * 64, 8, ulong2(0), true);
        simdgroup_load(b[1], shared, 4, ulong2(1, group));
        b[1].thread_elements()[1] += lane % 3;
        for (uint k = 0; k < 3; ++k) {
          for (uint y = 0; y < 2; ++y) {
            for (uint x = 0; x < 2; ++x) {
              simdgroup_multiply_accumulate(sums[y][x], y == 0 ? b[0] : b[1], b[x], sums[y][x]);
              simdgroup_multiply_accumulate(sums[x][y], a, c, sums[y][x]);
            }
          }
        }
        for (uint y = 0; y < 2; ++y) {
          for (uint x = 0; x < 2; ++x) sums[y][x].thread_elements() *= float(1 + lane % 2);
        }
        simdgroup_multiply(c, sums[1][0], a);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        simdgroup_store(sums[0][v % 1], made + group * 64, 8, ulong2(0), group == 1);
        simdgroup_store(c, shared + group * 64, 8);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        r = uint(made[2 * t]) + uint(shared[2 * t + 1]) * 3 + uint(sums[1][1].thread_elements()[lane & 1]) * 5;""",
    "matrices_of_some_simdgroups": """
        threadgroup float shared[2048];
        for (uint k = t; k < 2048; k += size) shared[k] = k % 7;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        shared[2 * t] = v % 8;
        shared[2 * t + 1] = lane % 5;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        simdgroup_float8x8 a[2] = {simdgroup_float8x8(2), simdgroup_float8x8(3)};
        if (group & 1) {
          simdgroup_load(a[0], shared + group * 64);
          simdgroup_multiply_accumulate(a[1], a[0], a[1], a[0]);
        }
        if (lane < 20) simdgroup_load(a[0], shared + group * 64 + (lane & 1));
        if (v & 1) simdgroup_store(a[0], shared + group * 64);
        simdgroup_barrier(mem_flags::mem_threadgroup);
        if (group == 0) return;
        simdgroup_multiply(a[1], a[1], a[0]);
        r = uint(a[1].thread_elements()[0]) + uint(shared[2 * t + 1]);""",
    "products_of_matrices": """
        threadgroup float shared[2048];
        for (uint k = t; k < 2048; k += size) shared[k] = k % 7;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        simdgroup_float8x8 a, b, c;
        simdgroup_load(a, shared + group * 64);
        simdgroup_load(b, shared + 8);
        c = a * b;
        simdgroup_float8x8 d = b * c * a, many[2] = {a * b, d};
        many[1] = many[0] * many[v & 1 ? 0 : 0];
        if (group & 1) many[0] = a * product(a, b);
        Tiles tiles = {a, b};
        auto copy = tiles.a;
        auto last = copy * tiles.b;
        r = uint(c.thread_elements()[0] + d.thread_elements()[1] + last.thread_elements()[1]) % 1000;
        r = r * 7 + uint(many[0].thread_elements()[0] + many[1].thread_elements()[1]) % 1000;""",
    "vectors": "uint2 w = simd_sum(uint2(v, lane)); r = w.x + 3 * w.y;",
}
HELPERS = """
struct Pair {
  uint first, second;
  uint sum() const { return first + 2 * second; }
  void swap() { uint kept = first; first = second; second = kept; }
};
inline void add_to_all(thread uint* x, uint n, uint more) { for (uint k = 0; k < n; ++k) x[k] += more; }
inline uint total_of(thread const uint* x, uint n) { uint sum = 0; while (n-- > 0) sum += x[n]; return sum; }
inline uint helper(uint a, uint b) { if (a > 20) return simd_sum(b); return simd_max(a) + b; }
inline uint add_sum(thread uint& x, bool doubled) {
  const uint before = x;
  x += simd_sum(x);
  if (doubled) x *= 2;
  return before;
}
inline uint counted(uint n, uint group) { return simd_sum(n == 0 ? group : 1u); }
inline uint numbered(uint x, ushort lane, uint group, uint t) {
  uint r = 0;
  if (lane == 3) r += simd_sum(1u) + x;
  if (group == 1) r += 100 * simd_sum(x);
  if (t == 6) r += 1000;
  r += counted(lane, group) + counted(x, lane);
  t += simd_max(lane);
  if (t == 40) r += 10000;
  return r + t;
}
template <typename T> T twice(T x) { x = simd_sum(x) * 2; return x + 1; }
struct Counter {
  uint value;
  uint add(uint more) { value += simd_sum(more); return this->value & 255; }
  uint add_twice(uint more) { return this->add(more) * 3 + add(more + 1); }
  static uint total(uint x) { return simd_sum(x) * 2; }
  uint operator()(uint x) const { return simd_max(x + value); }
};
inline uint exchange(threadgroup uint* shared, uint t, uint x, bool meet) {
  if (!meet) return 0;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  shared[t] = x;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  return shared[t];
}
inline uint exchanged_early(uint x) {
  if (x % 2 == 0) return 3;
  threadgroup_barrier(mem_flags::mem_none);
  return simd_sum(x);
}
struct Smallest {
  uint most;
  uint operator()(uint x) { return x < most ? x : most; }
};
struct Swapped {
  uint scale;
  uint operator()(uint x) { threadgroup_barrier(mem_flags::mem_none); return simd_shuffle_xor(x, 1) * scale; }
};
struct Total {
  uint operator()(uint x) { return simd_sum(x); }
  uint operator()(uint x, uint y) { return this->operator()(x) * y; }
};
struct Nothing {
  void operator()(uint x) {}
};
struct Tile {
  static constant constexpr uint kSize = 3;
  uint elements[kSize];
  constexpr thread uint& at(uint k) { return elements[k]; }
  void fill(uint x) { for (uint k = 0; k < kSize; ++k) at(k) = x + k; }
  uint sum() { for (uint k = 0; k < kSize; ++k) { at(k) = simd_sum(at(k)); at(k) = operator()(at(k)); } return at(0) + at(2); }
  uint operator()(uint x) { return x + 1; }
};
inline void advance(const device uint*& place, uint n) { place += n; }
inline void keep_first(threadgroup uint& total, threadgroup uint& most, uint t, uint x) {
  uint sum = simd_sum(x);
  if (t == 0) { total = sum; most = x; }
}
template <uint N> uint sum_within(const thread uint (&a)[N]) { return simd_sum(a[0]) + simd_max(a[N - 1]); }
template <uint N> uint sum_all(const thread uint (&a)[N]) { return sum_within(a) + simd_min(a[1]); }
inline uint scaled(uint x, uint scale = 2) { return simd_sum(x) * scale; }
struct Constructed {
  uint a, b;
  Constructed(uint x, uint y) : a(x), b(y) {}
};
struct Fixed {
  const uint value;
  uint operator()(uint x) const { return x + value; }
};
template <typename F> uint apply(F f, uint x) { return f(x); }
struct Tiles {
  simdgroup_float8x8 a, b;
};
inline simdgroup_float8x8 product(simdgroup_float8x8 a, const thread simdgroup_float8x8& b) { return a * b; }
"""


def kernel(name):
    return (
        f"kernel void {name}(device const uint* x, device uint* out, {PARAMETERS}) {{\n"
        f"  uint v = x[i], r = 0;\n  {BODIES[name]}\n  out[i] = r;\n}}\n"
    )


SOURCE = HELPERS + "".join(map(kernel, BODIES))
# threads, group; the last groups of some are smaller
LAUNCHES = [(64, 64), (1, 1), (50, 50), (200, 96), (1024, 1024), (33, 32), (12, 4)]


@pytest.mark.full
def test_they_have_group_loops():
    engines = emit(preprocess(HEADER + SOURCE)).engines
    assert {name: engine for name, engine in engines.items() if engine != ("group", None)} == {}
    assert all("group" in entry["engines"] for entry in build(SOURCE, 1).kernel_table())


def test_the_same_program_becomes_the_same_text():
    assert emit(preprocess(HEADER + SOURCE)).text == emit(preprocess(HEADER + SOURCE)).text


@each_optimization
@pytest.mark.parametrize("name", BODIES)
def test_as_fibers(name, optimize):
    assert_as_fibers(SOURCE, name, LAUNCHES, optimize)


def test_indices_that_grow_with_a_strided_loop_are_found():
    source = """
    kernel void k(device uint* out, device const uint* x, constant uint& n, uint t [[thread_index_in_threadgroup]],
                  uint size [[threads_per_threadgroup]], uint row [[threadgroup_position_in_grid]]) {
      threadgroup_barrier(mem_flags::mem_none);
      for (uint k = t; k < n; k += size) {
        const uint2 pair(k, n);
        auto first = [&] { return x[k + 1]; };
        out[row * n + (k + 2)] = x[k - n] + x[n - k] + x[2 * k] + x[x[row] + k] + pair[k - t] + x[k / 3 * 3] + first();
      }
    }"""
    text = emit(preprocess(HEADER + source)).text
    assert re.findall(r"place<\d+>\((.*?)\)\]", text) == ["row * n + (k + 2)", "k - n"]


def test_indices_of_variables_inside_of_a_strided_loop_are_computed_there():
    """Of a loop inside, or of one that is declared before and changes there: the sum's range is not known before the loop."""
    source = """
    kernel void k(device uint* out, device const uint* x, constant uint& n, uint t [[thread_index_in_threadgroup]],
                  uint size [[threads_per_threadgroup]]) {
      threadgroup_barrier(mem_flags::mem_none);
      uint later = 0;
      for (uint i = t; i < n; i += size) {
        uint sum = 0;
        for (uint k = 0; k < n; ++k) sum += x[k * n + i];
        for (later = 0; later < n; ++later) sum += x[later * n + i];
        out[i] = sum;
      }
    }"""
    text = emit(preprocess(HEADER + source)).text
    assert re.findall(r"place<\d+>\((.*?)\)\]", text) == ["i"]
    x = torch.randint(100, (20, 20), dtype=torch.int32)
    n = torch.tensor(20, dtype=torch.int32)
    for engine in ("group", "fiber"):
        out = torch.zeros(20, dtype=torch.int32)
        build(source).launch("k", [out, x, n], 8, 8, engine=engine)
        assert torch.equal(out, 2 * x.sum(0, dtype=torch.int32)), engine


def test_groups_of_several_dimensions():
    source = """
    kernel void k(device uint* out, uint3 p [[thread_position_in_threadgroup]], uint3 at [[thread_position_in_grid]],
                  uint3 grid [[threads_per_grid]], uint t [[thread_index_in_threadgroup]]) {
      threadgroup uint sums[64];
      if (t < 64) sums[t] = 0;
      threadgroup_barrier(mem_flags::mem_threadgroup);
      uint r = simd_sum(p.x + 10 * p.y + 100 * p.z);
      if (p.y % 3 == 1) r += 7 * p.y + simd_sum(p.z + p.y);
      if (p.x == 0 && p.z == 0) sums[p.y] = r;
      threadgroup_barrier(mem_flags::mem_threadgroup);
      out[at.x + grid.x * (at.y + grid.y * at.z)] = sums[p.y] + p.x;
    }"""
    shapes = (
        ((8, 8, 1), (8, 8, 1)),
        ((7, 5, 3), (4, 4, 2)),
        ((40, 3, 2), (16, 2, 1)),
        # columns, one thread wide, which are loops too
        ((1, 64, 1), (1, 64, 1)),
        ((3, 100, 1), (1, 50, 1)),
        ((2, 45, 3), (1, 20, 2)),
    )
    for grid, group in shapes:
        results = []
        for engine in ("group", "fiber"):
            out = torch.zeros(grid[0] * grid[1] * grid[2], dtype=torch.int32)
            build(source).launch("k", [out], grid, group, engine=engine)
            results.append(out)
        assert torch.equal(*results), (grid, group)


def test_threads_by_number_in_groups_of_several_dimensions():
    source = """
    kernel void k(device uint* out, uint x [[thread_position_in_threadgroup]], uint t [[thread_index_in_threadgroup]],
                  uint lane [[thread_index_in_simdgroup]], uint group [[simdgroup_index_in_threadgroup]]) {
      uint r = simd_sum(1u);
      if (x == 1) r += 10 + simd_sum(t);
      if (t == 9) r += 1000 + x;
      if (lane == 7) r += 5000 + 100 * x;
      if (group == 1) r += 20000 * simd_max(x);
      out[t] = r;
    }"""
    for group in ((8, 8, 1), (7, 5, 3), (16, 2, 2), (40, 3, 1), (1, 70, 1)):
        results = []
        for engine in ("group", "fiber"):
            out = torch.zeros(group[0] * group[1] * group[2], dtype=torch.int32)
            build(source).launch("k", [out], group, group, engine=engine)
            results.append(out)
        assert torch.equal(*results), group


def test_loops_ask_only_for_the_coordinates_that_their_bodies_have():
    """Where the number of a thread is enough, a loop need not go row by row, of which a column has one for each thread."""
    source = """
    kernel void of_rows(device uint* out, uint3 p [[thread_position_in_threadgroup]],
                        uint t [[thread_index_in_threadgroup]]) {
      uint sum = simd_sum(t);
      out[t] = simd_sum(sum) + p.y;
    }
    kernel void of_one_row(device uint* out, uint x [[thread_position_in_grid]]) {
      uint sum = simd_sum(x);
      out[x] = simd_sum(sum);
    }"""
    emitted = emit(preprocess(HEADER + source)).text
    asked = re.findall(r"const ::msl::msl_support::(Numbered|InRow|Lane) msl_t\) ", emitted)
    assert set(asked) == {"Numbered", "InRow", "Lane"}


def _run(source, x, threads, engine):
    out = torch.full((threads,), -1, dtype=torch.int32)
    build(source).launch("k", [x, out], threads, threads, engine=engine)
    return out


@pytest.mark.parametrize(
    "body",
    [
        "if (v & 1) { threadgroup_barrier(mem_flags::mem_none); } else { threadgroup_barrier(mem_flags::mem_none); }",
        "if (v & 1) threadgroup_barrier(mem_flags::mem_none); threadgroup_barrier(mem_flags::mem_none);",
        "for (uint k = 0; k < (v & 1); ++k) threadgroup_barrier(mem_flags::mem_none);\n"
        "threadgroup_barrier(mem_flags::mem_none);",
    ],
    ids=["in both branches", "in one branch", "in a loop"],
)
def test_lanes_at_different_barriers_are_the_same_error_as_on_fibers(body):
    source = f"kernel void k(device const uint* x, device uint* out, {PARAMETERS}) {{ uint v = x[i]; {body} out[i] = v; }}"
    x = torch.arange(40, dtype=torch.int32)
    messages = []
    for engine in ("group", "fiber"):
        with pytest.raises(RuntimeError, match="deadlock in kernel 'k', threadgroup") as error:
            _run(source, x, 40, engine)
        messages.append(str(error.value))
        # The next launch begins anew.
        assert _run(source, 2 * x, 40, engine).tolist() == (2 * x).tolist()
    assert (
        re.sub("(barriers), (.*) and (.*)[.] All", r"\1, \3 and \2. All", messages[0])
        in messages[1]
    )


def test_simdgroups_at_different_barriers_are_an_error():
    body = "if (x[i] < 32) threadgroup_barrier(mem_flags::mem_none); else threadgroup_barrier(mem_flags::mem_none);"
    source = f"kernel void k(device const uint* x, device uint* out, {PARAMETERS}) {{\n{body}\n}}"
    with pytest.raises(
        RuntimeError, match="simdgroup 0 and of simdgroup 1 wait at different barriers, .*:16 and"
    ):
        _run(source, torch.arange(64, dtype=torch.int32), 64, "group")


def test_barriers_in_different_iterations_are_an_error():
    body = "for (uint k = 0; k < 4; ++k) { if ((k & 1) == x[i]) threadgroup_barrier(mem_flags::mem_none); }"
    source = f"kernel void k(device const uint* x, device uint* out, {PARAMETERS}) {{\n{body}\n}}"
    with pytest.raises(RuntimeError, match="wait at the barrier at .* in different iterations"):
        _run(source, torch.arange(2, dtype=torch.int32), 2, "group")


def test_variables_whose_values_call_functions_of_their_names():
    """A qualified name, and one that a pointer or an object has as a member, is none of the variables."""
    source = f"""
    struct Twice {{
      static uint scale(uint x) {{ return 2 * x; }}
      uint shift(uint x) const thread {{ return x + 1; }}
    }};
    namespace library {{ uint offset(uint x) {{ return x + 100; }} }}
    kernel void k(device const uint* x, device uint* out, {PARAMETERS}) {{
      const uint scale = Twice::scale(x[i]), offset = library::offset(scale);
      Twice twice;
      const uint shift = twice.shift(offset);
      threadgroup_barrier(mem_flags::mem_none);
      out[i] = simd_max(shift) + scale + offset;
    }}"""
    x = torch.arange(64, dtype=torch.int32)
    expected = (x // 32 * 32 + 31) * 2 + 101 + 2 * x + 2 * x + 100
    for engine in ("group", "fiber"):
        assert _run(source, x, 64, engine).tolist() == expected.tolist(), engine


def test_buffers_that_are_references():
    source = f"""
    kernel void k(device uint& out, device atomic_uint& count, device const uint* x, {PARAMETERS}) {{
      uint r = simd_sum(x[i]);
      if (t == 0) out = r;
      atomic_fetch_add_explicit(&count, 1, memory_order_relaxed);
    }}"""
    for engine in ("group", "fiber"):
        out, count = torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
        x = torch.arange(40, dtype=torch.int32)
        build(source).launch("k", [out, count, x], 40, 40, engine=engine)
        assert (out.item(), count.item()) == (31 * 16, 40)


def test_the_address_of_a_read_only_reference_is_that_of_the_buffer():
    """Also beyond the object, as of a buffer whose first element is a kernel's argument."""
    source = f"""
    uint second_of(constant uint& first) {{ return (&first)[1]; }}
    uint sum_of(constant uint& first, uint count) {{
      uint sum = simd_max(count);
      for (uint k = 0; k < 3; ++k) sum += (&first)[k];
      return sum;
    }}
    kernel void k(device uint* out, constant uint& first, const device uint4& row, {PARAMETERS}) {{
      threadgroup_barrier(mem_flags::mem_none);
      const device uint4* rows = &row;
      out[i] = *(&first + i) + second_of(first) + 1000 * rows[i & 1].y + sum_of(first, i);
    }}"""
    x = torch.arange(7, 77, dtype=torch.int32)
    at = torch.arange(40)
    expected = x[:40] + 8 + 1000 * x[4 * (at & 1) + 1] + 24 + torch.where(at < 32, 31, 39)
    for engine in ("group", "fiber"):
        out = torch.zeros(40, dtype=torch.int32)
        build(source).launch("k", [out, x, x], 40, 40, engine=engine)
        assert torch.equal(out, expected.int())


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("if (t < 3) threadgroup_barrier(mem_flags::mem_none);", "for a part of the threadgroup"),
        ("volatile uint k = v; r = simd_sum(k);", "volatile"),
        (
            "simdgroup_float8x8 a(2); a = of_any(a); r = a.thread_elements()[0];",
            "product in 'of_any'",
        ),
    ],
)
def test_what_is_left_to_fibers_says_why(body, reason):
    source = (
        "template <typename T> T of_any(T x) { return x * x; }\n"
        f"kernel void k(device const uint* x, device uint* out, {PARAMETERS}) {{ uint v = x[i], r = 0; {body} out[i] = r; }}"
    )
    assert_left_to_fibers(source, reason)


def test_an_error_is_said_of_the_program_as_it_is_written():
    source = (
        "kernel void k(device uint* out) {\n  uint r = simd_sum(1u);\n  out[0] = r + missing;\n}"
    )
    with pytest.raises(SyntaxError) as error:
        msl.compile_source(HEADER + source)
    assert str(error.value).count("missing") == 2 and "5:16" in str(error.value)
    assert "msl_" not in str(error.value)


def test_group_loops_that_do_not_compile_are_told(monkeypatch, tmp_path):
    """Errors are those of the program as it was written: with any of its own there is no warning."""
    source = f"{HEADER}kernel void k(device float* out, uint i [[thread_position_in_grid]]) {{ out[i] = simd_sum(float(i)); %s }}"
    write = Form.write

    def write_wrongly(form):
        write(form)
        form.text.add(" oops oops;")

    monkeypatch.setattr(Form, "write", write_wrongly)
    monkeypatch.setenv("METALOPS_CACHE_DIR", str(tmp_path))  # what is found there is not compiled
    with pytest.warns(RuntimeWarning, match="run in other ways.*line 3"):
        library = _host.Library(str(msl.compile_source(source % "")))
    assert engines_of(library, "k") == ["fiber"]
    with pytest.raises(SyntaxError, match="oops"):
        msl.compile_source(source % "oops();")
