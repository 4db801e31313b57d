"""What the quantised and GGUF operators refuse when torch.ops.metalops is called directly: the same on mps, on the CPU and on
CUDA, whose kernels would otherwise read beyond their operands."""

import pytest
import torch
from metalops import ops
from metalops._torch.internals import DispatchKey, DispatchKeySet
from metalops.ops._formats import quantized as formats
from metalops.testing import to_device

operators = torch.ops.metalops


def weights(mode="affine"):
    """(codes, scales, biases, global scale, bits, group size, mode) of 6 rows of 64"""
    codes, scales, *biases = ops.quantize(torch.randn(6, 64), mode=mode)
    bits, group_size = formats.usual(mode, None, None)
    return codes, scales, *(biases or [None]), None, bits, group_size, mode


def _quantize():
    weight = torch.randn(4, 64)
    yield weight, None, 4, 48, "affine"
    yield weight, None, 4, -64, "affine"
    yield weight, None, 9, 64, "affine"
    yield weight, None, 4, 64, "none"
    yield weight, torch.ones(2), 4, 16, "nvfp4"
    yield weight, torch.ones((), dtype=torch.float16), 4, 16, "nvfp4"
    yield weight[:, :60], None, 4, 64, "affine"
    yield weight[0, 0], None, 4, 64, "affine"
    yield weight.int(), None, 4, 64, "affine"


def _wrong_weights():
    """Weights that do not fit together, as the operators' last arguments."""
    codes, scales, biases, _, bits, group, mode = weights()
    yield codes, scales[:5], biases, None, bits, group, mode
    yield codes, scales, biases[:5], None, bits, group, mode
    yield codes, scales.half(), biases, None, bits, group, mode
    yield codes, scales, None, None, bits, group, mode
    yield codes, scales, biases, torch.ones(3), bits, group, mode
    yield codes, scales, biases, None, 0, group, mode
    yield codes, scales, biases, None, 5, group, mode
    yield codes, scales, biases, None, -4, group, mode
    yield codes, scales, biases, None, bits, 0, mode
    yield codes, scales, biases, None, bits, 2 * group, "none"
    yield codes.int(), scales, biases, None, bits, group, mode
    for narrow in ("mxfp4", "nvfp4", "nf4"):
        codes, scales, _, _, bits, group, mode = weights(narrow)
        yield codes, scales, scales, None, bits, group, mode
        yield codes, scales[:5], None, None, bits, group, mode
    yield codes, scales[:, :1].repeat(1, 3), None, None, 8, 0, "int8"


def _dequantize():
    for codes, scales, biases, of_all, *numbers in _wrong_weights():
        yield codes, scales, biases, of_all, None, *numbers, torch.float32
    codes, scales, biases, _, *numbers = weights()
    yield codes, scales, biases, None, torch.tensor([0.0]), *numbers, torch.float32
    yield codes[None], scales[None], biases[None], None, torch.tensor([0]), *numbers, torch.float32
    yield codes, scales, biases, None, None, *numbers, torch.int32
    yield codes[0, 0], scales, biases, None, None, *numbers, torch.float32


def _matmul():
    x = torch.randn(1, 2, 64)
    for codes, scales, biases, of_all, *numbers in _wrong_weights():
        one = [None if t is None else t[None] for t in (codes, scales, biases)]
        yield x, *one, None, of_all, None, None, True, *numbers
    codes, scales, biases, _, *numbers = weights()
    packed = [t[None] for t in (codes, scales, biases)]
    index = torch.tensor([0, 0])

    def call(x=x, packed=packed, bias=None, left=None, right=None, transpose=True):
        return x, *packed, bias, None, left, right, transpose, *numbers

    yield call(x=x[0])
    yield call(packed=(codes, scales, biases))
    yield call(x=x[..., :63])
    yield call(transpose=False)
    yield call(bias=torch.ones(5))
    yield call(bias=torch.ones(1, 6))
    yield call(bias=torch.ones(6).half())
    yield call(left=index, right=index[:1])
    yield call(left=index.int())
    yield call(left=index[None])
    yield call(left=index)
    yield call(x=x.expand(3, 2, 64))
    yield call(x=x[:0], left=index, right=index)
    yield call(x=x.int())


def _scales_gradient():
    codes, scales, _, _, *numbers = weights()
    grad = torch.randn(6, 64)
    yield grad[:5], codes, scales, *numbers
    yield grad, codes, scales[:5], *numbers
    yield grad, codes, scales, 5, *numbers[1:]
    yield grad, codes, scales, numbers[0], 24, numbers[2]
    yield grad.int(), codes, scales, *numbers
    codes, scales, _, _, *numbers = weights("mxfp4")
    yield grad, codes, scales, *numbers


def _gguf_dequantize():
    data = torch.zeros(4, 36, dtype=torch.uint8)  # two blocks of Q4_0 a row
    yield data, None, 99, torch.float32
    yield data, None, -1, torch.float32
    yield data[:, :35], None, 2, torch.float32
    yield data.int(), None, 2, torch.float32
    yield data[0, 0], None, 2, torch.float32
    yield data, torch.tensor([0.0]), 2, torch.float32
    yield data[None], torch.tensor([0]), 2, torch.float32
    yield data, None, 2, torch.int64


def _gguf_linear():
    data = torch.zeros(4, 36, dtype=torch.uint8)
    x = torch.randn(3, 64)
    yield x[:, :63], data, None, 2
    yield x[None], data, None, 2
    yield x, data[None], None, 2
    yield x, data, torch.ones(5), 2
    yield x, data, torch.ones(4).half(), 2
    yield x, data[:, :20], None, 2
    yield x, data, None, 4
    yield x.int(), data, None, 2


WRONG = {
    "quantize": _quantize,
    "dequantize": _dequantize,
    "quantized_matmul": _matmul,
    "quantized_scales_gradient": _scales_gradient,
    "gguf_dequantize": _gguf_dequantize,
    "gguf_linear": _gguf_linear,
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_are_refused_alike_on_every_device(name):
    overload = getattr(operators, name).default
    for number, call in enumerate(WRONG[name]()):
        errors = {}
        for device, run in (
            ("mps", lambda *args: overload(*to_device(args, "mps"))),
            ("cpu", overload),
            ("cuda", lambda *args: overload.redispatch(DispatchKeySet(DispatchKey.CUDA), *args)),
        ):
            with pytest.raises((ValueError, RuntimeError)) as raised:
                run(*call)
            errors[device] = (type(raised.value), str(raised.value))
        assert errors["cpu"] == errors["cuda"] == errors["mps"], (number, errors)


def test_tensors_on_two_devices_are_refused():
    codes, scales, biases, _, *numbers = weights()
    with pytest.raises(RuntimeError, match="on the same device, but scales is on meta"):
        operators.dequantize.default.redispatch(
            DispatchKeySet(DispatchKey.CUDA),
            *(codes, scales.to("meta"), biases, None, None, *numbers, torch.float32),
        )
