"""Partial specialisations match as they do for Apple's compiler, whichever compiler compiles the kernels."""

import re
import shutil

import pytest
import torch
from metalops import msl

from .conftest import HEADER

COMPILERS = ["g++", "clang++-19"]

# Value parameters whose types are not those of the templates that they are deduced from.
SOURCE = """
namespace shapes {
template <class T, size_t N, class L> struct row { static constexpr constant int n = N; };
template <class T, int N> using row_of = row<T, N, int>;
}
using index = ushort;
template <class T> struct has { enum { value = 0 }; };
template <class T, int N, class L> struct has<shapes::row<T, N, L>> {
  enum { value = 1, below = 0 - N < 0, bytes = sizeof(N), other = shapes::row<T, N + 1, L>::n };
  template <int M> int times() const { return N * M; }
  int sum() const;
};
template <class T, int N, class L> int has<shapes::row<T, N, L>>::sum() const {
  int x(N);
  return x - N - 1 < 0 ? N : 0;
}
template <bool B> struct flag {};
template <class T> struct of_flag { enum { value = 0 }; };
template <int B> struct of_flag<flag<B>> { enum { value = B + 2 }; };
template <size_t... N> struct pack {};
template <class T> struct of_pack { enum { value = 0 }; };
template <int First, int... N> struct of_pack<pack<First, N...>> {
  enum { value = sizeof...(N) + First + (0 + ... + (0 - N < 0 ? N : 100)) };
};
template <class T> constant constexpr bool is_row = false;
template <class T, short N, class L> constant constexpr bool is_row<shapes::row<T, N, L>> = true;
template <class T> struct of_alias { enum { value = 0 }; };
template <class T, int N> struct of_alias<shapes::row_of<T, N>> { enum { value = N }; };
template <class T, index N> struct direct { enum { value = 0 }; };
template <uint N> struct direct<float, N> { enum { value = N }; };
template <class T> struct width { enum { value = 0 }; };
template <class T, uint N> struct width<vec<T, N>> { enum { value = N }; };
template <class T, uint N> struct width<array<T, N>> { enum { value = 10 + N }; };
kernel void k(device int* o) {
  using r = shapes::row<int, 8, int>;
  has<r> h;
  o[0] = has<r>::value; o[1] = has<r>::below; o[2] = has<r>::bytes; o[3] = has<r>::other;
  o[4] = h.times<3>(); o[5] = h.sum(); o[6] = of_flag<flag<true>>::value;
  o[7] = of_pack<pack<1, 2, 3>>::value; o[8] = is_row<r>; o[9] = of_alias<r>::value;
  o[10] = direct<float, 5>::value; o[11] = width<float3>::value; o[12] = width<array<int, 4>>::value;
}
"""
VALUES = [1, 1, 4, 9, 24, 8, 3, 2 + 1 + 5, 1, 8, 5, 3, 14]


@pytest.mark.full
@pytest.mark.parametrize("name", COMPILERS)
def test_values_of_other_types_match(program, monkeypatch, name):
    if not shutil.which(name):
        pytest.skip(f"{name} is not installed")
    monkeypatch.setenv("CXX", name)
    out = torch.zeros(len(VALUES), dtype=torch.int32)
    program(SOURCE).launch("k", out, grid=1)
    assert out.tolist() == VALUES


# Partial specialisations that need no other type, and what must not get one.
UNCHANGED = """
template <class T, int N> struct row {};
template <class T, class U> struct two { enum { value = 0 }; };
template <class T, int N, typename V> struct two<row<T, N>, V> { enum { value = N }; };
template <class T, uint32_t N> struct array_of { T a[N]; };
template <class T> struct is_array_of { enum { value = 0 }; };
template <class T, uint N> struct is_array_of<array_of<T, N>> { enum { value = N }; };
template <class T> struct bound { enum { value = 0 }; };
template <class T, uint N> struct bound<T[N]> { enum { value = N }; };
template <class T, int N> int length(row<T, N> r) { return N; }
enum class kind { a, b };
template <kind K> struct of_kind {};
template <class T> struct kind_of { enum { value = 0 }; };
template <kind K> struct kind_of<of_kind<K>> { enum { value = int(K) }; };
template <class I, I V> struct of_type {};
template <class T> struct value_of { enum { value = 0 }; };
template <class I, I V> struct value_of<of_type<I, V>> { enum { value = V }; };
kernel void k(device int* o) { o[0] = length(row<int, 3>()); }
"""


def test_parameters_of_the_same_types_are_left():
    emitted = msl.emit_source(HEADER + UNCHANGED)
    declared = UNCHANGED[: UNCHANGED.index("template <class T, int N> int length")]
    for line in declared.split("\n"):
        assert re.sub(r"\s+", " ", line) in re.sub(r"\s+", " ", emitted)
    assert "template <class T, int N> int length(row<T, N> r) { return N; }" in emitted
    for line in ("kind_of<of_kind<K>>", "template <class I, I V> struct value_of<of_type<I, V>>"):
        assert line in emitted


@pytest.mark.parametrize("name", COMPILERS)
def test_specialisations_of_member_functions_in_their_class(program, monkeypatch, name):
    """Also such as only calls tell, by template arguments."""
    if not shutil.which(name):
        pytest.skip(f"{name} is not installed")
    monkeypatch.setenv("CXX", name)
    p = program("""
        struct box {
          float v;
          template <typename T> T get(const device float* p, int i) const;
          template <> float get(const device float* p, int i) const { return p[i] + v; }
          template <> float2 get<float2>(const device float* p, const int i) const { return float2(p[i], v); }
          template <typename T> T twice(thread const T& x) { return x; }
          template <> int twice(thread const int& x) { return 2 * x; }
          template <> float twice(thread const float& x) { return 3 * x; }
          template <class A, class B> A converted(B b) { return A(b); }
          template <> float converted(int b) { return b + 100; }
          template <typename T> static T only(T x) { return x; }
          template <> int only(int x) { return x + 7; }
        };
        kernel void k(device float* o) {
          box b{10};
          int i = 3;
          float x = 2;
          half h = 1;
          o[1] = b.get<float>(o, 0);
          float2 f = b.get<float2>(o, 0);
          o[2] = f.x + 2 * f.y;
          o[3] = b.twice<int>(i) + 10 * b.twice(x) + 100 * b.twice(h);
          o[4] = b.converted<float>(1) + 1000 * b.converted<int>(2);
          o[5] = box::only(1) + 100 * box::only(1.0f);
        }
    """)
    out = torch.tensor([5.0, 0, 0, 0, 0, 0])
    p.launch("k", out, grid=1)
    assert out.tolist() == [5, 15, 25, 166, 2101, 108]
