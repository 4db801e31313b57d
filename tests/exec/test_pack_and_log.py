"""Conversions between vectors and packed integers, and os_log."""

import numpy as np
import torch

from .conftest import build

SOURCE = """
kernel void pack(device uint* out, device const float4* x, uint i [[thread_position_in_grid]]) {
  float4 v = x[i];
  half4 h = half4(v);
  out[i * 9] = pack_float_to_unorm4x8(v);
  out[i * 9 + 1] = pack_float_to_snorm4x8(v);
  out[i * 9 + 2] = pack_float_to_srgb_unorm4x8(v);
  out[i * 9 + 3] = pack_float_to_unorm2x16(v.xy);
  out[i * 9 + 4] = pack_float_to_snorm2x16(v.xy);
  out[i * 9 + 5] = pack_float_to_unorm10a2(v);
  out[i * 9 + 6] = pack_float_to_unorm565(v.xyz);
  out[i * 9 + 7] = pack_half_to_unorm4x8(h);
  out[i * 9 + 8] = pack_half_to_snorm2x16(h.xy);
}
kernel void unpack(device float4* out, device const uint* x, uint i [[thread_position_in_grid]]) {
  out[i * 7] = unpack_unorm4x8_to_float(x[i]);
  out[i * 7 + 1] = unpack_snorm4x8_to_float(x[i]);
  out[i * 7 + 2] = float4(unpack_unorm2x16_to_float(x[i]), unpack_snorm2x16_to_float(x[i]));
  out[i * 7 + 3] = unpack_unorm10a2_to_float(x[i]);
  out[i * 7 + 4] = float4(unpack_unorm565_to_float(ushort(x[i])), 0);
  out[i * 7 + 5] = float4(unpack_unorm4x8_to_half(x[i]));
  out[i * 7 + 6] = unpack_unorm4x8_srgb_to_float(x[i]);
}
kernel void say(uint i [[thread_position_in_grid]]) {
  os_log_default.log("thread %u of %d: %.2f %s %x %c %5d %03d %%", i, 3, 1.5f, "text", 255, 'c', 42, 7);
  os_log_default.log_error("vector %v3d and %v2f", int3(1, -2, 3), float2(0.5f, 2));
  os_log("subsystem", "category").log_info("short %hd long %ld half %f bool %d", short(-3), long(-5000000000), 0.25h, true);
}
"""


def to_unorm(x, bits):
    return int(np.rint(np.float32(min(max(x, 0), 1)) * np.float32(2**bits - 1)))


def to_snorm(x, bits):
    return int(np.rint(np.float32(min(max(x, -1), 1)) * np.float32(2 ** (bits - 1) - 1))) & (
        2**bits - 1
    )


def to_srgb(x):
    return 12.92 * x if x <= 0.0031308 else 1.055 * x ** (1 / 2.4) - 0.055


def from_srgb(x):
    return x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4


def joined(*fields):
    value, shift = 0, 0
    for field, bits in fields:
        value |= field << shift
        shift += bits
    return value


def test_pack():
    x = torch.cat(
        [torch.rand(200, 4) * 2.4 - 1.2, torch.tensor([[0.0, 1, -1, 0.5], [2, -2, 0.001, 1]])]
    )
    out = torch.zeros(len(x), 9, dtype=torch.int32)
    build(SOURCE).launch("pack", [out, x], len(x), 32)
    for row, result in zip(x.tolist(), out.tolist()):
        h = torch.tensor(row).half().tolist()
        srgb = [to_unorm(to_srgb(v), 8) for v in row[:3]] + [to_unorm(row[3], 8)]
        expected = [
            joined(*((to_unorm(v, 8), 8) for v in row)),
            joined(*((to_snorm(v, 8), 8) for v in row)),
            joined(*((v, 8) for v in srgb)),
            joined(*((to_unorm(v, 16), 16) for v in row[:2])),
            joined(*((to_snorm(v, 16), 16) for v in row[:2])),
            joined(*((to_unorm(v, 10), 10) for v in row[:3]), (to_unorm(row[3], 2), 2)),
            joined((to_unorm(row[0], 5), 5), (to_unorm(row[1], 6), 6), (to_unorm(row[2], 5), 5)),
            joined(*((to_unorm(v, 8), 8) for v in h)),
            joined(*((to_snorm(v, 16), 16) for v in h[:2])),
        ]
        assert [v & 0xFFFFFFFF for v in result] == expected


def signed(field, bits):
    return max((field - (1 << bits) if field >> (bits - 1) else field) / (2 ** (bits - 1) - 1), -1)


def test_unpack():
    x = torch.randint(-(2**31), 2**31, (300,)).int()
    x[:3] = torch.tensor([0, -1, -0x80000000], dtype=torch.int64).int()
    out = torch.zeros(300, 7, 4)
    build(SOURCE).launch("unpack", [out, x], 300, 32)
    for value, result in zip(x.tolist(), out.tolist()):
        value &= 0xFFFFFFFF
        bytes_ = [value >> s & 255 for s in (0, 8, 16, 24)]
        words = [value & 65535, value >> 16]
        expected = [
            [b / 255 for b in bytes_],
            [signed(b, 8) for b in bytes_],
            [words[0] / 65535, words[1] / 65535, signed(words[0], 16), signed(words[1], 16)],
            [(value >> s & 1023) / 1023 for s in (0, 10, 20)] + [(value >> 30) / 3],
            [(value & 31) / 31, (value >> 5 & 63) / 63, (value >> 11 & 31) / 31, 0],
            [b / 255 for b in bytes_],
            [from_srgb(b / 255) for b in bytes_[:3]] + [bytes_[3] / 255],
        ]
        np.testing.assert_allclose(
            result[:5] + result[6:], expected[:5] + expected[6:], rtol=1e-5, atol=1e-6
        )
        np.testing.assert_allclose(result[5], expected[5], rtol=1e-3)


def test_log_lines_go_to_standard_error(capfd):
    build(SOURCE).launch("say", [], 2, 1, threads=1)
    lines = capfd.readouterr().err.splitlines()
    for i in range(2):
        assert lines[3 * i] == f"thread {i} of 3: 1.50 text ff c    42 007 %"
        assert lines[3 * i + 1] == "vector 1,-2,3 and 0.500000,2.000000"
        assert (
            lines[3 * i + 2]
            == "[subsystem:category] short -3 long -5000000000 half 0.250000 bool 1"
        )
