"""torch.vmap and out= of the operators on quantised weights."""

import pytest
import torch
from metalops import ops
from metalops.ops._formats import gguf as _gguf_formats

from .test_quantized import make

devices = pytest.mark.parametrize("device", ["mps", "cpu"])

FOUR = {"bits": 4, "group_size": 32}
SAMPLES = 3


def packed(*shape, seed=0, mode="affine"):
    options = FOUR if mode == "affine" else {}
    return ops.quantize(make(shape, torch.float32, seed=seed), **options, mode=mode)


def whole(low, high, shape, dtype):
    return torch.randint(low, high, shape, dtype=dtype, generator=torch.Generator().manual_seed(2))


def gguf_data(*shape):
    """Q8_0: blocks of a half and 32 bytes."""
    codes = whole(0, 256, (*shape, 34), torch.uint8)
    codes[..., :2] = torch.tensor([0.05], dtype=torch.float16).view(torch.uint8)
    return codes.flatten(-2)


def x(*shape, seed=1):
    return make(shape, torch.float32, seed=seed)


def linear(x, codes, scales, biases, bias=None):
    return ops.quantized_linear(x, codes, scales, biases, bias, **FOUR)


def gathered(x, codes, scales, biases, left, right):
    options = {**FOUR, "lhs_indices": left, "rhs_indices": right}
    return ops.gather_quantized_matmul(x, codes, scales, biases, **options)


def products(x, codes, scales, biases):
    return ops.quantized_matmul(x, codes, scales, biases, **FOUR)


def transposed(x, codes, scales, biases):
    return ops.quantized_matmul(x, codes, scales, biases, transpose=False, **FOUR)


def nvfp4(x, codes, scales, factor):
    return ops.quantized_matmul(x, codes, scales, mode="nvfp4", global_scale=factor)


def nvfp4_values(codes, scales, factor):
    return ops.dequantize(codes, scales, mode="nvfp4", global_scale=factor)


def rows(indices, codes, scales, biases):
    return ops.quantized_embedding(indices, codes, scales, biases, **FOUR)


def values(codes, scales, biases):
    return ops.dequantize(codes, scales, biases, **FOUR)


def packing(weight):
    return tuple(t for t in ops.quantize(weight, **FOUR))


def packing_nvfp4(weight, factor):
    return ops.quantize(weight, mode="nvfp4", global_scale=factor)[:2]


def int8(x, weight, scale):
    return ops.int8_linear(x, weight, scale)


def int8_twice(x, weight, scale):
    return ops.int8_linear(x, weight, scale, dynamic_activation=True)


def gguf(x, data, bias):
    return ops.gguf_linear(x, data, "Q8_0", bias)


def gguf_values(data):
    return ops.gguf_dequantize(data, "Q8_0")


def gguf_rows(indices, data):
    return ops.gguf_embedding(indices, data, "Q8_0")


def indices(*shape, most):
    return torch.randint(0, most, shape)


INDICES = indices(SAMPLES, 5, most=6)
INT8 = whole(-128, 128, (SAMPLES, 12, 60), torch.int8)
LINEAR = packed(12, 64)
MANY = packed(SAMPLES, 12, 64)
EXPERTS = packed(6, 12, 64)
MANY_EXPERTS = packed(SAMPLES, 6, 12, 64)
NVFP4 = packed(12, 64, mode="nvfp4")[:2]

# What is called, with what, and which dimension of each argument is that of the samples.
CASES = {
    "rows of a linear layer": (linear, (x(SAMPLES, 5, 64), *LINEAR), (0, None, None, None)),
    "a row": (linear, (x(64, SAMPLES), *LINEAR), (1, None, None, None)),
    "layers": (linear, (x(5, 64), *MANY), (None, 0, 0, 0)),
    "layers and their rows": (linear, (x(5, SAMPLES, 64), *MANY), (1, 0, 0, 0)),
    "layers with a bias": (linear, (x(SAMPLES, 5, 64), *MANY, x(SAMPLES, 12)), (0, 0, 0, 0, 0)),
    "scales": (linear, (x(5, 64), LINEAR[0], *MANY[1:]), (None, None, 0, 0)),
    "products": (products, (x(SAMPLES, 6, 5, 64), *EXPERTS), (0, None, None, None)),
    "products of other weights": (products, (x(6, 5, 64), *MANY_EXPERTS), (None, 0, 0, 0)),
    "a batch for one": (products, (x(SAMPLES, 2, 5, 64), *LINEAR), (0, None, None, None)),
    "transposed": (transposed, (x(SAMPLES, 5, 12), *LINEAR), (0, None, None, None)),
    "transposed, of layers": (transposed, (x(5, 12), *MANY), (None, 0, 0, 0)),
    "experts": (gathered, (x(SAMPLES, 4, 2, 64), *EXPERTS, None, indices(4, most=6)), (0, None, None, None, None, None)),
    "experts of each": (gathered, (x(5, 2, 64), *EXPERTS, None, INDICES), (None, None, None, None, None, 0)),
    "rows of each": (gathered, (x(SAMPLES, 6, 2, 64), *EXPERTS, INDICES, indices(5, most=6)), (0, None, None, None, 0, None)),
    "all of each": (gathered, (x(SAMPLES, 6, 2, 64), *MANY_EXPERTS, INDICES, INDICES), (0, 0, 0, 0, 0, 0)),
    "all in order": (gathered, (x(SAMPLES, 6, 2, 64), *MANY_EXPERTS, None, None), (0, 0, 0, 0, None, None)),
    "global scales": (nvfp4, (x(5, 64), *NVFP4, x(SAMPLES)), (None, None, None, 0)),
    "embedding": (rows, (INDICES, *LINEAR), (0, None, None, None)),
    "embeddings": (rows, (INDICES[0], *MANY), (None, 0, 0, 0)),
    "weights": (values, MANY, (0, 0, 0)),
    "weights of one with many scales": (values, (LINEAR[0], *MANY[1:]), (None, 0, 0)),
    "weights with global scales": (nvfp4_values, (*NVFP4, x(SAMPLES)), (None, None, 0)),
    "packing": (packing, (x(12, SAMPLES, 64),), (1,)),
    "packing with global scales": (packing_nvfp4, (x(12, 64), x(SAMPLES).abs()), (None, 0)),
    "bytes": (int8, (x(SAMPLES, 5, 60), INT8[0], x(12)), (0, None, None)),
    "bytes of both": (int8_twice, (x(SAMPLES, 5, 60), INT8[0], x(12)), (0, None, None)),
    "layers of bytes": (int8, (x(5, 60), INT8, x(SAMPLES, 12)), (None, 0, 0)),
    "GGUF": (gguf, (x(SAMPLES, 5, 64), gguf_data(12, 2), x(12)), (0, None, None)),
    "GGUF, layers": (gguf, (x(5, 64), gguf_data(SAMPLES, 12, 2), x(SAMPLES, 12)), (None, 0, 0)),
    "weights of GGUF": (gguf_values, (gguf_data(12, SAMPLES, 2),), (1,)),
    "rows of GGUF": (gguf_rows, (INDICES, gguf_data(12, 2)), (0, None)),
    "rows of GGUFs": (gguf_rows, (INDICES, gguf_data(SAMPLES, 12, 2)), (0, 0)),
}  # fmt: skip


def one_by_one(function, args, dims):
    results = []
    for i in range(SAMPLES):
        one = (t if d is None else t.select(d, i) for t, d in zip(args, dims, strict=True))
        results.append(function(*one))
    if isinstance(results[0], tuple):
        return tuple(torch.stack(parts) for parts in zip(*results, strict=True))
    return torch.stack(results)


@devices
@pytest.mark.parametrize("case", CASES)
def test_vmap_is_a_call_for_each_sample(case, device):
    function, args, dims = CASES[case]
    args = tuple(None if t is None else t.to(device) for t in args)
    actual = torch.vmap(function, in_dims=dims)(*args)
    torch.testing.assert_close(actual, one_by_one(function, args, dims), rtol=1e-4, atol=1e-4)


@devices
def test_gradients_of_each_sample(device):
    codes, scales, biases = (t.to(device) for t in LINEAR)
    inputs = x(SAMPLES, 5, 64).to(device)

    def loss(inputs, scales, biases):
        return linear(inputs, codes, scales, biases).square().sum()

    gradients = torch.func.grad(loss, (0, 1, 2))
    actual = torch.vmap(gradients, (0, None, None))(inputs, scales, biases)
    expected = one_by_one(gradients, (inputs, scales, biases), (0, None, None))
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-3)

    def of_values(scales, factors):
        return (values(codes, scales, biases) * factors).sum()

    factors = x(SAMPLES, 12, 64).to(device)
    actual = torch.vmap(torch.func.grad(of_values), (None, 0))(scales, factors)
    expected = one_by_one(torch.func.grad(of_values), (scales, factors), (None, 0))
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-3)


def test_rows_of_all_samples_are_one_product():
    args = tuple(t.to("mps") for t in (x(SAMPLES, 5, 64), *LINEAR))
    seen = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if function is torch.ops.metalops.quantized_matmul.default:
                seen.append(args[0].shape)
            return function(*args, **(kwargs or {}))

    with Watch():
        torch.vmap(linear, (0, None, None, None))(*args)
    assert seen == [(1, SAMPLES * 5, 64)]


# ---- out= ----------------------------------------------------------------------------------------

WITH_OUT = {
    "dequantize": ((*LINEAR,), FOUR),
    "quantized_matmul": ((x(5, 64), *LINEAR), FOUR),
    "quantized_linear": ((x(5, 64), *LINEAR, x(12)), FOUR),
    "int8_linear": ((x(5, 60), INT8[0], x(12)), {}),
    "gguf_linear": ((x(5, 64), gguf_data(12, 2), "Q8_0"), {}),
    "gguf_dequantize": ((gguf_data(12, 2), _gguf_formats.TYPES["Q8_0"].number), {}),
}


@devices
@pytest.mark.parametrize("name", WITH_OUT)
def test_out_is_written_resized_and_cast_to(name, device):
    args, options = WITH_OUT[name]
    args = tuple(t.to(device) if isinstance(t, torch.Tensor) else t for t in args)
    function = getattr(ops, name)
    expected = function(*args, **options)
    wide = torch.full((*expected.shape, 2), 7.0, device=device)
    for out in (
        torch.empty_like(expected),
        wide[..., 0],
        torch.empty(0, device=device),
        torch.empty_like(expected, dtype=torch.float16),
    ):
        assert function(*args, **options, out=out) is out
        assert torch.equal(out, expected.to(out.dtype))
    assert (wide[..., 1] == 7).all()
    with pytest.raises(RuntimeError, match="can't be cast to the desired output type torch.int64"):
        function(*args, **options, out=torch.empty_like(expected, dtype=torch.long))
    with pytest.raises(RuntimeError, match=name + r"\(\): functions with out=.* requires grad"):
        function(*args, **options, out=torch.empty_like(expected, requires_grad=True))


def test_out_refuses_what_has_a_gradient():
    inputs = x(5, 64).to("mps").requires_grad_()
    weights = tuple(t.to("mps") for t in LINEAR)
    out = torch.empty(5, 12, device="mps")
    with pytest.raises(RuntimeError, match="quantized_linear.*don't support automatic"):
        ops.quantized_linear(inputs, *weights, **FOUR, out=out)
    with torch.no_grad():
        ops.quantized_linear(inputs, *weights, **FOUR, out=out)
    torch.testing.assert_close(out, linear(inputs, *weights))
