"""Norms and their gradients in the place of stock's, while the fix "norm" is on: kernels/training/norm.metal."""

import metalops
import pytest
import torch
from metalops import debug, fixes
from metalops.testing.samples import FLOATS, make, to_device
from torch.nn import functional as F
from torch.ops import aten

from ..aten import assert_refused_as_on_the_cpu, kernels_of
from ..spatial.helpers import layouts

NARROW = (torch.float16, torch.bfloat16)
OPERATORS = (
    "native_batch_norm", "native_batch_norm.out", "native_batch_norm_backward",
    "_native_batch_norm_legit", "_native_batch_norm_legit.out",
    "_native_batch_norm_legit.no_stats", "_native_batch_norm_legit.no_stats_out",
    "_batch_norm_with_update", "_batch_norm_with_update.out", "batch_norm_backward",
    "native_layer_norm", "native_layer_norm_backward", "native_group_norm", "native_group_norm_backward",
    "_fused_rms_norm", "_fused_rms_norm_backward",
)  # fmt: skip


@pytest.fixture(autouse=True)
def served_by_our_kernels():
    with metalops.enable_fixes("norm"), debug.standins() as served:
        yield
    assert not {name.removeprefix("aten::") for name in served} & set(OPERATORS)


def _batch(training, **options):
    def norm(x, weight=None, bias=None):
        like = torch.float32 if x.dtype != torch.float64 else torch.float64
        mean = torch.linspace(-1, 1, x.shape[1], dtype=like, device=x.device)
        return F.batch_norm(x, mean, mean.abs() + 0.5, weight, bias, training, **options)

    return norm


NORMS = {
    "batch, training": _batch(True),
    "batch, evaluation": _batch(False),
    "batch, no averages": lambda x, w, b: F.batch_norm(x, None, None, w, b, True),
    "instance": lambda x, w, b: F.instance_norm(x, weight=w, bias=b),
    "layer": lambda x, w, b: F.layer_norm(x.movedim(1, -1), (x.shape[1],), w, b),
    "group": lambda x, w, b: F.group_norm(x, 2, w, b),
    "rms": lambda x, w, b: F.rms_norm(x.movedim(1, -1), (x.shape[1],), w) + b,
}
# rms_norm of torch rounds to half precision before it multiplies by a float32 weight.
MIXED = [name for name in NORMS if name != "rms"]


def _check(norm, tensors):
    """Compares results and gradients with float64."""
    wide = [t.double().requires_grad_() for t in tensors]
    inputs = [to_device(t, "mps").requires_grad_() for t in tensors]
    expected, actual = norm(*wide), norm(*inputs)
    cotangent = make(expected.shape, actual.dtype, low=-1, high=1)
    for t, a, e in zip(
        (actual, *inputs),
        (actual, *torch.autograd.grad(actual, inputs, cotangent.to("mps"))),
        (expected, *torch.autograd.grad(expected, wide, cotangent.double())),
        strict=True,
    ):
        assert a.dtype == t.dtype and a.shape == e.shape
        eps = torch.finfo(t.dtype if t.dtype in NARROW else actual.dtype).eps
        torch.testing.assert_close(
            a.cpu().double(), e, rtol=2 * eps, atol=max(2 * eps, 2e-5) * max(e.abs().max().item(), 1)
        )  # fmt: skip
    return actual


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("name", MIXED)
def test_narrow_inputs_with_float32_parameters(name, dtype):
    parameters = [make((6,), torch.float32, low=0.5, high=2, seed=i) for i in (1, 2)]
    x = make((3, 6, 4, 5), dtype, low=-2, high=2)
    for each in (x, x.to(memory_format=torch.channels_last), x.transpose(2, 3)):
        _check(NORMS[name], [each, *parameters])


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", NORMS)
def test_parameters_of_the_inputs_dtype(name, dtype):
    parameters = [make((8,), dtype, low=0.5, high=2, seed=i) for i in (1, 2)]
    x = make((3, 8, 4, 4), dtype, low=-2, high=2)
    for each in (x, x.to(memory_format=torch.channels_last), x[:, :, :3, :3]):
        actual = _check(NORMS[name], [each, *parameters])
        assert actual.dtype == dtype


# Of a simdgroup, of a threadgroup, and of threads with several packs; odd lengths have none. Threads keep elements of rows
# in registers as far as they have some: rows of up to 1024 elements in a simdgroup, and of 16384 in a threadgroup.
@pytest.mark.sampled(4)
@pytest.mark.parametrize("gpu", [False, True])
@pytest.mark.parametrize("length", [1, 7, 64, 1024, 1027, 1028, 5000, 20_000])
def test_rows_of_any_length(length, gpu, tmp_path):
    x = make((3, length), torch.float32, low=-2, high=4)
    weight, bias = (make((length,), torch.float32, low=0.5, high=2, seed=i) for i in (1, 2))
    with debug.capture(tmp_path / "a.trace", contents=False, gpu=gpu) as trace:
        _check(lambda x, w, b: F.rms_norm(x, (length,), w) + b, [x, weight, bias])
        if length > 1:  # without a variance, the gradient is a difference of nothing
            _check(lambda x, w, b: F.layer_norm(x, (length,), w, b), [x, weight, bias])
            _check(lambda x: F.layer_norm(x, (length,)), [x])
    rows = [launch.kernel for launch in trace.launches if "rows" in launch.kernel]
    are_kept = gpu and length <= 16_384
    assert rows and all(("_kept_" in kernel) == are_kept for kernel in rows)


# A channel is summed in parts, and its parts are combined by more than one simdgroup's loads.
@pytest.mark.parametrize(
    "shape", [(40_000, 3), (3000, 70), (70, 8, 300), (2, 3, 171, 171)], ids=str
)
def test_channels_of_many_elements(shape):
    x = make(shape, torch.float32, low=-1, high=3)
    weight, bias = (make(shape[1:2], torch.float32, low=0.5, high=2, seed=i) for i in (1, 2))
    for each in (x, x.to(memory_format=torch.channels_last)) if len(shape) == 4 else (x,):
        _check(NORMS["batch, training"], [each, weight, bias])
        _check(NORMS["batch, evaluation"], [each, weight, bias])
    if shape[1] == 70:
        _check(NORMS["layer"], [x, weight, bias])


def test_samples_far_from_zero():
    """The mean is subtracted before anything is squared."""
    x = make((64, 8, 5, 5), torch.float32, low=999, high=1001)
    parameters = [torch.ones(8), torch.zeros(8)]
    for name in ("batch, no averages", "instance", "layer", "group"):
        expected = NORMS[name](x.double(), *[p.double() for p in parameters])
        actual = NORMS[name](x.to("mps"), *[p.to("mps") for p in parameters])
        torch.testing.assert_close(actual.cpu().double(), expected, rtol=0, atol=2e-3)


@pytest.mark.parametrize("groups", [1, 2, 3, 6])
def test_groups_of_vectors_and_of_planes(groups):
    parameters = [make((6,), torch.float32, low=0.5, high=2, seed=i) for i in (1, 2)]
    for shape in ((9, 6, 2), (5, 6, 7), (4, 6, 2, 2)):
        _check(
            lambda x, w, b: F.group_norm(x, groups, w, b), [make(shape, torch.float32), *parameters]
        )


@pytest.mark.parametrize("groups", [1, 2, 3])
def test_groups_of_adjacent_channels(groups):
    """Packs of channels are summed where all of a pack have the same statistics."""
    parameters = [make((12,), torch.float32, low=0.5, high=2, seed=i) for i in (1, 2)]
    for shape in ((9, 12), (300, 12, 1)):
        _check(
            lambda x, w, b: F.group_norm(x, groups, w, b), [make(shape, torch.float32), *parameters]
        )


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("name", NORMS)
def test_every_norm_as_on_a_gpu(name, dtype, tmp_path):
    """Threads have several lines of a channel there, of which the last may not exist."""
    parameters = [make((8,), dtype, low=0.5, high=2, seed=i) for i in (1, 2)]
    x = make((5, 8, 6, 8), dtype, low=-2, high=2)
    with debug.capture(tmp_path / "a.trace", contents=False, gpu=True) as trace:
        for each in (x, x.to(memory_format=torch.channels_last), x[:, :, :, :5]):
            _check(NORMS[name], [each, *parameters])
    assert any("kept" in launch.kernel or "several" in launch.kernel for launch in trace.launches)


@pytest.mark.parametrize("name", ["batch, training", "layer", "group", "rms"])
def test_gradients_of_gradients(name):
    def second(x, w, b):
        (grad,) = torch.autograd.grad(NORMS[name](x, w, b).pow(3).sum(), x, create_graph=True)
        return grad

    tensors = [
        make((3, 4, 5), torch.float32),
        *(make((4,), torch.float32, low=0.5, high=2, seed=i) for i in (1, 2)),
    ]
    wide = [t.double().requires_grad_() for t in tensors]
    inputs = [t.to("mps").requires_grad_() for t in tensors]
    for a, e in zip(
        torch.autograd.grad(second(*inputs).square().sum(), inputs[:2]),
        torch.autograd.grad(second(*wide).square().sum(), wide[:2]),
        strict=True,
    ):
        torch.testing.assert_close(a.cpu().double(), e, rtol=1e-3, atol=1e-3 * e.abs().max().item())


def test_gradients_that_nobody_wants_are_not_computed(tmp_path):
    x, w = torch.rand(4, 6, 5, device="mps"), torch.rand(6, device="mps")
    out, mean, rstd = aten.native_batch_norm(x, w, None, None, None, True, 0.1, 1e-5)
    backward = lambda mask: aten.native_batch_norm_backward(
        out, x, w, None, None, mean, rstd, True, 1e-5, mask
    )  # noqa: E731
    grads, kernels = kernels_of(lambda: backward([False, True, False]), tmp_path)
    assert grads[0] is None and grads[1].shape == (6,) and grads[2] is None
    assert kernels and not any("channels_backward" in name for name in kernels)


def test_out():
    x, w = make((4, 6, 5), torch.float32), make((6,), torch.float32)
    averages = torch.zeros(6), torch.ones(6)
    for operator, args in (
        (aten.native_batch_norm.out, (x, w, None, *averages, True, 0.1, 1e-5)),
        (aten._native_batch_norm_legit.out, (x, w, None, *averages, True, 0.1, 1e-5)),
        (aten._native_batch_norm_legit.no_stats_out, (x, w, None, True, 0.1, 1e-5)),
    ):
        results = []
        for device in ("cpu", "mps"):
            outs = [torch.empty(0, device=device) for _ in range(3)]
            operator(*to_device(args, device), out=outs[0], save_mean=outs[1], save_invstd=outs[2])
            results.append([t.cpu() for t in outs])
        torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)


def test_statistics_are_float32():
    """As on CUDA, whatever the input's dtype."""
    x = torch.rand(4, 6, 5, device="mps", dtype=torch.float16)
    for results in (
        aten.native_batch_norm(x, None, None, None, None, True, 0.1, 1e-5),
        aten.native_layer_norm(x, (5,), None, None, 1e-5),
        aten.native_group_norm(x, None, None, 4, 6, 5, 2, 1e-5),
        aten._fused_rms_norm(x, (5,), None, 1e-5),
    ):
        assert all(stats.dtype == torch.float32 for stats in results[1:])


@pytest.mark.parametrize("name", NORMS)
def test_every_layout(name):
    parameters = [make((6,), torch.float32, low=0.5, high=2, seed=i) for i in (1, 2)]
    for x in layouts(3, 6, 4, 5):
        if 0 in x.stride():
            continue  # equal elements have no variance
        _check(NORMS[name], [x, *parameters])
    x = make((4, 7, 4, 5), torch.float32).to(memory_format=torch.channels_last)[1:, 1:]
    _check(NORMS[name], [x, *parameters])


def test_results_keep_the_memory_format():
    x = make((2, 6, 4, 5), torch.float32).to(memory_format=torch.channels_last).to("mps")
    x.requires_grad_()
    result = F.batch_norm(x, None, None, training=True)
    assert result.is_contiguous(memory_format=torch.channels_last)
    (grad,) = torch.autograd.grad(result.square().sum(), x)
    assert grad.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_averages_are_written(dtype):
    x = make((4, 3, 8), dtype)
    for operator in (aten.native_batch_norm, aten._native_batch_norm_legit):
        averages = [torch.zeros(3), torch.ones(3)]
        moved = [t.to("mps") for t in averages]
        e = operator(x.float(), None, None, *averages, True, 0.3, 1e-5)
        a = operator(x.to("mps"), None, None, *moved, True, 0.3, 1e-5)
        for actual, expected in zip((*moved, *a[1:]), (*averages, *e[1:]), strict=True):
            torch.testing.assert_close(actual.cpu(), expected, rtol=1e-5, atol=1e-5)


def test_what_is_refused_as_on_the_cpu():
    x, w = torch.rand(2, 6, 4), torch.rand(5)
    assert_refused_as_on_the_cpu(
        [
            lambda on: F.layer_norm(on(x), (5,)),
            lambda on: aten.native_layer_norm(on(x), (4,), on(w), None, 1e-5),
            lambda on: aten.native_group_norm(on(x), on(w), None, 2, 6, 4, 2, 1e-5),
            lambda on: aten.native_group_norm(on(x), None, None, 2, 6, 4, 4, 1e-5),
            lambda on: F.batch_norm(on(x), on(w), on(w)),
            lambda on: F.batch_norm(on(x), None, None, on(w), training=True),
            lambda on: aten.native_batch_norm(on(x[:0]), None, None, None, None, True, 0.1, 1e-5),
        ],
        RuntimeError,
    )


def test_what_ends_the_process_on_the_cpu_is_refused():
    x = torch.rand(2, 6, 4, device="mps")
    with pytest.raises(
        RuntimeError,
        match="native_batch_norm: running_mean and running_var must be given in evaluation",
    ):
        aten.native_batch_norm(x, None, None, None, None, False, 0.1, 1e-5)
    with pytest.raises(RuntimeError, match="weight should contain 6 elements not 5"):
        aten.native_batch_norm(x, torch.ones(5, device="mps"), None, None, None, True, 0.1, 1e-5)
    with pytest.raises(RuntimeError, match="save_mean must have 6 elements, but has 0"):
        aten.native_batch_norm_backward(x, x, None, None, None, None, None, True, 1e-5, [True] * 3)
    with pytest.raises(
        RuntimeError,
        match=r"grad_out must have the sizes \[2, 6, 4\] of the input, but has \[2, 6, 3\]",
    ):
        aten.native_layer_norm_backward(
            x[..., :3], x, (4,), x[..., :1], x[..., :1], None, None, [True] * 3
        )


def test_parameters_of_a_narrower_dtype_are_refused_as_on_the_cpu():
    x, weight = torch.ones(2, 4), torch.ones(4, dtype=torch.float16)
    for device in ("cpu", "mps"):
        for call in (
            lambda x, w: F.layer_norm(x, (4,), w),
            lambda x, w: F.batch_norm(x, None, None, w, training=True),
            lambda x, w: F.group_norm(x, 2, w),
        ):
            with pytest.raises(RuntimeError, match="expect parameter to have scalar type of Float"):
                call(x.to(device), weight.to(device))


# ---- cases that users reported -------------------------------------------------------------------


def test_batch_norm_of_half_with_float32_averages():
    """154887"""
    x, mean, variance = torch.rand(2, 3, 4).half(), torch.rand(3), torch.rand(3)
    actual = F.batch_norm(x.to("mps"), mean.to("mps"), variance.to("mps"))
    expected = F.batch_norm(x.double(), mean.double(), variance.double())
    torch.testing.assert_close(actual.cpu(), expected.half(), rtol=2e-3, atol=2e-3)


def test_gradients_of_batch_norm_in_channels_last():
    """175189"""
    x = make((4, 3, 8, 8), torch.float32).to(memory_format=torch.channels_last)
    _check(NORMS["batch, training"], [x, torch.ones(3), torch.zeros(3)])


def test_batch_norm_of_a_slice_in_channels_last():
    """174345"""
    x = make((1, 65, 64), torch.float32)[:, 1:].reshape(1, 8, 8, 64).permute(0, 3, 1, 2)
    assert x.storage_offset() or not x.is_contiguous()
    _check(NORMS["batch, evaluation"], [x, torch.ones(64), torch.zeros(64)])


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_layer_norm_with_float32_parameters(dtype):
    """190054"""
    tensors = make((4, 8), dtype), make((8,), torch.float32), make((8,), torch.float32, seed=1)
    _check(lambda x, w, b: F.layer_norm(x, (8,), w, b), list(tensors))


def test_the_fix_names_its_operators():
    """Of those that torch has an MPS kernel for, without which it composes rms_norm."""
    (norm,) = (fix for fix in fixes.status() if fix.name == "norm")
    composed = {name for name in OPERATORS if "rms_norm" in name}
    assert {f"aten::{name}" for name in set(OPERATORS) - composed} <= set(norm.operators)
