"""_transform_bias_rescale_qkv: kernels/attention/attention_projection.metal."""

import pytest
import torch
from metalops import testing
from metalops.testing.samples import FLOATS, make, to_device

from ..aten import CPU_FLOATS, Calls, OpInfoSamples, served_by_us
from ..benchmark import HALVES_ONE_BY_ONE, Benchmark, ones

by_float = pytest.mark.parametrize("dtype", FLOATS, ids=str)
# Samples, tokens, heads, features of a head: below and beyond a simdgroup.
SIZES = [
    (1, 1, 1, 1),
    (2, 3, 2, 5),
    (3, 7, 4, 8),
    (1, 40, 3, 33),
    (2, 2, 1, 70),
    (5, 1, 6, 2),
    (2, 3, 3, 12),
]


def _opinfo_projection(dtype: torch.dtype) -> Calls:
    for samples, tokens, heads, width in ((2, 3, 2, 10), (1, 40, 3, 33)):
        qkv = make((samples, tokens, 3 * width), dtype)
        yield (qkv, make((3 * width,), dtype, seed=1), heads), {}


OPINFO_SAMPLES = (
    OpInfoSamples(
        "_transform_bias_rescale_qkv",
        torch._transform_bias_rescale_qkv,
        CPU_FLOATS,
        _opinfo_projection,
    ),
)


def _project(x, out):
    width = 192 if x.numel() >= 192 else 6
    tokens = x.numel() // width
    qkv = x.reshape(-1)[: tokens * width].view(1, tokens, width)
    bias = ones(width, dtype=x.dtype, device=x.device)
    return torch._transform_bias_rescale_qkv(qkv, bias, 2)


BENCHMARKS = (Benchmark.same("_transform_bias_rescale_qkv", _project, reason=HALVES_ONE_BY_ONE),)


def _operands(samples, tokens, heads, head_size, dtype):
    width = 3 * heads * head_size
    return make((samples, tokens, width), dtype), make((width,), dtype, seed=1), heads


def _check(qkv, bias, heads):
    dtype = qkv.dtype
    expected = torch._transform_bias_rescale_qkv(qkv.double(), bias.double(), heads)
    actual = torch._transform_bias_rescale_qkv(*to_device((qkv, bias), "mps"), heads)
    rtol, atol = testing.tolerance("_transform_bias_rescale_qkv", dtype)
    for a, e in zip(actual, expected, strict=True):
        assert a.device.type == "mps" and a.stride() == e.stride()
        torch.testing.assert_close(a.cpu(), e.to(dtype), rtol=rtol, atol=atol)


@by_float
@pytest.mark.usefixtures("taken_as_on")
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_values(sizes, dtype):
    _check(*_operands(*sizes, dtype))


@by_float
@pytest.mark.usefixtures("taken_as_on")
@pytest.mark.parametrize(
    "begins", [(0, 0), (1, 0), (0, 1), (2, 3), (4, 0), (0, 4), (8, 8)], ids=str
)
def test_tensors_that_begin_anywhere(begins, dtype):
    qkv, bias, heads = _operands(2, 3, 2, 8, dtype)
    moved = []
    for x, begin in zip((qkv, bias), begins, strict=True):
        memory = torch.zeros(x.numel() + begin, dtype=dtype)
        moved.append(memory[begin:].view(x.shape).copy_(x))
    _check(*moved, heads)


@by_float
def test_layouts(dtype):
    qkv, bias, heads = _operands(4, 6, 2, 4, dtype)
    for layout in (
        qkv.transpose(0, 1).contiguous().transpose(0, 1),
        make((5, 9, 48), dtype)[1:, 1:7, ::2],
        make((1, 6, 24), dtype).expand(4, 6, 24),
    ):
        _check(layout, make((48,), dtype, seed=1)[::2], heads)
    _check(qkv, bias.view(3, 8), heads)


@pytest.mark.parametrize("shape", [(0, 3, 12), (2, 0, 12), (2, 3, 0)])
def test_empty_tensors(shape):
    bias = torch.empty(shape[2], device="mps")
    for part in torch._transform_bias_rescale_qkv(torch.empty(shape, device="mps"), bias, 2):
        assert part.shape == (shape[0], 2, shape[1], shape[2] // 6)


def test_errors_are_those_of_the_cpu():
    qkv, bias = torch.zeros(2, 3, 12), torch.zeros(12)
    for arguments in (
        (qkv, bias, 3),
        (qkv[..., :10], bias[:10], 3),
        (qkv[0], bias, 2),
        (qkv.int(), bias.int(), 2),
    ):
        with pytest.raises(Exception) as expected:
            torch._transform_bias_rescale_qkv(*arguments)
        with pytest.raises(type(expected.value)) as actual:
            torch._transform_bias_rescale_qkv(*to_device(arguments, "mps"))
        beginning = str(expected.value).split(".")[0]
        assert str(actual.value).startswith(beginning)


def test_errors_where_the_cpu_reads_beyond_the_end_or_divides_by_zero():
    qkv, bias = torch.zeros(2, 3, 12, device="mps"), torch.zeros(12, device="mps")
    with pytest.raises(RuntimeError, match=r"expected qkv_bias to have 12 elements"):
        torch._transform_bias_rescale_qkv(qkv, bias[:9], 2)
    with pytest.raises(RuntimeError, match="expected scalar type Float but found Half"):
        torch._transform_bias_rescale_qkv(qkv, bias.half(), 2)
    for heads in (0, -2):
        with pytest.raises(RuntimeError, match="D % num_head == 0"):
            torch._transform_bias_rescale_qkv(qkv, bias, heads)
    with pytest.raises(RuntimeError, match="same device"):
        torch._transform_bias_rescale_qkv(qkv, bias.cpu(), 2)


def test_out():
    qkv, bias, heads = _operands(2, 3, 2, 4, torch.float32)
    expected = torch._transform_bias_rescale_qkv(qkv, bias, heads)
    outs = [torch.empty(0, device="mps") for _ in range(3)]
    torch.ops.aten._transform_bias_rescale_qkv.out(
        *to_device((qkv, bias), "mps"), heads, out0=outs[0], out1=outs[1], out2=outs[2]
    )
    for out, e in zip(outs, expected, strict=True):
        torch.testing.assert_close(out.cpu(), e)


def test_no_host_copy_and_no_stand_in():
    qkv, bias, heads = _operands(2, 3, 2, 4, torch.float32)
    on_device = to_device((qkv, bias), "mps")

    def call():
        with testing.no_host_copies():
            torch._transform_bias_rescale_qkv(*on_device, heads)

    assert served_by_us(call) == []
