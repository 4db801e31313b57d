"""Threadgroup memory and synchronising calls."""

import torch


def test_arrays_scalars_and_several_dimensions(program):
    p = program("""
        constant constexpr int rows = 4;
        template <typename T, int N>
        kernel void k(device T* out, device const T* in, uint i [[thread_index_in_threadgroup]],
                      uint g [[threadgroup_position_in_grid]]) {
          constexpr int twice = N * 2;
          typedef T element;
          using pair = metal::vec<element, 2>;
          const uint at = g * N + i;
          threadgroup element tile[rows][twice], total;
          threadgroup pair ends[1];
          threadgroup atomic_int count;
          tile[i % rows][i] = in[at];
          atomic_fetch_add_explicit(&count, 1, memory_order_relaxed);
          threadgroup_barrier(mem_flags::mem_threadgroup);
          if (i == 0) {
            total = 0;
            for (int j = 0; j < N; j++) total += tile[j % rows][j];
            ends[0] = pair(tile[0][0], atomic_load_explicit(&count, memory_order_relaxed));
          }
          threadgroup_barrier(mem_flags::mem_threadgroup);
          out[at] = total + ends[0].y;
        }
        template [[host_name("f")]] kernel void k<float, 8>(device float*, device const float*, uint, uint);
        template [[host_name("h")]] [[kernel]] decltype(k<half, 4>) k<half, 4>;
    """)
    assert p.table()["f"]["static_threadgroup_bytes"] == 4 * 16 * 4 + 16 + 16 + 16
    assert p.table()["h"]["static_threadgroup_bytes"] == 4 * 8 * 2 + 16 + 16 + 16
    x = torch.arange(24.0)
    out = torch.zeros(24)
    p.launch("f", out, x, grid=24, group=8)
    assert out.tolist() == [sum(range(8 * g, 8 * g + 8)) + 8 for g in range(3) for _ in range(8)]


def test_variables_in_inner_scopes_and_discarded_branches(program):
    p = program("""
        template <bool BIG> kernel void k(device float* out, uint i [[thread_index_in_threadgroup]]) {
          if constexpr (BIG) {
            constexpr int n = 100;
            threadgroup float x[n];
            x[i] = i;
            threadgroup_barrier(mem_flags::mem_threadgroup);
            out[i] = x[3 - i];
          } else {
            threadgroup float x[4];
            x[i] = 10 * i;
            threadgroup_barrier(mem_flags::mem_threadgroup);
            out[i] = x[3 - i];
          }
        }
        template [[host_name("big")]] kernel void k<true>(device float*, uint);
        template [[host_name("small")]] kernel void k<false>(device float*, uint);
    """)
    table = p.table()
    assert table["big"]["static_threadgroup_bytes"] == 400
    assert table["small"]["static_threadgroup_bytes"] == 16
    out = torch.zeros(4)
    p.launch("big", out, grid=4)
    assert out.tolist() == [3, 2, 1, 0]
    p.launch("small", out, grid=4)
    assert out.tolist() == [30, 20, 10, 0]


def test_zero_initialisers(program):
    p = program("""
        kernel void k(device float* out, uint i [[thread_index_in_threadgroup]]) {
          threadgroup float x[4] = {0};
          threadgroup int n = 0;
          if (i == 2) { x[i] = 5; n = 7; }
          threadgroup_barrier(mem_flags::mem_threadgroup);
          out[i] = x[i] + n;
        }
    """)
    out = torch.zeros(4)
    p.launch("k", out, grid=4)
    assert out.tolist() == [7, 7, 12, 7]


def test_dynamic_memory(program):
    p = program("""
        kernel void k(device float* out, threadgroup float* a [[threadgroup(0)]], threadgroup int2* b [[threadgroup(1)]],
                      uint i [[thread_index_in_threadgroup]]) {
          a[i] = i; b[i] = int2(i, 2 * i);
          threadgroup_barrier(mem_flags::mem_threadgroup);
          out[i] = a[3 - i] + b[3 - i].y;
        }
    """)
    out = torch.zeros(4)
    p.launch("k", out, grid=4, threadgroup_bytes={0: 16, 1: 32})
    assert out.tolist() == [9, 6, 3, 0]


def test_pointers_into_threadgroup_memory(program):
    p = program("""
        void fill(threadgroup float* x, uint i) { x[i] = i * i; }
        template <typename T> T get(const threadgroup T& x) { return x; }
        kernel void k(device float* out, uint i [[thread_index_in_threadgroup]]) {
          threadgroup float x[8];
          threadgroup float* half_way = x + 4;
          threadgroup float (&all)[8] = x;
          threadgroup float* both[2] = {x, half_way};
          fill(i < 4 ? x : half_way, i % 4);
          threadgroup_barrier(mem_flags::mem_threadgroup);
          out[i] = get(all[7 - i]) + both[1][0];
        }
    """)
    out = torch.zeros(8)
    p.launch("k", out, grid=8)
    assert out.tolist() == [9, 4, 1, 0, 9, 4, 1, 0]


def test_kernels_without_other_parameters(program):
    p = program("""
        kernel void k() { threadgroup float x[4]; x[0] = 1; threadgroup_barrier(mem_flags::mem_threadgroup); }
        kernel void nothing(void) {}
    """)
    assert p.table()["k"]["static_threadgroup_bytes"] == 16
    p.launch("k", grid=4)
    p.launch("nothing", grid=4)


def test_synchronisation_is_found_through_functions_functors_and_templates(program):
    p = program("""
        float deep(float x) { return simd_sum(x); }
        struct functor { float operator()(float x) { return deep(x); } };
        struct pure { float operator()(float x) { return x + 1; } };
        template <typename F> float apply(float x) { return F()(x); }
        template <typename F> kernel void map(device float* x, uint i [[thread_position_in_grid]]) { x[i] = apply<F>(x[i]); }
        template [[host_name("meets")]] kernel void map<functor>(device float*, uint);
        template [[host_name("alone")]] kernel void map<pure>(device float*, uint);
        kernel void calls(device float* x, uint i [[thread_position_in_grid]]) { functor f; x[i] = f(x[i]); }
    """)
    table = p.table()
    assert ["loop" in table[n]["engines"] for n in ("meets", "alone", "calls")] == [
        False,
        True,
        False,
    ]
    x = torch.arange(40.0)
    p.launch("meets", x, grid=40, group=40)
    assert x.tolist() == [sum(range(32))] * 32 + [sum(range(32, 40))] * 8


def test_functions_of_the_program_with_names_of_simd_operations(program):
    p = program("""
        struct two { float a, b; };
        two simd_sum(two v) { return {simd_sum(v.a), simd_sum(v.b)}; }
        namespace mine {
          template <typename T> T simd_max(T v) { return metal::simd_max(v) + 100; }
          template <> long simd_max(long v) { return 7; }
        }
        kernel void k(device float* out, uint i [[thread_index_in_simdgroup]]) {
          two t = simd_sum(two{1, float(i)});
          out[i] = t.a + t.b + mine::simd_max<float>(i) + mine::simd_max(3l);
        }
    """)
    out = torch.zeros(32)
    p.launch("k", out, grid=32)
    assert out.tolist() == [32 + 496 + 131 + 7] * 32


def test_divergent_simd_operations(program):
    p = program("""
        kernel void k(device int* out, uint i [[thread_index_in_simdgroup]]) {
          int total = 0;
          if (i % 2) total += simd_sum(1);
          else total += simd_sum(100);
          for (uint j = 0; j < i % 3; j++) total += 1000 * simd_sum(1);
          out[i] = total;
        }
    """)
    out = torch.zeros(32, dtype=torch.int32)
    p.launch("k", out, grid=32)
    at_least = [sum(l % 3 > j for l in range(32)) for j in range(2)]
    assert out.tolist() == [
        (16 if i % 2 else 1600) + 1000 * sum(at_least[: i % 3]) for i in range(32)
    ]


def test_conditional_expressions_as_last_arguments(program):
    p = program("""
        kernel void k(device uint* out, uint i [[thread_index_in_simdgroup]]) {
          out[i] = simd_min(i > 3 ? i : 0xFFFFFFFFu) + simd_max(i > 3 ? 0 : i);
        }
    """)
    out = torch.zeros(32, dtype=torch.int32)
    p.launch("k", out, grid=32)
    assert out.tolist() == [7] * 32


def test_zero_may_be_cast_in_an_initializer(program):
    p = program("""
        typedef float cell;
        kernel void k(device float* out, uint i [[thread_index_in_threadgroup]]) {
          threadgroup float4 a[2] = {(cell)0.f};
          threadgroup uint n = uint(0);
          if (i == 1) a[0].y = 2;
          threadgroup_barrier(mem_flags::mem_threadgroup);
          out[i] = a[0].y + a[1].x + n;
        }
    """)
    out = torch.ones(4)
    p.launch("k", out, grid=4, group=4)
    assert out.tolist() == [2] * 4
