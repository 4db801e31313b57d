"""Random kernels that loop, always the same ones, as vector lanes and without. `python -m tests.fuzz.lanes` takes new ones."""

import pytest

from . import lanes


@pytest.mark.parametrize(
    "first, count",
    [
        (0, 6),
        pytest.param(100, 20, marks=pytest.mark.nightly),
        *[pytest.param(n, 50, marks=pytest.mark.nightly) for n in (120, *range(1000, 3000, 50))],
    ],
)
def test_random_kernels_leave_the_same_memory_as_lanes(first, count):
    wrong, taken = lanes.differences(list(range(first, first + count)))
    assert wrong == [] and 4 * len(taken) > count


def test_random_kernels_have_every_construct():
    text = lanes.source_of(list(range(200)))
    for construct in (
        "break;|continue;|return;|while (|} while|for (|float4 q|Pair p|float w[3]|w[u % 3u]|blend(|mix_bits(|[v & 1023u]"
        "|gid * 5u|wide[start + |bits[gid] +=|else {"
    ).split("|"):
        assert text.count(construct) > 5, construct
