"""Numbers of 2, 4 and 8 bits: every code against torch's own types, and packing."""

import pytest
import torch

from .elements import ELEMENTS
from .products import build

SMALL = ["int4", "uint4", "int2", "uint2", "e2m1", "e4m3", "e5m2"]
KERNELS = "".join(
    f"""
kernel void unpack_{name}(device const packed_numeric_type<{ELEMENTS[name].metal}, 4>* in, device float4* out,
                          uint i [[thread_position_in_grid]]) {{ out[i] = in[i].unpack<float>(); }}
kernel void pack_{name}(device const float4* in, device packed_numeric_type<{ELEMENTS[name].metal}, 4>* out,
                        uint i [[thread_position_in_grid]]) {{
  out[i] = packed_numeric_type<{ELEMENTS[name].metal}, 4>::pack(in[i]); }}
static_assert(is_numeric_format_v<{ELEMENTS[name].metal}>, "");
"""
    for name in SMALL
)


def every_code(name):
    return torch.arange(2 ** ELEMENTS[name].bits).reshape(-1, 4)


@pytest.mark.parametrize("name", SMALL)
def test_every_code_has_its_value(name):
    codes = every_code(name)
    out = torch.zeros(codes.shape)
    build(KERNELS, language="4.1").launch(
        f"unpack_{name}", [ELEMENTS[name].pack(codes), out], len(codes), 32
    )
    assert torch.equal(
        out.nan_to_num(12345), ELEMENTS[name].values(codes).float().nan_to_num(12345)
    )
    assert torch.equal(out.signbit(), ELEMENTS[name].values(codes).signbit())


@pytest.mark.parametrize("name", SMALL)
def test_packing_takes_the_nearest_value(name):
    values = torch.cat([torch.linspace(-500, 500, 2001), torch.linspace(-9, 9, 2315)])
    values = torch.cat(
        [values, torch.tensor([1e-3, -1e-3, 2**-9, 2**-10, 3 * 2**-10, 0.0, 1e30, -1e30])]
    )
    values = values[: len(values) // 4 * 4].reshape(-1, 4)
    out = torch.zeros(len(values), 4 * ELEMENTS[name].bits // 8, dtype=torch.uint8)
    build(KERNELS, language="4.1").launch(f"pack_{name}", [values, out], len(values), 32)
    codes = every_code(name).flatten()
    known = ELEMENTS[name].values(codes)
    finite = known[known.isfinite()]
    in_byte = 8 // ELEMENTS[name].bits
    parts = [
        (out.long() >> (i * ELEMENTS[name].bits)) & (2 ** ELEMENTS[name].bits - 1)
        for i in range(in_byte)
    ]
    found = ELEMENTS[name].values(torch.stack(parts, -1).reshape(values.shape))
    clamped = values.double().clamp(finite.min(), finite.max())
    if name == "e5m2":  # has infinity
        large = values.double().abs() >= 61440
        assert (found[large].abs() == torch.inf).all()
        found[large] = clamped[large]
    nearest = (clamped.unsqueeze(-1) - finite).abs().amin(-1)
    assert torch.equal((found - clamped).abs(), nearest)
