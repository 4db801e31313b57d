"""Templates that have copies by address space (dialect/space_copies.py, dialect/class_copies.py): programs, each with the
values that it must give.
"""

HEAD = """
#include <metal_stdlib>
using namespace metal;
int f(const device float* p) { return 1; }
int f(const threadgroup float* p) { return 2; }
int f(const constant float* p) { return 3; }
int f(const thread float* p) { return 4; }
int f(int x) { return 5; }
"""
KERNEL = """
kernel void k(device int* r, device float* o, constant float& c, const device float* cd, device int* oi) {
  threadgroup float tg[8];
  threadgroup float* sp = tg;
  float own[8] = {0};
  device float* d = o;
"""

# By name: declarations, and {expression: value}, in which statements may stand before the expression, up to `;;`.
CASES = {
    "arguments that are only written": (
        """
        template <typename P> int g() { P p = 0; return f(p); }
        template <typename P, typename T> int two(T x) { P p = 0; return f(p) + 10 * f(x); }
        template <typename P, int N> int times() { P p = 0; return f(p) * N; }
        template <typename Q> int on(Q q) { return g<Q>(); }
        template <typename Q> int further() { return g<Q>() * 10; }
        template <typename P> P as(device void* q) { return (P)q; }
        template <typename P> bool is_floats() { return is_same_v<P, device float*>; }
        template <typename P = device float*> int by_default() { P p = 0; return f(p); }
        template <typename T, typename P = device T*> int of_element(T x) { P p = 0; return f(p); }
        template <typename P> int made() { return sizeof(P) == 8 ? f(P(0)) : 0; }
        template <typename P> int of(int x) { P p = 0; return f(p); }
        template <typename P> int of(float x) { P p = 0; return 10 * f(p); }
        using device_floats = device float*;
        typedef threadgroup float* shared_floats;
        struct owner {
          template <typename P> static int g() { P p = 0; return f(p); }
          template <typename P> int h(int n) const { P p = 0; return f(p) * n; }
        };
        """,
        {
            "g<device float*>() + 10 * g<threadgroup float*>() + 100 * g<int>()": 521,
            "g<device_floats>() + 10 * g<shared_floats>()": 21,
            "auto q = o + 1;; g<decltype(q)>() + 10 * g<decltype(sp)>() + 100 * g<decltype(o + 1)>()": 121,
            "owner x;; owner::g<device float*>() + 10 * x.h<threadgroup float*>(10)": 201,
            "two<device float*>(o) + 100 * two<threadgroup float*>(o) + 10000 * two<constant float*>(tg)": 231211,
            "times<device float*, 3>() + 10 * times<threadgroup float*, 4>()": 83,
            "on(o) + on(tg) * 10 + further<device float*>() + further<threadgroup float*>() * 100": 2031,
            "f(as<device float*>(o)) + 10 * f(as<const device float*>(o))": 11,
            "is_floats<device float*>() + 10 * is_floats<threadgroup float*>() + 100 * is_floats<int>()": 1,
            "by_default() + 10 * by_default<threadgroup float*>() + 100 * of_element(1.0f)": 121,
            "made<device float*>() + 10 * made<threadgroup float*>()": 21,
            "of<device float*>(1) + of<threadgroup float*>(1.0f) + 100 * of<device float*>(2.0f)": 1021,
        },
    ),
    "recursion by template arguments": (
        """
        template <typename P, int N> int g() {
          P p = 0;
          if constexpr (N == 0) return 0; else return f(p) + 10 * g<P, N - 1>();
        }
        template <typename P, typename Q, int N> int swapped() {
          P p = 0;
          if constexpr (N == 0) return 0; else return f(p) + 10 * swapped<Q, P, N - 1>();
        }
        template <int N, typename P, typename Q> int both(Q q) {
          P p = 0;
          if constexpr (N == 0) return 0; else return f(p) * 10 + f(q) + 100 * both<N - 1, Q>(p);
        }
        """,
        {
            "g<device float*, 2>() + 100 * g<threadgroup float*, 3>()": 22211,
            "swapped<device float*, threadgroup float*, 3>()": 121,
            "both<2, device float*>(tg)": 2112,
        },
    ),
    "specialisations of functions": (
        """
        template <typename P> int g(P p) { return 1; }
        template <> int g<device float*>(device float* p) { return 2; }
        template <> int g(threadgroup float* p) { return 3; }
        template <> int g<float>(float p) { return 4; }
        template <typename Q> int on(Q q) { return g<Q>(q) + 10 * g(q); }
        template <typename P> int only() { return 1; }
        template <> int only<device float*>() { return 2; }
        template <typename P> int of_const(P p) { return 1; }
        template <> int of_const<const device float*>(const device float* p) { return 2; }
        template <typename P> int of_reference(const thread P& p) { return 1; }
        template <> int of_reference(device float* const thread& p) { return 2; }
        template <typename P> int declared(P p);
        template <> int declared<device float*>(device float* p) { return 2; }
        template <> int declared<threadgroup float*>(threadgroup float* p) { return 3; }
        template <typename P> int later(P p);
        template <> int later(device float* p) { return 7; }
        template <typename P> int later(P p) { return f(p); }
        struct owner { template <typename P> static int of(P p) { return 1; } };
        template <> int owner::of<device float*>(device float* p) { return 2; }
        namespace inner { template <typename P> int h(P p) { return f(p); } }
        template <> int inner::h<constant float*>(constant float* p) { return 9; }
        template <typename P, typename Q> int beside(P p, Q q) { return f(p) * 10 + int(q); }
        template <> int beside<device float*, int>(device float* p, int q) { return 77; }
        template <typename T> int pointee(device T* p) { return 1; }
        template <typename T> int pointee(threadgroup T* p) { return 2; }
        template <> int pointee<float>(device float* p) { return 3; }
        """,
        {
            "g(o) + 10 * g(tg) + 100 * g(4) + 1000 * g(oi) + 10000 * g(4.0f) + 100000 * g(own)": 141132,
            "g<device float*>(o) + 10 * g<threadgroup float*>(tg) + 100 * on(o) + 10000 * on(own)": 112232,
            "only<threadgroup float*>() + 10 * only<device float*>() + 100 * only<int>()": 121,
            "of_const(o) + 10 * of_const(cd) + 100 * of_const((const threadgroup float*)tg)": 121,
            "of_reference(d) + 10 * of_reference(sp)": 12,
            "declared(o) + 10 * declared(tg)": 32,
            "later(o) + 10 * later(tg)": 27,
            "owner::of(o) + 10 * owner::of(tg) + 100 * owner::of(1)": 112,
            "inner::h(o) + 10 * inner::h(tg) + 100 * inner::h(&c)": 921,
            "beside(o, 1) + 100 * beside(tg, 1) + 10000 * beside(tg, 2.0f)": 222177,
            "pointee(o) + 10 * pointee(tg) + 100 * pointee(oi)": 123,
        },
    ),
}


def source_of(name):
    """Returns the program of a case, which writes its values to the first buffer."""
    declarations, uses = CASES[name]
    lines = []
    for number, use in enumerate(uses):
        statements, _, expression = use.rpartition(";; ")
        lines.append(f"{{ {statements}; r[{number}] = {expression}; }}")
    return f"{HEAD}{declarations}{KERNEL}{' '.join(lines)}\n}}\n"
