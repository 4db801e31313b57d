"""Shuffles that take the value of a lane which takes no part: the variable's last value if the lane has it, otherwise 0."""

import pytest
import torch

from .conftest import build, engines_of

SOURCE = """
#define PARAMETERS device uint* out, uint lane [[thread_index_in_simdgroup]]

kernel void other_branch(PARAMETERS) {
  uint v = 100 + lane, x = 0;
  if (lane < 16) {
    x = simd_shuffle(v, 20);
    v = 1000 + lane;
  } else {
    v += 7;  // after the shuffle above
    x = simd_shuffle(v, 3);
  }
  out[lane] = x;
}
kernel void returned(PARAMETERS) {
  uint v = 100 + lane;
  out[lane] = 1;
  if (lane == 20) {
    v = 5;
    return;
  }
  uint after = 100 + lane;
  out[lane] = simd_shuffle(v, 20) + 1000 * simd_shuffle(after, 20);
}
kernel void left_a_loop(PARAMETERS) {
  uint v = lane, sum = 0;
  for (uint i = 0; i < lane; ++i) {
    v += 32;
    uint inside = v;
    sum = sum * 2 + (simd_shuffle_xor(v, 1) & 31) + simd_shuffle_xor(inside, 1) / 32;
  }
  out[lane] = sum;
}
kernel void chosen_in_an_expression(PARAMETERS) {
  uint v = 100 + lane;
  v = lane & 1 ? simd_shuffle(v, lane - 1) : 3;
  out[lane] = v;
}
kernel void declared_without_a_value(PARAMETERS) {
  uint v;
  if (lane > 7) v = 100 + lane;
  if (lane > 15) out[lane] = simd_shuffle(v, lane - 15);
  else out[lane] = 9;
}
inline uint of_parameter(uint v, uint lane) {
  if (lane == 4) return v;
  return simd_broadcast(v, 4) + 1000 * simd_broadcast(v, 5);
}
kernel void parameters(PARAMETERS) {
  out[lane] = lane != 5 ? of_parameter(100 + lane, lane) : 0;
}
kernel void positions_and_uniform_values(PARAMETERS) {
  const uint uniform = 7, third = lane / 3;
  out[lane] = 1;
  if (lane > 15) out[lane] = simd_shuffle(lane, 2) + 10 * simd_shuffle(uniform, 3) + 100 * simd_shuffle(third, 15);
}
kernel void closures(PARAMETERS) {
  auto f = [&](uint v) {
    if (lane & 1) return v;
    return simd_shuffle_xor(v, 1);
  };
  out[lane] = f(100 + lane);
}
kernel void cases(PARAMETERS) {
  uint v = lane, x = 0;
  switch (lane % 3) {
    case 0: x = simd_shuffle_down(v, 1); v = 50; break;
    case 1: x = simd_shuffle_up(v, 1);
    default: v += 100; x += simd_shuffle_rotate_down(v, 31);
  }
  out[lane] = x;
}
kernel void types(PARAMETERS) {
  half4 h = half4(lane);
  char c = char(lane);
  float2 f = float2(lane, 2 * lane);
  out[lane] = 0;
  if (lane < 8) {
    out[lane] = uint(simd_shuffle(h, 9).w) + 100 * uint(quad_broadcast(c, 2)) + uint(simd_shuffle_down(f, 8).y) * 10000;
  }
}
kernel void expressions(PARAMETERS) {
  uint v = 100 + lane;
  out[lane] = 1;
  if (lane < 16) out[lane] = simd_shuffle(v + 0, 20) + simd_shuffle(v + 0, 3);
}
"""


def shuffled_while_looping(lane):
    """`left_a_loop`: a lane whose partner has left the loop takes its last v, and none of what it does not have."""
    total = 0
    for i in range(lane):
        partner = lane ^ 1
        has_it = i < partner
        total = total * 2 + partner + ((i + 1) if has_it else 0)
    return total % 2**32


def of_case(lane):
    def v(other):  # when the lanes of `default` shuffle
        return 50 if other % 3 == 0 else 100 + other

    if lane % 3 == 0:
        return lane + 1 if lane < 31 else lane
    return v((lane + 31) % 32) + (50 if lane % 3 == 1 else 0)


EXPECTED = {
    "other_branch": lambda lane: 120 if lane < 16 else 1003,
    "returned": lambda lane: 1 if lane == 20 else 5,
    "left_a_loop": shuffled_while_looping,
    "chosen_in_an_expression": lambda lane: 99 + lane if lane & 1 else 3,
    "declared_without_a_value": lambda lane: 9 if lane < 16 else 85 + lane if lane - 15 > 7 else 0,
    "parameters": lambda lane: 0 if lane == 5 else 104,
    "positions_and_uniform_values": lambda lane: 572 if lane > 15 else 1,
    "closures": lambda lane: 101 + lane - lane % 2,
    "cases": of_case,
    "types": lambda lane: 9 + 100 * (lane - lane % 4 + 2) + 20000 * (lane + 8) if lane < 8 else 0,
    "expressions": lambda lane: 103 if lane < 16 else 1,
}


@pytest.mark.parametrize("name", EXPECTED)
def test_lanes_that_take_no_part_give_the_last_value_of_a_variable(name):
    library = build(SOURCE)
    engines = engines_of(library, name)
    assert "group" in engines
    for engine in (*engines, "fiber") if "fiber" not in engines else engines:
        out = torch.zeros(32, dtype=torch.int32)
        library.launch(name, [out], 32, 32, engine=engine)
        values = [value & 0xFFFFFFFF for value in out.tolist()]
        assert values == [EXPECTED[name](lane) for lane in range(32)], engine
