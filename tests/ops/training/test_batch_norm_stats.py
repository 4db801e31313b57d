"""batch_norm_update_stats: kernels/training/batch_norm_stats.metal."""

import pytest
import torch
from metalops import testing
from metalops.testing.samples import FLOATS, make, to_device
from torch import batch_norm_update_stats

from ..aten import CPU_FLOATS, Calls, OpInfoSamples, assert_refused_as_on_the_cpu, served_by_us
from ..benchmark import FIBERS, HALVES_ONE_BY_ONE, Benchmark

by_float = pytest.mark.parametrize("dtype", FLOATS, ids=str)
# Channels for one thread, a simdgroup, several; short and long rows in each; whole blocks and parts.
SHAPES = [
    (4, 3, 5),
    (2, 3),
    (1, 3),
    (33, 130),
    (700, 3),
    (3, 2, 16),
    (20, 5, 7, 7),
    (2, 3, 100, 100),
    (1, 2, 9000),
    (2, 4, 3, 5, 2),
    # Parts of channels: packs and elements one by one, several samples and several parts of one,
    # channels that fill threads, groups and several groups, or not.
    (3, 2, 8, 20),
    (70, 5, 2, 2),
    (2, 2, 8195),
    (3, 2, 8196),
    (1100, 132),
    (1030, 133),
    (90, 280),
    (40, 34, 3, 3),
]


def _opinfo_batch_norm(dtype: torch.dtype) -> Calls:
    for shape in ((4, 3), (2, 3, 70), (2, 5, 4, 4)):
        averages = make(shape[1:2], dtype), make(shape[1:2], dtype, low=0, high=1)
        yield (make(shape, dtype), *averages, 0.1), {}
        yield (make(shape, dtype), None, None, 0.1), {}


def _opinfo_functional_batch_norm_stats(x, running_mean, running_var, momentum):
    averages = [None if a is None else a.clone() for a in (running_mean, running_var)]
    stats = torch.batch_norm_update_stats(x, *averages, momentum)
    return stats if running_mean is None else (*stats, *averages)


OPINFO_SAMPLES = (
    OpInfoSamples(
        "batch_norm_update_stats",
        _opinfo_functional_batch_norm_stats,
        CPU_FLOATS,
        _opinfo_batch_norm,
    ),
)


def _stats_of_images(x, out):
    """Of 64 channels and up to 32 x 32 pixels."""
    images = x.reshape(-1, min(64, x.numel()), min(1024, max(1, x.numel() // 64)))
    return batch_norm_update_stats(images, None, None, 0.1)


BENCHMARKS = (
    Benchmark.same(
        "batch_norm_update_stats", _stats_of_images, reason=f"{FIBERS}; and {HALVES_ONE_BY_ONE}"
    ),
)


def _tolerance(dtype):
    return {"rtol": max(2e-6, torch.finfo(dtype).eps), "atol": 1e-6, "equal_nan": True}


def _check(x, stats_dtype=None, momentum=0.1, running=(True, True)):
    """Against float64; the running statistics are updated in a strided tensor, whose rest stays."""
    channels = x.shape[1]
    stats_dtype = stats_dtype or x.dtype
    before = make((2, 2 * channels), stats_dtype, low=0, high=2)
    averages = to_device(before, "mps")
    given = [a if use else None for a, use in zip(averages[:, ::2], running, strict=True)]
    mean, variance = batch_norm_update_stats(to_device(x, "mps"), *given, momentum)

    dims = [d for d in range(x.dim()) if d != 1]
    exact_mean = x.double().mean(dims)
    exact_variance = x.double().var(dims, correction=0)
    count = x.numel() // channels
    unbiased = exact_variance * count / (count - 1) if count > 1 else exact_variance * torch.nan
    after = before.double()
    for i, value in enumerate((exact_mean, unbiased)):
        if running[i]:
            after[i, ::2] = momentum * value + (1 - momentum) * after[i, ::2]
    expected_dtype = stats_dtype if any(running) else x.dtype
    for actual, expected in ((mean, exact_mean), (variance, exact_variance), (averages, after)):
        dtype = stats_dtype if actual is averages else expected_dtype
        assert actual.dtype == dtype and actual.is_contiguous()
        torch.testing.assert_close(actual.cpu(), expected.to(dtype), **_tolerance(dtype))


@pytest.mark.sampled(24)
@by_float
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.usefixtures("taken_as_on")
def test_mean_and_variance_and_their_averages(shape, dtype):
    x = make(shape, dtype, low=-1, high=3)
    for momentum in (0.1, 0.0, 1.0):
        _check(x, momentum=momentum)
    _check(x, torch.float32)
    for running in ((True, False), (False, True), (False, False)):
        _check(x, running=running)


@pytest.mark.sampled(2)
@by_float
@pytest.mark.usefixtures("taken_as_on")
def test_inputs_of_every_layout(dtype):
    x = make((4, 6, 9, 10), dtype)
    for view in (
        x.to(memory_format=torch.channels_last),
        x.transpose(0, 1),
        x.transpose(1, 3),
        x[1:, ::2, 2:, 1::3],
        x[:1, :, :1, :1].expand(4, 6, 9, 10),
        x[:, :1].expand(4, 6, 9, 10),
        make((70, 40), dtype).t(),
        make((5, 2, 3, 4, 6), dtype).to(memory_format=torch.channels_last_3d),
    ):
        _check(view)


@by_float
@pytest.mark.parametrize("channels", [1, 3, 4, 40, 136])
@pytest.mark.usefixtures("taken_as_on")
def test_channels_last(channels, dtype):
    x = make((3, channels, 31, 17), dtype, low=-1, high=3).to(memory_format=torch.channels_last)
    _check(x)
    _check(x[:, :, 1:, :-1])
    _check(x[:, 1:] if channels > 1 else x)
    _check(x[:, :, ::2, ::3])


@by_float
@pytest.mark.parametrize("begin", range(5))
@pytest.mark.usefixtures("taken_as_on")
def test_inputs_that_begin_anywhere(begin, dtype):
    x = to_device(make((5 + 4 * 8 * 96,), dtype), "mps")[begin : begin + 4 * 8 * 96]
    for view in (x.view(4, 8, 96), x.view(4, 96, 8).transpose(1, 2), x.view(4 * 96, 8)):
        expected = batch_norm_update_stats(view.cpu(), None, None, 0.1)
        for actual, value in zip(
            batch_norm_update_stats(view, None, None, 0.1), expected, strict=True
        ):
            torch.testing.assert_close(actual.cpu(), value, **_tolerance(dtype))


def _layouts(x):
    """Of a contiguous (N, C, L): the same numbers, channels apart and channels adjacent."""
    return x, x.transpose(1, 2).contiguous().transpose(1, 2)


@pytest.mark.usefixtures("taken_as_on")
def test_variance_of_numbers_far_from_zero():
    for x in _layouts(1000 + make((50, 3, 70), torch.float32, low=-1, high=1)):
        _, variance = batch_norm_update_stats(x.to("mps"), None, None, 0.1)
        expected = x.double().var((0, 2), correction=0)
        torch.testing.assert_close(variance.cpu().double(), expected, rtol=1e-4, atol=0)


def test_variance_that_is_small_against_the_mean_of_many_numbers(taken_as_on):
    for x in _layouts(1000 + make((9, 12, 6000), torch.float32, low=-1e-2, high=1e-2)):
        mean, variance = batch_norm_update_stats(x.to("mps"), None, None, 0.1)
        expected = x.double().var((0, 2), correction=0)
        rtol = 5e-4 if taken_as_on == "cpu" else 1e-6
        torch.testing.assert_close(variance.cpu().double(), expected, rtol=rtol, atol=0)
        torch.testing.assert_close(mean.cpu(), x.double().mean((0, 2)).float(), rtol=2e-7, atol=0)


@pytest.mark.parametrize("value", [0.1, -1e4 / 3])
@pytest.mark.usefixtures("taken_as_on")
def test_variance_of_equal_numbers_is_not_negative(value):
    for x in _layouts(torch.full((3, 12, 7001), value)):
        _, variance = batch_norm_update_stats(x.to("mps"), None, None, 0.1)
        assert variance.min() >= 0 and variance.max() <= (1e-6 * value) ** 2


@pytest.mark.parametrize("place", [0, 777])
@pytest.mark.usefixtures("taken_as_on")
def test_variance_of_numbers_of_which_one_lies_apart(place):
    x = make((3, 8, 4000), torch.float32, low=-1, high=1)
    x[1, ::2, place] = 1e4
    x[0, 1::2, place] = -3e2
    for layout in _layouts(x):
        _, variance = batch_norm_update_stats(layout.to("mps"), None, None, 0.1)
        expected = x.double().var((0, 2), correction=0)
        torch.testing.assert_close(variance.cpu().double(), expected, rtol=2e-6, atol=0)


@pytest.mark.parametrize("length", [7, 40, 4000])
@pytest.mark.usefixtures("taken_as_on")
def test_sums_that_overflow(length):
    x = torch.full((3, 4, length), 3e38)
    for layout in _layouts(x):
        for stats in batch_norm_update_stats(layout.to("mps"), None, None, 0.1):
            assert stats.cpu().tolist() == [torch.inf] * 4


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.usefixtures("taken_as_on")
def test_infinities_and_nan(channels_last):
    x = make((3, 4, 40), torch.float32)
    x[0, 0, 0], x[1, 1, 5], x[2, 2, 7] = torch.nan, torch.inf, -torch.inf
    x = _layouts(x)[channels_last]
    for actual, expected in zip(
        batch_norm_update_stats(x.to("mps"), None, None, 0.1),
        batch_norm_update_stats(x, None, None, 0.1),
        strict=True,
    ):
        torch.testing.assert_close(actual.cpu(), expected, equal_nan=True, rtol=1e-5, atol=1e-6)


def test_arguments_that_the_cpu_refuses():
    x, average = torch.rand(4, 3, 5), torch.rand(3)
    calls = [
        lambda to: batch_norm_update_stats(to(x), to(average.half()), to(average.half()), 0.1),
        lambda to: batch_norm_update_stats(to(x.half()), to(average), to(average.half()), 0.1),
        lambda to: batch_norm_update_stats(to(x.half()), to(average.bfloat16()), None, 0.1),
        lambda to: batch_norm_update_stats(to(x[:0]), to(average), to(average), 0.1),
        lambda to: batch_norm_update_stats(to(x[:, :0]), to(average[:0]), to(average[:0]), 0.1),
        lambda to: batch_norm_update_stats(to(x[0, 0]), to(average), to(average), 0.1),
    ]
    assert_refused_as_on_the_cpu(calls, RuntimeError, IndexError)
    with pytest.raises(NotImplementedError, match="not implemented for 'Int'"):
        batch_norm_update_stats(x.int().to("mps"), None, None, 0.1)


def test_averages_beyond_which_torch_would_read():
    x, average = torch.rand(4, 3, 5, device="mps"), torch.rand(3, device="mps")
    with pytest.raises(RuntimeError, match="running_mean should contain 3 elements not 2"):
        batch_norm_update_stats(x, average[:2], average, 0.1)
    with pytest.raises(RuntimeError, match="running_var should contain 3 elements not 4"):
        batch_norm_update_stats(x, average, torch.rand(4, device="mps"), 0.1)
    with pytest.raises(RuntimeError, match="single memory location"):
        batch_norm_update_stats(x, average[:1].expand(3), average, 0.1)
    with pytest.raises(RuntimeError, match="expected scalar type Half but found Float"):
        batch_norm_update_stats(x.half(), average.half(), average, 0.1)
    with pytest.raises(RuntimeError, match="same device"):
        batch_norm_update_stats(x, average.cpu(), average, 0.1)


@pytest.mark.parametrize("samples", [4, 400])
@pytest.mark.usefixtures("taken_as_on")
def test_no_host_copy_and_no_stand_in(samples):
    x, average = torch.rand(samples, 3, 5, device="mps"), torch.zeros(3, device="mps")

    def run():
        with testing.no_host_copies():
            batch_norm_update_stats(x, average, None, 0.1)

    assert served_by_us(run) == []
