"""metalops.nn: layers with quantised weights."""

import pytest
import torch
from metalops import ops
from metalops.nn import (
    QuantizedEmbedding,
    QuantizedLinear,
    QuantizedSwitchLinear,
    quantize_model,
)
from torch import nn
from torch.nn import functional

devices = pytest.mark.parametrize("device", ["mps", "cpu"])
modes = pytest.mark.parametrize("mode", ["affine", "mxfp4", "nvfp4", "nf4"])


def weight_of(layer):
    return ops.dequantize(layer.weight, layer.scales, layer.biases, bits=layer.bits, group_size=layer.group_size, mode=layer.mode)  # fmt: skip


@devices
@modes
def test_linear_is_the_layer_of_its_quantised_weights(device, mode):
    torch.manual_seed(0)
    linear = nn.Linear(128, 24).to(device)
    layer = QuantizedLinear.from_linear(linear, mode=mode)
    assert layer.bias is linear.bias
    x = torch.randn(5, 128).to(device)
    expected = functional.linear(x, weight_of(layer), linear.bias)
    torch.testing.assert_close(layer(x), expected, rtol=1e-4, atol=1e-5)
    assert (layer(x) - linear(x)).norm() < 0.3 * linear(x).norm()
    layer(x).sum().backward()
    torch.testing.assert_close(linear.bias.grad.cpu(), torch.full((24,), 5.0))


@pytest.mark.sampled(2)
@devices
@modes
def test_embedding_and_its_head(device, mode):
    torch.manual_seed(0)
    embedding = nn.Embedding(20, 64).to(device).half()
    layer = QuantizedEmbedding.from_embedding(embedding, mode=mode)
    indices = torch.tensor([[1, 19], [0, 1]], device=device)
    rows = weight_of(layer).to(torch.float16)
    assert layer(indices).dtype == torch.float16
    assert torch.equal(layer(indices), rows[indices])
    x = torch.randn(3, 64).half().to(device)
    expected = x.float() @ rows.float().T
    torch.testing.assert_close(layer.as_linear(x).float(), expected, rtol=1e-2, atol=1e-2)


@devices
@modes
def test_switch_takes_the_layer_of_each_expert(device, mode):
    torch.manual_seed(0)
    weight, bias = torch.randn(3, 16, 64).to(device), torch.randn(3, 16).to(device)
    layer = QuantizedSwitchLinear.from_weight(weight, bias, mode=mode)
    x = torch.randn(7, 1, 1, 64).to(device)  # tokens, one for each of their experts
    experts = torch.randint(0, 3, (7, 2)).to(device)
    result = layer(x, experts)
    chosen = weight_of(layer)[experts]
    expected = (x @ chosen.mT) + bias[experts].unsqueeze(-2)
    assert result.shape == (7, 2, 1, 16)
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)


@devices
def test_checkpoints_of_mlx_load(device):
    """Their keys, and weights in words of 32 bits."""
    weights = ops.quantize(torch.randn(24, 128), bits=3, group_size=64)
    bias = torch.randn(24)
    for word in (torch.uint32, torch.int32, torch.uint8):
        state = {"weight": weights[0].view(word), "scales": weights[1], "biases": weights[2], "bias": bias}  # fmt: skip
        layer = QuantizedLinear(128, 24, bits=3, group_size=64, device=device)
        assert list(layer.state_dict()) in (list(state), ["scales", "biases", "bias", "weight"])
        assert layer.load_state_dict(state).missing_keys == []
        assert state["weight"].dtype == word
        x = torch.randn(2, 128)
        expected = ops.quantized_linear(x, *weights, bias, bits=3, group_size=64)
        torch.testing.assert_close(layer(x.to(device)).cpu(), expected)
    model = nn.Sequential(QuantizedLinear(128, 24, bits=3, group_size=64, device=device))
    with pytest.raises(RuntimeError, match="0.weight must be packed, .* but is torch.float32"):
        model.load_state_dict({f"0.{k}": v.float() for k, v in state.items()})
    for name in ("QuantizedEmbedding", "QuantizedSwitchLinear"):
        made = (
            QuantizedEmbedding(24, 128)
            if name == "QuantizedEmbedding"
            else QuantizedSwitchLinear(128, 24, 2)
        )
        assert set(made.state_dict()) - {"bias"} == {"weight", "scales", "biases"}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(32, 64)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(2))
        self.again = self.blocks[0][0]
        self.attention = nn.MultiheadAttention(64, 2)
        self.head = nn.Linear(64, 32)

    def forward(self, x):
        x = self.embedding(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(self.again(x))


def test_quantize_model_replaces_what_the_filter_accepts():
    torch.manual_seed(0)
    indices = torch.randint(0, 32, (4, 6))
    model = Model()
    expected = model(indices)
    seen = []

    def accepts(module, fqn):
        seen.append(fqn)
        return fqn not in ("head", "attention.out_proj")

    assert quantize_model(model, bits=8, group_size=32, filter_fn=accepts) is model
    assert seen == ["embedding", "blocks.0.0", "blocks.1.0", "attention.out_proj", "head"]
    assert type(model.embedding) is QuantizedEmbedding
    assert type(model.blocks[1][0]) is QuantizedLinear
    assert model.again is model.blocks[0][0]
    assert type(model.head) is nn.Linear
    torch.testing.assert_close(model(indices), expected, rtol=0.1, atol=0.05)
    there = model.to("mps")
    torch.testing.assert_close(there(indices.to("mps")).cpu(), expected, rtol=0.1, atol=0.05)


def test_quantize_model_takes_linear_layers_unless_told_otherwise():
    model = quantize_model(Model())
    assert type(model.embedding) is nn.Embedding
    assert type(model.head) is QuantizedLinear
    assert type(model.attention.out_proj) is not QuantizedLinear
    assert model.attention(*[torch.zeros(3, 64)] * 3)[0].shape == (3, 64)
    alone = quantize_model(nn.Linear(64, 8), mode="mxfp4")
    assert repr(alone) == "QuantizedLinear(64, 8, bits=4, group_size=32, mode='mxfp4')"


@devices
def test_trained_scales_and_moved_modules(device):
    layer = QuantizedLinear.from_linear(nn.Linear(64, 8)).to(device)
    layer.scales.requires_grad_()
    layer(torch.ones(2, 64, device=device)).sum().backward()
    assert layer.scales.grad.shape == layer.scales.shape and layer.biases.grad is None
    half = layer.half()
    assert half.weight.dtype == torch.uint8 and half.scales.dtype == torch.float16
    assert half(torch.ones(2, 64, device=device).half()).dtype == torch.float16


def test_wrong_arguments_are_named():
    for call, message in (
        (lambda: QuantizedLinear(60, 8), "QuantizedLinear: rows of weights .* a multiple of 8 elements, but have 60"),
        (lambda: QuantizedLinear(64, 8, bits=9), "bits is 9"),
        (lambda: QuantizedEmbedding.from_embedding(nn.Embedding(4, 64, max_norm=1.0)), "max_norm is 1.0"),
        (lambda: QuantizedSwitchLinear.from_weight(torch.zeros(4, 64)), "weight must have 3 dimensions"),
        (lambda: QuantizedSwitchLinear.from_weight(torch.zeros(2, 4, 64), torch.zeros(4)), r"bias must have sizes \[2, 4\]"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            call()
