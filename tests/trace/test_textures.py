"""Launches with textures and samplers are recorded in a file, and run again with the same results."""

import metalops
import pytest
import torch
from metalops import debug, trace
from metalops.trace.replay import SoftwareDevice, replay

pytestmark = pytest.mark.full  # compiles a source

SOURCE = """
#include <metal_stdlib>
using namespace metal;
constant bool masked [[function_constant(0)]];
kernel void sampled(texture2d<float> in [[texture(2)]], texture2d<float, access::write> out [[texture(0)]], sampler s,
                    sampler other [[sampler(2)]], texture2d<uint> mask [[texture(7), function_constant(masked)]],
                    constant float& scale, uint2 p [[thread_position_in_grid]]) {
  float4 color = in.sample(s, float2(p) / 5, level(p.x)) + in.sample(other, float2(p));
  if (masked) color += float4(mask.read(p));
  out.write(color * scale, p);
}
kernel void summed(array<texture2d<uint>, 2> parts, texture_buffer<uint, access::read_write> sum,
                   uint i [[thread_position_in_grid]]) {
  sum.atomic_fetch_add(0, uint4(parts[i & 1].read(uint2(i / 2, 0))));
}
"""


@pytest.fixture(scope="module")
def arguments():
    levels = [torch.rand(8 >> i, 8 >> i, 4, device="mps") for i in range(3)]
    target = torch.zeros(6, 9, 4, dtype=torch.uint8, device="mps")[1:, 2:7]
    samplers = [metalops.sampler("linear", mip_filter=mip) for mip in ("linear", "none", "nearest")]
    textures = [
        metalops.texture(target, "rgba8unorm_srgb"),
        metalops.texture(target),
        metalops.texture(levels),
    ]
    return [*textures, *samplers, 0.5]


def replayed(path):
    return list(replay(trace.load(path), SoftwareDevice(), check=True))


@pytest.mark.parametrize("is_masked", [False, True])
def test_they_run_again_with_the_same_results(tmp_path, arguments, is_masked):
    library = metalops.compile_shader(SOURCE, constants={"masked": is_masked})
    if is_masked:
        counts = torch.randint(0, 2, (5, 5), dtype=torch.int32, device="mps")
        arguments = [*arguments, *[metalops.texture(counts, "r32uint")] * 5]
    target = arguments[0].levels[0]
    target.zero_()
    with debug.capture(tmp_path / "a.trace"):
        library.sampled(*arguments, threads=(5, 5))
    assert target.count_nonzero() > 0
    recorded = trace.load(tmp_path / "a.trace")
    (launch,) = recorded.launches
    assert sorted(t.index for t in launch.textures) == [0, 2, *[7] * is_masked]
    assert launch.samplers == {i: arguments[3 + i].bits for i in (0, 2)}
    assert len(launch.results) == 1
    (row,) = replayed(tmp_path / "a.trace")
    assert row.problems == ()
    texels = 25 * 4 + (64 + 16 + 4) * 16 + is_masked * 25 * 4
    assert row.bytes == texels + 4


def test_another_result_is_told(tmp_path, arguments):
    library = metalops.compile_shader(SOURCE, constants={"masked": False})
    with debug.capture(tmp_path / "a.trace"):
        library.sampled(*arguments, threads=(5, 5))
    recorded = trace.load(tmp_path / "a.trace")
    (launch,) = recorded.launches
    ((memory, name),) = launch.results.items()
    wrong = bytearray(recorded.blobs[name])
    wrong[9 * 4 + 8] ^= 1
    launch.results[memory] = recorded.add_blob(bytes(wrong))
    (row,) = replay(recorded, SoftwareDevice(), check=True)
    assert "1 of 216 elements differ, the first at 44" in row.problems[0]


def test_arrays_and_atomics(tmp_path):
    library = metalops.compile_shader(SOURCE, constants={"masked": False})
    parts = [torch.randint(0, 100, (1, 8), dtype=torch.int32, device="mps") for _ in range(2)]
    total = torch.zeros(1, dtype=torch.int32, device="mps")
    textures = [metalops.texture(part, "r32uint") for part in parts]
    with debug.capture(tmp_path / "a.trace"):
        for _ in range(2):
            library.summed(*textures, metalops.texture(total, "r32uint", "buffer"), threads=16)
    assert total.item() == 2 * sum(part.sum().item() for part in parts)
    assert [row.problems for row in replayed(tmp_path / "a.trace")] == [(), ()]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"textures": ()}, "nothing is bound to texture 2"),
        ({"samplers": {}}, "nothing is bound to sampler 0"),
    ],
)
def test_launches_without_them_are_refused(tmp_path, arguments, change, message):
    library = metalops.compile_shader(SOURCE, constants={"masked": False})
    with debug.capture(tmp_path / "a.trace"):
        library.sampled(*arguments, threads=(5, 5))
    recorded = trace.load(tmp_path / "a.trace")
    event = recorded.events.pop()
    recorded.events.append(trace.Launch(**{**vars(event), **change}))
    with pytest.raises(trace.TraceError, match=message):
        list(replay(recorded, SoftwareDevice()))
