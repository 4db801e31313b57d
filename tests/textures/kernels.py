"""Kernels that apply one operation of a texture to many places."""

from __future__ import annotations

import functools
from collections.abc import Callable

import metalops
import torch

# By kind: the type, the coordinates to sample at from `float3 p`, the array element where there is one, the offset, and
# the coordinates to read at from `uint3 p`, with the face f and the element e.
TYPES = {
    "1d": ("texture1d", "p.x", "", "", "p.x"),
    "1d_array": ("texture1d_array", "p.x", ", e", "", "p.x, e"),
    "2d": ("texture2d", "p.xy", "", ", o.xy", "p.xy"),
    "2d_array": ("texture2d_array", "p.xy", ", e", ", o.xy", "p.xy, e"),
    "3d": ("texture3d", "p", "", ", o", "p"),
    "cube": ("texturecube", "p", "", "", "p.xy, f"),
    "cube_array": ("texturecube_array", "p", ", e", "", "p.xy, f, e"),
    "buffer": ("texture_buffer", "", "", "", "p.x"),
}
_PLACE = """
  float3 p = float3(places[3 * i], places[3 * i + 1], places[3 * i + 2]);
  uint e = elements[i];
  int3 o = int3(offset[0], offset[1], offset[2]);
  (void)e; (void)o;
"""
_ARGUMENTS = """device {type}4* out, device const float* places, device const uint* elements,
    device const float* numbers, constant long* offset, uint i [[thread_position_in_grid]]"""


def _type_of(component: str) -> str:
    """Returns the type of 32 bits that results are stored in."""
    return {"half": "float", "short": "int", "ushort": "uint"}.get(component, component)


def sampling_source(kind: str, component: str) -> str:
    """Returns the kernel sample and, where the kind has them, gather_0 to gather_3."""
    name, at, element, offset, _ = TYPES[kind]
    type_ = _type_of(component)
    arguments = _ARGUMENTS.format(type=type_)
    option = ", level(numbers[i])" if not kind.startswith("1d") else ""
    text = f"""
kernel void sample({name}<{component}> t, sampler s, {arguments}) {{{_PLACE}
  out[i] = {type_}4(t.sample(s, {at}{element}{option}{offset}));
}}
"""
    if not kind.startswith("1d") and kind != "3d":
        for number, letter in enumerate("xyzw"):
            text += f"""
kernel void gather_{number}({name}<{component}> t, sampler s, {arguments}) {{{_PLACE}
  out[i] = {type_}4(t.gather(s, {at}{element}{offset}, component::{letter}));
}}
"""
    return text


def depth_source(kind: str, component: str = "float") -> str:
    name, at, element, offset, _ = TYPES[kind]
    name = name.replace("texture", "depth")
    arguments = _ARGUMENTS.format(type="float")
    compare = f"s, {at}{element}, numbers[i]"
    return f"""
kernel void sample({name}<float> t, sampler s, {arguments}) {{{_PLACE}
  out[i] = t.sample(s, {at}{element}{offset});
}}
kernel void sample_compare({name}<float> t, sampler s, {arguments}) {{{_PLACE}
  out[i] = t.sample_compare({compare}{offset});
}}
kernel void gather({name}<float> t, sampler s, {arguments}) {{{_PLACE}
  out[i] = t.gather(s, {at}{element}{offset});
}}
kernel void gather_compare({name}<float> t, sampler s, {arguments}) {{{_PLACE}
  out[i] = t.gather_compare({compare}{offset});
}}
"""


def gradient_source(kind: str, component: str = "float") -> str:
    """Returns kernels that take twice three derivatives from `numbers`."""
    name, at, element, offset, _ = TYPES[kind]
    option = {"2d": "gradient2d", "2d_array": "gradient2d", "3d": "gradient3d"}.get(
        kind, "gradientcube"
    )
    part = ".xy" if option == "gradient2d" else ""
    return f"""
kernel void sample({name}<float> t, sampler s, {_ARGUMENTS.format(type="float")}) {{{_PLACE}
  device const float* d = numbers + 6 * i;
  float3 x = float3(d[0], d[1], d[2]), y = float3(d[3], d[4], d[5]);
  out[i] = t.sample(s, {at}{element}, {option}(x{part}, y{part}){offset});
}}
kernel void clamped({name}<float> t, sampler s, {_ARGUMENTS.format(type="float")}) {{{_PLACE}
  out[i] = t.sample(s, {at}{element}, level(numbers[i]), min_lod_clamp(1.5f){offset});
}}
"""


def texel_source(kind: str, component: str) -> str:
    """Returns the kernels read and write, whose places are `uint4`: x, y, z or the face, and the array element."""
    name, _, _, _, at = TYPES[kind]
    type_ = _type_of(component)
    place = "uint4 p4 = places[i]; uint3 p = p4.xyz; uint f = p4.z, e = p4.w; (void)f; (void)e;"
    lod = "" if kind == "buffer" else ", lod"
    return f"""
kernel void read({name}<{component}, access::read> t, device {type_}4* values, device const uint4* places,
                 constant long& level, uint i [[thread_position_in_grid]]) {{
  {place} uint lod = uint(level); (void)lod;
  values[i] = {type_}4(t.read({at}{lod}));
}}
kernel void write({name}<{component}, access::write> t, device {type_}4* values, device const uint4* places,
                  constant long& level, uint i [[thread_position_in_grid]]) {{
  {place} uint lod = uint(level); (void)lod;
  t.write(vec<{component}, 4>(values[i]), {at}{lod});
}}
"""


@functools.cache
def shader(source: Callable[[str, str], str], kind: str, component: str = "float"):
    """Returns the kernels of one of the functions above."""
    head = "#include <metal_stdlib>\nusing namespace metal;\n"
    return metalops.compile_shader(head + source(kind, component))


def component_of(format: str) -> str:
    return "uint" if format.endswith("uint") else "int" if format.endswith("sint") else "float"


def launch(
    kernel, texture, sampler, places, elements, numbers, offset=(0, 0, 0), component: str = "float"
) -> torch.Tensor:
    """Returns what a sampling kernel gives at these places: a row for each. numbers: for each place the level of detail or
    what it is compared with, or a row of derivatives."""
    device = texture.levels[0].device
    flat = torch.tensor([[*place, 0.0, 0.0][:3] for place in places], dtype=torch.float32)
    dtype = torch.float32 if component in ("float", "half") else torch.int32
    out = torch.full((len(places), 4), 77, dtype=dtype, device=device)
    kernel(
        texture,
        sampler,
        out,
        flat.to(device),
        torch.tensor(elements, dtype=torch.int32).to(device),
        torch.tensor(numbers, dtype=torch.float32).to(device),
        torch.tensor(offset, dtype=torch.int64).to(device),
        threads=len(places),
    )
    return numbers_of(out, component)


def numbers_of(out: torch.Tensor, component: str) -> torch.Tensor:
    """Returns the components that a kernel has written as float64."""
    result = out.cpu().double()
    return torch.where(result < 0, result + 2**32, result) if component == "uint" else result
