"""Lambdas in which threads synchronise, in kernels that run as loops over the threads of a group: against fibers."""

import pytest
from metalops.msl.source.preprocess import preprocess
from metalops.msl.targets.host.emit import emit

from .conftest import HEADER, assert_as_fibers, assert_left_to_fibers, build, each_optimization
from .test_group_loops import LAUNCHES, PARAMETERS

HELPERS = """
struct Pair {
  uint a, b;
  uint total() const { return simd_sum(a) + b; }
};
struct Member {
  uint a;
  uint total(uint x) {
    auto f = [&](uint q) { a += 1; return simd_sum(q + a) + this->a; };
    return f(x) + 5 * a;
  }
  uint before(uint x) {
    const uint kept = a;
    auto f = [=](uint q) { return simd_sum(q + kept) + a; };
    a = 5;
    return f(x);
  }
};
struct Scaled {
  uint scale;
  uint operator()(uint x) { return simd_sum(x) * scale; }
};
template <typename F> uint repeat(F f, uint count) {
  uint total = 0;
  for (uint k = 0; k < count; ++k) total = 3 * total + f(k);
  return total;
}
template <typename F> uint once(const thread F& f, uint x) { return f(x); }
template <typename F> uint twice(thread F& f, uint x) { return once(f, x) + f(2); }
template <typename F> uint moved(thread F&& f, uint x) { return 2 * twice(f, x); }
template <typename F> uint of_two(F f, uint x) { return f(x, simd_max(x)); }
template <typename F> void as_lanes_come(F f, uint x) {
  if (x & 1) { f(x); } else { f(x + 1); f(x); }
  while (x > 3) { f(x); x -= 3; }
}
template <typename F> uint of_a_sum(F f, uint x) { return f(simd_sum(x)); }
template <typename F> uint changed(F f, uint x) { uint n = 3; f(n); return simd_sum(x) + n; }
template <typename T, uint N> T in_a_template(T x) {
  T kept[N], sum = 0;
  for (uint k = 0; k < N; ++k) kept[k] = x + k;
  auto f = [&](uint at) { kept[at] += simd_sum(kept[at]); return kept[at]; };
  for (uint k = 0; k < N; ++k) sum += f(k);
  return sum;
}
template <bool B> uint either_way(uint x) {
  auto f = [&](uint q) { if constexpr (B) { return simd_sum(q); } else { return q; } };
  return f(x) * 3 + f(3);
}
inline uint in_a_helper(uint x, thread uint& y) {
  auto f = [&](uint q) { y += q; return simd_sum(q) + y; };
  if (x > 30) return f(x);
  const uint first = f(1);
  return first + f(2);
}
"""
BODIES = {
    "captured_by_reference": "auto f = [&] { return simd_sum(v); }; v += 3; r = f();",
    "given_what_is_the_same_and_what_is_not": "auto f = [&](uint q) { return simd_sum(q) + v; }; r = f(3) + f(v) + f(lane);",
    "changing_what_it_captures": """
        uint total = 1;
        const auto f = [&](uint q) { total += simd_sum(q); };
        f(v);
        if (lane & 1) f(lane);
        r = total;""",
    "captured_by_value": """
        uint total = v, n = size;
        auto f = [=](uint q) { return total + n * simd_sum(q); };
        total = 5; n = 2; n += g;
        r = f(v) + total * 3 + n;""",
    "captured_by_value_and_by_reference": """
        uint a = v, b = lane;
        auto f = [a, &b](uint q) -> uint { b += a; return simd_max(b + q); };
        a = 7; b = 9;
        r = f(1); r = r * 3 + a + b; r = r * 3 + f(v);""",
    "captured_under_another_name": "auto f = [q = v * 2, z = size](uint x) { return simd_sum(x + q) + z; }; v = 1; r = f(lane) + v;",
    "changing_its_copy": """
        uint a = v;
        auto f = [a]() mutable { a += simd_sum(a); return a; };
        r = f(); a = 3;
        if (v & 1) r += f();
        r = r * 31; r += f() + a;""",
    "captured_in_a_loop": """
        for (uint k = 0; k < v % 6; ++k) {
          auto f = [=] { return simd_sum(k); };
          r += f();
          if (k & 1) { k += 1; r = r * 3 + f(); }
        }""",
    "returning_early": """
        auto f = [&](uint q) {
          if (q & 1) return simd_sum(q);
          uint s = 0;
          for (uint k = 0; k < q % 5; ++k) { s += simd_sum(k); if (s > 40) return s; }
          return s + simd_max(q);
        };
        r = f(v) + f(lane);""",
    "returning_from_a_switch": """
        auto f = [&](uint q) {
          switch (q % 3) { case 0: return simd_sum(1u); case 1: r += 1; break; default: r += simd_max(q); }
          return r;
        };
        uint w = f(v);
        r = w + f(lane);""",
    "returning_something_of_a_kernel_that_returns": """
        auto f = [&] { return simd_sum(1u); };
        if (v % 7 == 0) { out[i] = f(); return; }
        r = f();""",
    "in_a_loop_that_is_left": """
        for (uint k = 0; k < v % 5; ++k) {
          auto f = [&](uint q) { if (q == 2) return 0u; return simd_sum(q + k); };
          if (k == 3) break;
          r += f(k) + f(v % 3);
        }""",
    "passed_on": """
        auto f = [&](uint k) { return simd_sum(v + k); };
        r = repeat(f, 3) + repeat(f, v % 4);
        r += repeat([&](uint k) { uint z = k; if (v & 1) z += simd_sum(v); return z; }, lane % 3);""",
    "passed_on_by_reference": "auto f = [&](uint k) { return simd_sum(v + k); }; r = once(f, v) + twice(f, lane) + moved(f, 1);",
    "passed_on_to_what_lanes_come_to_apart": """
        uint total = 0;
        auto f = [&](uint q) { total = total * 3 + simd_sum(q); if (q == 7) return; total += simd_max(total & 15); };
        as_lanes_come(f, v);
        r = total;""",
    "of_several_parameters": "r = of_two([&](uint a, uint b) { return a * b + simd_sum(v); }, v) + once([&](uint a) { return simd_sum(a); }, lane);",
    "beside_others_in_which_nobody_meets": """
        uint n = 3; n += size;
        auto f = [&](uint k) { return n + lane * k; };
        Scaled scaled{v};
        r = repeat([&](uint k) { return simd_sum(v + k); }, 3) + repeat(f, v % 4) + repeat(scaled, 2);
        r += repeat([&](uint k) { return k + n * lane; }, 2) + repeat([=](uint k) { return k + n + lane; }, 2) + f(7);""",
    "in_a_choice": "auto f = [&](uint q) { return simd_sum(q) + v; }; r = lane < 7 ? f(v) : 3u; r += (v & 1) && f(2) > 5 ? 1 : 0;",
    "with_choices": """
        auto f = [&](uint q) { return q & 1 ? simd_sum(q) : simd_max(q); };
        auto h = [&](uint q) { return (q & 2) && f(q) > 100; };
        r = h(v) ? f(v) : 5u;""",
    "as_a_condition": """
        auto f = [&](uint q) { return simd_any(q == 3); };
        if (f(v)) r = 1;
        while (f(v + r)) { r += 1; if (r > 9) break; }
        r += f(2) ? 100 : 0;""",
    "called_at_once": "r = [&](uint q) { return simd_sum(q) + v; }(lane); [&] { r += simd_max(v); }();",
    "never_called": "if (v & 1) { auto f = [&](uint q) { return simd_sum(q); }; r = v; }",
    "calling_others": """
        uint n = v;
        auto f = [&](uint q) { auto inner = [&](uint z) { return simd_sum(z + q); }; return inner(q) + inner(n); };
        auto h = [&](uint q) { return f(q) + f(v); };
        auto copy = [=](uint q) { return f(q) + n; };
        n = 3;
        r = h(lane) + copy(v) + once([&](uint z) { return once(f, z) + v; }, v);""",
    "of_any_type": "auto f = [&](auto q) { return simd_sum(q); }; r = f(v) + uint(f(float(lane)));",
    "given_references": """
        auto f = [&](thread uint& q, const thread uint& z) { q += simd_sum(z); };
        uint a = v;
        f(r, a); f(a, r); r += a * 3; f(a, a); r += a;""",
    "given_and_giving_structs_and_vectors": """
        auto f = [&](Pair p) { p.a += 1; return Pair{p.total(), simd_sum(p.b)}; };
        auto h = [&](float2 p) { p.x += simd_sum(p.y); return p; };
        Pair p = f(Pair{v, lane}); p = f(p);
        float2 w = h(float2(v, lane)); w.y = h(w).x;
        r = p.a + 7 * p.b + uint(w.x) + uint(w.y);""",
    "with_names_of_others": "uint q = v; auto f = [&](uint q) { uint v = q; v += simd_sum(v); return v; }; r = f(q) + v;",
    "with_barriers": """
        threadgroup uint shared[1024];
        auto exchange = [&](threadgroup uint* p, uint q) {
          p[t] = q;
          threadgroup_barrier(mem_flags::mem_threadgroup);
          uint z = shared[(t + 1) % size];
          threadgroup_barrier(mem_flags::mem_threadgroup);
          return z;
        };
        r = exchange(shared, v);
        for (uint k = 0; k < 3; ++k) r += exchange(shared + 0, r + k);""",
    "with_arrays": """
        constexpr uint kCount = 4;
        uint kept[kCount] = {v, lane, 2, 3}, copied[2] = {v, 3};
        auto add = [&](uint q) { for (uint k = 0; k < kCount; ++k) kept[k] += simd_sum(q + k); };
        auto sum = [=](uint q) { uint s = 0; for (uint k = 0; k < 2; ++k) s += copied[k] * simd_sum(q + k); return s; };
        copied[1] = lane;
        add(v); add(lane);
        r = kept[0] + kept[v & 3] + sum(v) + copied[1];""",
    "with_matrices": """
        threadgroup float shared[2048];
        for (uint k = t; k < 2048; k += size) shared[k] = k % 7;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        simdgroup_float8x8 sums[2] = {simdgroup_float8x8(1), simdgroup_float8x8(2)};
        auto step = [&](uint k) {
          simdgroup_float8x8 a, b;
          simdgroup_load(a, shared + k * 64);
          simdgroup_load(b, shared + 8 * k);
          for (uint n = 0; n < 2; ++n) simdgroup_multiply_accumulate(sums[n], a, b, sums[n]);
        };
        for (uint k = 0; k < 3; ++k) step(k);
        r = uint(sums[0].thread_elements()[0] + sums[1].thread_elements()[1]) % 1000;""",
    "of_what_changes_for_the_group": """
        uint n = 0;
        auto f = [&](uint q) { return simd_sum(q) + n; };
        for (uint k = 0; k < 4; ++k) { n += k; r += f(k); if (k == g % 3) { n *= 2; } }
        r += n;""",
    "of_an_object": "Member m{v}; r = m.total(lane) + m.a; r += m.before(v) + m.a;",
    "in_functions": "r = in_a_helper(v, v) + v; r += in_a_template<uint, 3>(v) + uint(in_a_template<float, 2>(v)); r += either_way<true>(v) + either_way<false>(v);",
    # Nobody meets in these, but others do while they are kept.
    "called_after_threads_have_met": """
        const uint place = 8 * group + lane;
        uint n = size / 2; n += 3;
        auto f = [&](uint q) { return q * place + n + lane; };
        uint s = simd_sum(v);
        r = f(s) + of_a_sum([&](uint q) { return q * place + n + lane; }, v);""",
    "writing_to_references": """
        uint n = 3;
        auto f = [&](thread uint& y) { y += v; };
        f(n);
        r = simd_sum(n) + n + changed(f, v);""",
}


def kernel(name):
    return (
        f"kernel void {name}(device const uint* x, device uint* out, {PARAMETERS}) {{\n"
        f"  uint v = x[i], r = 0;\n  {BODIES[name]}\n  out[i] = r;\n}}\n"
    )


SOURCE = HELPERS + "".join(map(kernel, BODIES))


@pytest.mark.full
def test_they_have_group_loops():
    engines = emit(preprocess(HEADER + SOURCE)).engines
    assert {name: engine for name, engine in engines.items() if engine != ("group", None)} == {}
    assert all("group" in entry["engines"] for entry in build(SOURCE, 1).kernel_table())


@pytest.mark.full
@each_optimization
@pytest.mark.parametrize("name", BODIES)
def test_as_fibers(name, optimize):
    assert_as_fibers(SOURCE, name, LAUNCHES, optimize)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (
            "auto f = [&] { threadgroup_barrier(mem_flags::mem_none); }; if (t < 3) f();",
            "for a part",
        ),
        (
            "auto f = [&] { return simd_sum(v); }; decltype(f) other = f; r = other();",
            "is not called",
        ),
        ("auto f = [v]() mutable { return v += simd_sum(v); }; r = call(f);", "that changes"),
        ("auto f = [&](uint a = 3) { return simd_sum(a); }; r = f();", "default arguments"),
        ("auto f = [&a = v] { return simd_sum(a); }; r = f();", "reference of its own"),
    ],
)
def test_what_is_left_to_fibers_says_why(body, reason):
    source = (
        "template <typename F> uint call(F f) { return f(); }\n"
        f"kernel void k(device const uint* x, device uint* out, {PARAMETERS}) {{ uint v = x[i], r = 0; {body} out[i] = r; }}"
    )
    assert_left_to_fibers(source, reason)
