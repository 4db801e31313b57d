"""Constructs that Metal takes from newer C++ than its own, and vectors of more than four elements."""

import pytest
import torch
from metalops.msl.check import check_source

from .conftest import HEADER

SOURCE = """
struct Parts { float a; int b; float c[2]; };
template <typename... T> float sum(T... x) { return (x + ...); }
template <typename... T> bool all_positive(T... x) { return (... && (x > 0)); }
template <typename... T> float from(float start, T... x) { return (start - ... - x); }
template <int N> float eight(vec<float, N> v) {
  float total = 0;
  for (int i = 0; i < N; ++i) total += v[i];
  return total;
}
kernel void k(device float* out, uint i [[thread_position_in_grid]]) {
  Parts p = { .a = 1, .b = 2, .c = { 3, 4 } };
  const Parts q{ .b = 5 };
  out[0] = sum(p.a, p.b, p.c[0], p.c[1]) + q.a + q.b;
  out[1] = all_positive(p.a, p.b) + 2 * all_positive(p.a, -p.b);
  out[2] = from(10, 1, 2);
  if (float x = out[3]; x > 0) out[3] = 2 * x; else out[3] = -x;
  switch (int n = int(out[4]); n) { case 4: out[4] = n + 1; break; default: out[4] = 0; }
  vec<float, 8> v = 2; v[7] = 1;
  vec<int, 16> w = 3; w = w * w;
  out[5] = eight(v + v) + w[15];
  out[6] = sizeof(v) + sizeof(w) + 1000 * alignof(vec<half, 16>);
}
"""


@pytest.mark.parametrize("engine", ["loop", "fiber"])
def test_newer_constructs(program, engine):
    out = torch.tensor([0.0, 0, 0, 3, 4, 0, 0])
    program(SOURCE).launch("k", out, grid=1, engine=engine)
    assert out.tolist() == [15, 1, 7, 6, 5, 30 + 9, 32 + 64 + 32000]


def test_the_checker_warns_of_a_declaration_in_front_of_a_condition():
    source = (
        HEADER + "kernel void k(device float* out) { if (float x = out[0]; x > 0) out[0] = 0; }"
    )
    (finding,) = check_source(source)
    assert (finding.rule, finding.is_error) == ("init-statement", False)
    assert check_source(source, language=400) == []


LINKAGE = """
extern "C" struct Sizes { uint rows, columns; };
extern "C" {
METAL_FUNC float area(constant Sizes& s) { return s.rows * s.columns; }
constant float two = 2;
}
extern "C++" { template <typename T> T twice(T x) { return two * x; } }
extern "C" kernel void k(device float* out, constant Sizes& s) { out[0] = twice(area(s)); }
"""


def test_linkage_of_c(program):
    out = torch.zeros(1)
    program(LINKAGE).launch("k", out, torch.tensor([3, 5], dtype=torch.int32), grid=1)
    assert out[0] == 30
    assert check_source(HEADER + LINKAGE) == []
