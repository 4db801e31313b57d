"""How kernels find their elements: <metalops/strided.h>, compiled into a kernel of its own, so that the indices may be far
larger than any tensor."""

import itertools

import pytest
import torch
from metalops.build.paths import include_paths
from metalops.msl import flatten

from .direct import strided_layout

SOURCE = """
#include <metal_stdlib>
#include <metalops/strided.h>
using namespace metalops;
kernel void find(device long2* found [[buffer(0)]], constant long* indices [[buffer(1)]],
                 constant StridedLayout<2>& layout [[buffer(2)]], uint i [[thread_position_in_grid]]) {
  const auto offsets = offsets_of(indices[i], layout);
  found[i] = long2(offsets[0], offsets[1]);
}
kernel void number(device long* numbers [[buffer(0)]], constant uint2* positions [[buffer(1)]],
                   constant uint2& grid [[buffer(2)]], uint i [[thread_position_in_grid]]) {
  numbers[i] = thread_index(positions[i], grid);
}
"""


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    path = tmp_path_factory.mktemp("strided") / "strided_test.metal"
    path.write_text(SOURCE)
    return torch.mps.compile_shader(flatten(path, include_paths()))


def _indices(sizes):
    """Around every power of two, the ends, and the starts of rows."""
    count = torch.tensor(sizes).prod().item()
    marks = [0, count - 1, *(2**k for k in range(63))]
    marks += list(itertools.accumulate(sizes, lambda a, b: a * b))
    near = {mark + step for mark in marks for step in (-2, -1, 0, 1, 2)}
    return sorted(index for index in near if 0 <= index < count)


@pytest.mark.parametrize(
    "sizes",
    [
        (1,),
        (7,),
        (3, 5),
        (4, 1, 3),
        (2, 3, 2, 3, 2, 3),
        (2,) * 16,
        (65536, 65535),
        (65536, 65536),
        (3, 2**31 + 1, 5),
        (2**31 + 7, 3, 2),
        (2**32 + 1, 3),
        (5, 2**33),
        (2**20, 2**20, 2**20),
    ],
    ids=str,
)
def test_offsets_of_an_element(kernels, sizes):
    strides = [
        [8 * (3 * k + 1) for k in range(len(sizes))],
        [4 * (len(sizes) - k) for k in range(len(sizes))],
    ]
    indices = _indices(sizes)
    found = torch.zeros(len(indices), 2, dtype=torch.int64, device="mps")
    wanted = torch.tensor(indices, device="mps")
    kernels.find(found, wanted, strided_layout(sizes, strides), threads=len(indices))
    expected = []
    for index in indices:
        position = []
        for size in sizes:
            position.append(index % size)
            index //= size
        expected.append([sum(p * s for p, s in zip(position, of)) for of in strides])
    assert found.tolist() == expected


def test_number_of_a_thread_beyond_32_bits(kernels):
    positions = torch.tensor([[0, 0], [5, 0], [2**30 - 1, 3], [7, 4], [2**30 - 1, 2**31]])
    grid = torch.tensor([2**30, 2**31 + 1], dtype=torch.uint32, device="mps")
    numbers = torch.zeros(len(positions), dtype=torch.int64, device="mps")
    kernels.number(numbers, positions.to(torch.uint32).to("mps"), grid, threads=len(positions))
    assert numbers.tolist() == [y * 2**30 + x for x, y in positions.tolist()]
