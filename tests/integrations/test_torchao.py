"""metalops.integrations.torchao: low-bit layers by our kernels, and the package's other weights on the operators of ATen."""

import copy
import itertools

import pytest
import torch
from metalops import debug
from metalops.ops._formats import quantized as formats
from torch.nn import functional

from .launches import kernels_of

pytest.importorskip("torchao", reason="torchao is not installed")

import torchao.prototype.mx_formats as mx  # noqa: E402
import torchao.quantization as quantization  # noqa: E402
from metalops.integrations import torchao as integration  # noqa: E402
from torchao.experimental import quant_api  # noqa: E402
from torchao.quantization.quantize_.workflows.int4 import int4_tile_packed_to_4d_tensor  # noqa: E402

# Rows, columns of weights, rows of weights, group: what torchao tests its own kernels with.
SIZES = (
    (1, 8, 4, 32),
    (1, 8, 3, 32),
    (1, 56, 4, 64),
    (1, 72, 4, 64),
    (1, 1000, 4, 64),
    (1, 640, 8198, 32),
    (7, 64, 20, 64),
    (17, 120, 20, 128),
    (41, 144, 20, 128),
    (81, 8, 4, 256),
    (19, 256, 28, 256),
)
BITS = range(1, 8)


@pytest.fixture(scope="module", autouse=True)
def enabled():
    integration.enable()
    integration.enable()


def operators(bits):
    names = f"_pack_weight_{bits}bit", f"_linear_fp_act_{bits}bit_weight"
    return tuple(getattr(torch.ops.torchao, name) for name in names)


# ---- 1 to 7 bits ---------------------------------------------------------------------------------


# For the full tier: each number of bits and each dtype has kernels of its own.
SOONER = {(1, torch.float32), (4, torch.float16), (7, torch.float32)}
PRODUCTS = [
    pytest.param(*case, marks=() if case in SOONER else pytest.mark.nightly)
    for case in itertools.product(BITS, (torch.float32, torch.float16, torch.bfloat16))
]


@pytest.mark.parametrize(("bits", "dtype"), PRODUCTS, ids=str)
def test_low_bit_products(bits, dtype):
    pack, linear = operators(bits)
    torch.manual_seed(0)
    for rows, columns, lines, group in SIZES:
        codes = torch.randint(0, 1 << bits, (lines, columns), dtype=torch.uint8)
        packed = pack(codes)
        assert packed.shape == (lines, columns * bits // 8)
        assert torch.equal(pack(codes.to("mps")).cpu(), packed)
        a = torch.randn(rows, columns).to(dtype)
        scales, zeros = (torch.rand(lines, -(-columns // group)).to(dtype) for _ in range(2))
        each = (formats.of_each_element(t.double(), group, columns) for t in (scales, zeros))
        factor, offset = each
        expected = a.double() @ (codes.double() * factor + offset).T
        arguments = (a.to("mps"), packed.to("mps"), group, scales.to("mps"), zeros.to("mps"))
        actual = linear(*arguments)
        assert actual.dtype == dtype
        error = (actual.cpu().double() - expected).norm() / expected.norm()
        assert error < {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}[dtype]
        out = torch.empty_like(actual)
        assert linear.out(*arguments, out=out) is out and torch.equal(out, actual)


def test_what_torch_compile_sees():
    _, linear = operators(4)
    made = linear(
        torch.empty(2, 64, device="meta"),
        torch.empty(12, 32, dtype=torch.uint8, device="meta"),
        64,
        *torch.empty(2, 12, 1, device="meta"),
    )
    assert made.shape == (2, 12)


def test_wrong_codes_are_refused():
    pack, _ = operators(3)
    for codes in (torch.zeros(4, 12, dtype=torch.uint8), torch.zeros(4, 8), torch.zeros(8).byte()):
        with pytest.raises(ValueError, match="_pack_weight_3bit: W must be uint8 of 2 dimensions"):
            pack(codes)


def model(dtype, columns=128):
    torch.manual_seed(0)
    layers = (torch.nn.Linear(columns, 256), torch.nn.GELU(), torch.nn.Linear(256, 64))
    return torch.nn.Sequential(*layers).to(dtype).requires_grad_(False)


def relative_error(actual, expected):
    return (actual.cpu().double() - expected.double()).norm() / expected.double().norm()


@pytest.mark.parametrize("algorithm", ["min_max", "hqq"])
@pytest.mark.parametrize(
    "bits",
    [bits if bits in (1, 4, 7) else pytest.param(bits, marks=pytest.mark.nightly) for bits in BITS],
)
def test_low_bit_models(bits, algorithm, tmp_path):
    whole = model(torch.float32)
    x = torch.randn(2, 5, 128)
    quantized = copy.deepcopy(whole).to("mps")
    config = quant_api.UIntxWeightOnlyConfig(bits, 64, algorithm)
    quantization.quantize_(quantized, config)
    actual, kernels = kernels_of(lambda: quantized(x.to("mps")), tmp_path)
    assert sum(kernel.startswith("quantized_matmul_") for kernel in kernels) == 2
    # Each bit more halves the error.
    assert relative_error(actual, whole(x)) < 2.0 * 0.5 ** (bits - 1)
    unpacked = copy.deepcopy(whole)
    for layer, packed in zip(unpacked, quantized):
        if isinstance(layer, torch.nn.Linear):
            codes = formats.unpack(packed.packed_weights.cpu(), bits).float()
            factors = (packed.weight_scales.cpu(), packed.weight_zeros.cpu())
            scale, zero = (t.repeat_interleave(64, 1) for t in factors)
            layer.weight.copy_(codes * scale + zero)
    torch.testing.assert_close(actual.cpu(), unpacked(x), rtol=1e-3, atol=1e-4)


# ---- what ATen's operators are enough for --------------------------------------------------------


@pytest.mark.parametrize(
    "config",
    [
        quantization.Int8WeightOnlyConfig(),
        quantization.Int8DynamicActivationInt8WeightConfig(),
        quantization.Float8WeightOnlyConfig(),
        quantization.IntxWeightOnlyConfig(weight_dtype=torch.int4),
        mx.NVFP4WeightOnlyConfig(),
    ],
    ids=lambda config: type(config).__name__,
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_models_with_weights_of_other_kinds(config, dtype):
    reference = model(dtype)
    quantization.quantize_(reference, config)
    x = torch.randn(9, 128).to(dtype)
    expected = reference(x)
    tolerance = 2e-5 if dtype == torch.float32 else 1e-2
    moved = copy.deepcopy(reference).to("mps")
    assert relative_error(moved(x.to("mps")), expected) < tolerance
    made_there = model(dtype).to("mps")
    quantization.quantize_(made_there, config)
    assert relative_error(made_there(x.to("mps")), expected) < tolerance


@pytest.mark.sampled(2)
@pytest.mark.parametrize("element", [torch.float8_e4m3fn, torch.float4_e2m1fn_x2], ids=str)
def test_microscaling_of_activations_and_weights(element):
    """On the CPU torch has no product of them: compared with that of what they stand for."""
    from torchao.prototype.mx_formats.mx_tensor import MXTensor

    whole = model(torch.bfloat16)
    config = mx.MXDynamicActivationMXWeightConfig(activation_dtype=element, weight_dtype=element)
    quantized = copy.deepcopy(whole).to("mps")
    quantization.quantize_(quantized, config)
    x = torch.randn(9, 128).to(torch.bfloat16)
    actual = quantized(x.to("mps"))

    def rounded(x):
        return MXTensor.to_mx(x, element, 32, scaling_mode=config.scaling_mode).dequantize()

    for layer in whole:
        if isinstance(layer, torch.nn.Linear):
            x = functional.linear(rounded(x).float(), rounded(layer.weight).float())
            x = (x + layer.bias.float()).to(torch.bfloat16)
        else:
            x = layer(x)
    assert relative_error(actual, x) < 1e-2


@pytest.mark.nightly
def test_int4_weights_in_tiles(monkeypatch):
    # torchao makes them where it believes to be on an NVIDIA GPU.
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (8, 0))
    weight = torch.randn(40, 256).to(torch.bfloat16)
    packed = int4_tile_packed_to_4d_tensor.Int4TilePackedTo4dTensor.from_hp(
        weight.to("mps"), [1, 64]
    )
    bias = torch.randn(40).to(torch.bfloat16)
    for rows in (1, 9):
        x = torch.randn(rows, 256).to(torch.bfloat16)
        with debug.standins() as served:
            actual = functional.linear(x.to("mps"), packed, bias.to("mps"))
        assert not any("mm" in name for name in served)
        # A weight is at most half a step of a fifteenth of its group's range away.
        assert relative_error(actual, functional.linear(x, weight, bias)) < 0.1
        identity = torch.eye(256).to(torch.bfloat16)
        unpacked = functional.linear(identity.to("mps"), packed).cpu().T
        assert (unpacked - weight).abs().max() < 6 / 15
        expected = functional.linear(x.float(), unpacked.float(), bias.float())
        assert relative_error(actual, expected) < 1e-2
