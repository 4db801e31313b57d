"""torch.compile and torch.export on the device, without code generation.

Inductor's Metal code is tested with the Metal runtime.
"""

import io
import itertools

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

pytestmark = pytest.mark.usefixtures("fresh_compiler")


def model(x, weight):
    y = F.layer_norm(F.linear(x, weight).sin(), (4,))
    attention = F.scaled_dot_product_attention(y, y, y)
    return attention.relu().sum(-1)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "aot_eager_decomp_partition"])
def test_compiled_agrees_with_eager(backend):
    x = torch.randn(1, 1, 3, 5, device="mps")
    weight = torch.randn(4, 5, device="mps", requires_grad=True)
    expected = model(x, weight)
    (expected_gradient,) = torch.autograd.grad(expected.sum(), weight)
    actual = torch.compile(model, backend=backend, fullgraph=True)(x, weight)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    (gradient,) = torch.autograd.grad(actual.sum(), weight)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-4, atol=1e-4)


def test_compiled_training_step():
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)).to("mps")
    compiled = torch.compile(net, backend="aot_eager")
    steps = torch.optim.SGD(net.parameters(), lr=0.1)
    x = torch.randn(16, 4, device="mps")
    losses = []
    for _ in range(5):
        steps.zero_grad()
        loss = compiled(x).square().mean()
        loss.backward()
        steps.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


class Module(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x):
        return self.linear(x).sin() + 1


def test_export_with_dynamic_shapes():
    module = Module().to("mps")
    example = (torch.randn(4, 3, device="mps"),)
    program = torch.export.export(module, example, dynamic_shapes=({0: torch.export.Dim("n")},))
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    buffer.seek(0)
    loaded = torch.export.load(buffer).module()
    x = torch.randn(7, 3, device="mps")
    torch.testing.assert_close(loaded(x), module(x))


def test_fake_tensors_of_the_device():
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        x = torch.empty(3, 4, device="mps")
        y = F.linear(x, torch.empty(5, 4, device="mps")).softmax(-1)
    assert y.device.type == "mps"
    assert y.shape == (3, 5)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
@pytest.mark.parametrize("device", ["mps", "cpu"])
def test_attention_of_fake_tensors(device, mode):
    with FakeTensorMode(), mode():
        q = torch.empty(1, 2, 8, 4, device=device)
        mask = torch.empty(8, 8, dtype=torch.bool, device=device)
        for result in (
            F.scaled_dot_product_attention(q, q, q),
            F.scaled_dot_product_attention(q, q, q, mask, scale=0.5),
            F.scaled_dot_product_attention(q, q, q, dropout_p=0.5, is_causal=True),
        ):
            assert result.shape == q.shape
            assert result.device.type == device


def test_compiled_attention_in_inference_mode():
    q = torch.randn(1, 2, 8, 4, device="mps")
    attention = torch.compile(
        lambda q: F.scaled_dot_product_attention(q, q, q), backend="aot_eager"
    )
    with torch.inference_mode():
        torch.testing.assert_close(attention(q), F.scaled_dot_product_attention(q, q, q))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_fake_convolutions_have_the_strides_of_real_ones(dimensions, dtype):
    last = (None, torch.channels_last, torch.channels_last_3d)[dimensions - 1]
    formats = [torch.contiguous_format, *([last] if last else [])]
    geometry = ([1] * dimensions,) * 3
    for of_input, of_weight in itertools.product(formats, formats):
        x = torch.randn(2, 4, *[5] * dimensions, device="mps", dtype=dtype)
        weight = torch.randn(6, 4, *[3] * dimensions, device="mps", dtype=dtype)
        x, weight = x.contiguous(memory_format=of_input), weight.contiguous(memory_format=of_weight)

        def results(x, weight):
            options = (*geometry, False, [0] * dimensions, 1)
            y = torch.ops.aten.convolution(x, weight, None, *options)
            grads = torch.ops.aten.convolution_backward(
                y, x, weight, None, *options, [True, True, False]
            )
            return [y, *grads[:2]]

        with FakeTensorMode() as mode:
            fake = results(mode.from_tensor(x), mode.from_tensor(weight))
        assert [t.stride() for t in results(x, weight)] == [t.stride() for t in fake]
