"""metalops.integrations.bitsandbytes: the package's own operators and layers, on the device and on the CPU."""

import copy

import pytest
import torch
from metalops import debug
from torch.nn import functional

from .launches import kernels_of

bnb = pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")

from metalops.integrations import bitsandbytes as integration  # noqa: E402

TYPES = ("nf4", "fp4")
SIZES = (32, 64, 128, 256, 512, 1024, 2048, 4096)
types = pytest.mark.parametrize("quant_type", TYPES)
floats = pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)


@pytest.fixture(scope="module", autouse=True)
def enabled():
    integration.enable()
    integration.enable()


def quantize(weight, size, quant_type, storage=torch.uint8):
    return torch.ops.bitsandbytes.quantize_4bit(weight, size, quant_type, storage)


def dequantize(packed, absmax, size, quant_type, shape, dtype):
    return torch.ops.bitsandbytes.dequantize_4bit(packed, absmax, size, quant_type, shape, dtype)


@pytest.mark.full
@pytest.mark.sampled(12)
@types
@floats
@pytest.mark.parametrize("size", SIZES)
def test_weights_are_packed_as_on_the_cpu(size, quant_type, dtype):
    """Whole blocks, a short last one, and half a byte that nothing is in."""
    torch.manual_seed(0)
    for shape in ((3, 4096), (5, 100), (1, 37)):
        weight = torch.randn(shape).to(dtype)
        expected, expected_absmax = quantize(weight, size, quant_type)
        packed, absmax = quantize(weight.to("mps"), size, quant_type)
        assert packed.shape == expected.shape and torch.equal(absmax.cpu(), expected_absmax)
        if quant_type == "nf4":  # fp4 has two zeros
            assert torch.equal(packed.cpu(), expected)
        arguments = (size, quant_type, shape, dtype)
        # An odd number of elements is for a function that the package compiles by Inductor, in seconds.
        with torch.compiler.set_stance("force_eager"):
            expected = dequantize(expected, expected_absmax, *arguments)
        actual = dequantize(packed, absmax, *arguments)
        assert actual.dtype == dtype and actual.shape == shape
        # What lies between two codes may go to either: quotients are rounded differently.
        right = torch.isclose(actual.cpu(), expected, rtol=2 * torch.finfo(dtype).eps, atol=1e-6)
        assert right.float().mean() >= 0.998
        out = torch.empty_like(actual)
        torch.ops.bitsandbytes.dequantize_4bit.out(packed, absmax, *arguments, out=out)
        assert torch.equal(out, actual)


@types
def test_bytes_in_storage_of_floats(quant_type):
    weight = torch.randn(16, 64).to("mps")
    expected, absmax = quantize(weight, 64, quant_type)
    for storage in (torch.bfloat16, torch.float32):
        packed, _ = quantize(weight, 64, quant_type, storage)
        assert packed.dtype == storage and packed.shape == (512 // storage.itemsize, 1)
        assert torch.equal(packed.view(torch.uint8).view(-1), expected.view(-1))
        arguments = (64, quant_type, (16, 64), torch.float32)
        values = dequantize(packed, absmax, *arguments)
        assert torch.equal(values, dequantize(expected, absmax, *arguments))
        x = torch.randn(3, 64).to("mps")
        actual = torch.ops.bitsandbytes.gemm_4bit(x, packed, (16, 64), absmax, 64, quant_type)
        torch.testing.assert_close(actual, x @ values.T, rtol=1e-4, atol=1e-4)


def layers(quant_type, nested, dtype=torch.float32, columns=128, storage=torch.uint8):
    """A layer on the device, and its weights as the CPU unpacks them."""
    torch.manual_seed(0)
    linear = torch.nn.Linear(columns, 48).to(dtype)
    options = {"quant_type": quant_type, "compress_statistics": nested, "quant_storage": storage}
    layer = bnb.nn.Linear4bit(columns, 48, compute_dtype=dtype, **options)
    layer.load_state_dict(linear.state_dict())
    layer = layer.to(dtype).to("mps")
    state = copy.deepcopy(layer.weight.quant_state)
    state.to("cpu")
    weight = bnb.functional.dequantize_4bit(layer.weight.data.cpu(), state)
    return linear, layer, weight.float()


@pytest.mark.sampled(6)
@types
@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.float16, pytest.param(torch.bfloat16, marks=pytest.mark.nightly)],
    ids=str,
)
@pytest.mark.parametrize("nested", [False, True])
def test_layers_and_their_gradients(quant_type, nested, dtype):
    linear, layer, weight = layers(quant_type, nested, dtype)
    tolerance = 16 * torch.finfo(dtype).eps
    close = {"rtol": tolerance, "atol": tolerance}
    for shape in ((128,), (1, 128), (2, 9, 128)):
        x = torch.randn(shape).to(dtype)
        ours, theirs = x.to("mps").requires_grad_(), x.float().requires_grad_()
        actual = layer(ours)
        expected = functional.linear(theirs, weight, linear.bias.float())
        torch.testing.assert_close(actual.cpu().float(), expected, **close)
        grad = torch.randn(actual.shape)
        if x.dim() > 1:  # of one row bitsandbytes gets the bias wrong, on all devices
            actual.backward(grad.to(dtype).to("mps"))
            expected.backward(grad.to(dtype).float())
            torch.testing.assert_close(ours.grad.cpu().float(), theirs.grad, **close)
    with torch.no_grad():
        torch.testing.assert_close(layer(ours).cpu().float(), expected, **close)


@types
def test_weights_are_multiplied_as_they_are_stored(quant_type, tmp_path):
    _, layer, _ = layers(quant_type, nested=False)
    for rows in (1, 3, 40):
        x = torch.randn(rows, 128).to("mps")
        with torch.no_grad(), debug.standins() as served:
            _, kernels = kernels_of(lambda x=x: layer(x), tmp_path)
        assert [kernel.startswith("quantized_matmul_") for kernel in kernels] == [True]
        assert served == {}


@types
def test_blocks_that_do_not_end_with_rows(quant_type):
    linear, layer, weight = layers(quant_type, False, columns=100)
    x = torch.randn(5, 100)
    expected = functional.linear(x, weight, linear.bias)
    torch.testing.assert_close(layer(x.to("mps")).cpu(), expected, rtol=1e-4, atol=1e-4)


@types
def test_a_row_by_its_own_operator(quant_type):
    _, layer, weight = layers(quant_type, False)
    x = torch.randn(1, 128).to("mps")
    out = torch.empty(1, 48, device="mps")
    bnb.functional.gemv_4bit(x, layer.weight.data.t(), out=out, state=layer.weight.quant_state)
    torch.testing.assert_close(out.cpu(), x.cpu() @ weight.T, rtol=1e-4, atol=1e-4)


def test_quantised_statistics_are_those_of_the_cpu():
    torch.manual_seed(0)
    code = bnb.functional.create_dynamic_map()
    for count in (1000, 256, 7):
        absmax = torch.randn(count)
        codes, of_blocks = torch.ops.bitsandbytes.quantize_blockwise(absmax, code, 256)
        actual = torch.ops.bitsandbytes.quantize_blockwise(absmax.to("mps"), code.to("mps"), 256)
        torch.testing.assert_close(actual[1].cpu(), of_blocks)
        assert (actual[0].cpu() != codes).float().mean() < 0.002
        arguments = (of_blocks, code, 256, torch.float32)
        expected = torch.ops.bitsandbytes.dequantize_blockwise(codes, *arguments)
        arguments = tuple(t.to("mps") if isinstance(t, torch.Tensor) else t for t in arguments)
        actual = torch.ops.bitsandbytes.dequantize_blockwise(codes.to("mps"), *arguments)
        torch.testing.assert_close(actual.cpu(), expected)
        out = torch.empty(count, device="mps")
        packed = torch.zeros(count, dtype=torch.uint8, device="mps")
        torch.ops.bitsandbytes.dequantize_blockwise.out(packed, *arguments, out=out)
        assert torch.equal(
            out.cpu(), arguments[1][0].cpu() * of_blocks.repeat_interleave(256)[:count]
        )


@types
def test_embeddings(quant_type):
    torch.manual_seed(0)
    embedding = torch.nn.Embedding(20, 128)
    layer = bnb.nn.Embedding4bit(20, 128, quant_type=quant_type)
    layer.load_state_dict(embedding.state_dict())
    layer = layer.to("mps")
    indices = torch.tensor([[3, 19], [0, 3]])
    actual = layer(indices.to("mps")).cpu()
    assert (actual - embedding(indices)).abs().max() < 0.6
    state = layer.weight.quant_state
    weight = bnb.functional.dequantize_4bit(layer.weight.data, state).cpu()
    torch.testing.assert_close(actual, weight[indices])


@pytest.mark.full
@pytest.mark.parametrize("nested", [False, True])
def test_models_of_transformers(nested, tmp_path):
    """That are quantised while they are loaded, against their weights unpacked on the CPU."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        pad_token_id=0,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    model.save_pretrained(tmp_path)
    options = transformers.BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=nested,
        bnb_4bit_compute_dtype=torch.float32,
    )
    quantized = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, quantization_config=options, device_map={"": "mps"}
    )
    found = [x for x in quantized.named_modules() if isinstance(x[1], bnb.nn.Linear4bit)]
    assert len(found) == 14
    for name, layer in found:
        weight = bnb.functional.dequantize_4bit(layer.weight.data, layer.weight.quant_state)
        model.get_submodule(name).weight.data = weight.cpu()
    tokens = torch.randint(1, 64, (2, 9))
    with torch.no_grad():
        logits, kernels = kernels_of(lambda: quantized(tokens.to("mps")).logits, tmp_path)
        torch.testing.assert_close(logits.cpu(), model(tokens).logits, rtol=1e-3, atol=1e-4)
    assert sum(kernel.startswith("quantized_matmul_") for kernel in kernels) == 14
