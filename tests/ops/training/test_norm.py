"""Normalisation with parameters of another dtype, and of tensors that are not contiguous, while the fix "norm" is on.

The fix calls torch's own kernels, with contiguous tensors of one dtype, which is what these tests look at as well as at results.
"""

import contextlib

import metalops
import pytest
import torch
from metalops import fixes
from metalops.testing.faults import replaced
from metalops.testing.samples import make, to_device
from torch.nn import functional as F
from torch.ops import aten

from ..spatial.helpers import layouts

pytestmark = pytest.mark.skipif(
    not metalops._is_software, reason="what torch's own kernels get is seen in the stand-ins of the software device"
)  # fmt: skip
NARROW = (torch.float16, torch.bfloat16)
OPERATORS = (
    "native_batch_norm", "native_batch_norm_backward", "_native_batch_norm_legit", "_native_batch_norm_legit.no_stats",
    "native_layer_norm", "native_layer_norm_backward", "native_group_norm", "native_group_norm_backward",
)  # fmt: skip


@pytest.fixture(autouse=True)
def calls():
    """What torch's own kernels get: (operator, arguments)."""
    seen = []

    def wrong(name):
        def call(kernel, *args, **kwargs):
            seen.append((name, args))
            return kernel(*args, **kwargs)

        return call

    with contextlib.ExitStack() as stack:
        for name in OPERATORS:
            stack.enter_context(replaced(name, wrong(name)))
        stack.enter_context(metalops.enable_fixes("norm"))
        yield seen
    for _, args in seen:
        tensors = [x for x in args if isinstance(x, torch.Tensor)]
        assert len({x.dtype for x in tensors}) == 1
        assert all(x.is_contiguous() for x in tensors if x.dim() > 1)


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
}


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


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("name", NORMS)
def test_narrow_inputs_with_float32_parameters(name, dtype):
    parameters = [make((6,), torch.float32, low=0.5, high=2, seed=i) for i in (1, 2)]
    x = make((3, 6, 4, 5), dtype, low=-2, high=2)
    for each in (x, x.to(memory_format=torch.channels_last), x.transpose(2, 3)):
        _check(NORMS[name], [each, *parameters])


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")
def test_rms_norm_is_composed_by_torch(dtype, calls):
    """In half precision, before it multiplies by the weight."""
    x, weight = make((9, 6), dtype, low=-2, high=2), make((6,), torch.float32, low=0.5, high=2)
    actual = F.rms_norm(x.to("mps"), (6,), weight.to("mps")).cpu().double()
    expected = F.rms_norm(x.double(), (6,), weight.double())
    torch.testing.assert_close(actual, expected, rtol=2 * torch.finfo(dtype).eps, atol=0)
    assert not calls


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


def test_what_is_contiguous_and_of_one_dtype_is_passed_on(calls):
    x = torch.rand(2, 6, 4, device="mps")
    weight = torch.rand(6, device="mps")
    F.group_norm(x, 3, weight)
    ((name, args),) = calls
    assert name == "native_group_norm"
    assert args[0].data_ptr() == x.data_ptr() and args[1].data_ptr() == weight.data_ptr()


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
    (norm,) = (fix for fix in fixes.status() if fix.name == "norm")
    assert {f"aten::{name}" for name in OPERATORS} <= set(norm.operators)
