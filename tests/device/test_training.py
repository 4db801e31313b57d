"""Whole models on the device: training, mixed precision, layers, higher derivatives."""

import copy
import threading

import pytest
import torch
from torch import nn
from torch.func import grad, hessian, jvp, vmap
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


def small_model() -> nn.Module:
    return nn.Sequential(
        nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 3)
    )


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
@pytest.mark.parametrize("options", [{}, {"foreach": True}, {"fused": True}], ids=str)
def test_loss_falls(optimizer, options):
    model = small_model().to("mps")
    steps = optimizer(model.parameters(), lr=1e-2, **options)
    x = torch.randn(32, 8, device="mps")
    target = torch.randint(0, 3, (32,), device="mps")
    losses = []
    for _ in range(60):
        steps.zero_grad()
        loss = F.cross_entropy(model(x), target)
        loss.backward()
        steps.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert all(p.device.type == "mps" and p.grad.device.type == "mps" for p in model.parameters())


def test_training_agrees_with_the_cpu():
    on_cpu = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    on_mps = copy.deepcopy(on_cpu).to("mps")
    x, y = torch.randn(16, 4), torch.randn(16, 1)
    for model, device in ((on_cpu, "cpu"), (on_mps, "mps")):
        steps = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for _ in range(5):
            steps.zero_grad()
            F.mse_loss(model(x.to(device)), y.to(device)).backward()
            steps.step()
    for a, b in zip(on_cpu.parameters(), on_mps.parameters(), strict=True):
        torch.testing.assert_close(b.cpu(), a)


def test_gradient_clipping():
    parameter = nn.Parameter(torch.ones(3, device="mps"))
    (parameter * 5).sum().backward()
    norm = nn.utils.clip_grad_norm_([parameter], 1.0)
    assert norm.item() == pytest.approx(5 * 3**0.5)
    assert parameter.grad.norm().item() == pytest.approx(1.0, rel=1e-4)


def test_gradient_scaler():
    parameter = nn.Parameter(torch.ones(2, device="mps"))
    steps = torch.optim.SGD([parameter], lr=0.1)
    scaler = torch.amp.GradScaler("mps")
    scaler.scale(parameter.sum()).backward()
    scaler.step(steps)
    scaler.update()
    torch.testing.assert_close(parameter.detach().cpu(), torch.full((2,), 0.9))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast(dtype):
    a = torch.randn(4, 4, device="mps", requires_grad=True)
    with torch.autocast("mps", dtype=dtype):
        product = a @ a
        probabilities = F.softmax(product, -1)
    assert product.dtype == dtype
    assert probabilities.dtype == torch.float32
    probabilities.square().sum().backward()
    assert a.grad.dtype == torch.float32


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: nn.Conv1d(3, 4, 3), (2, 3, 9)),
        (lambda: nn.Conv2d(3, 4, 3, stride=2, padding=1), (2, 3, 8, 8)),
        (lambda: nn.Conv2d(4, 4, 3, groups=4, bias=False), (2, 4, 8, 8)),
        (lambda: nn.Conv3d(2, 3, 2), (1, 2, 4, 4, 4)),
        (lambda: nn.ConvTranspose2d(3, 4, 3, stride=2), (1, 3, 5, 5)),
        (lambda: nn.BatchNorm2d(3), (4, 3, 5, 5)),
        (lambda: nn.GroupNorm(2, 4), (2, 4, 5)),
        (lambda: nn.LayerNorm(6), (2, 3, 6)),
        (lambda: nn.MaxPool2d(2), (1, 2, 6, 6)),
        (lambda: nn.Upsample(scale_factor=2, mode="bilinear"), (1, 2, 4, 4)),
        (lambda: nn.TransformerEncoderLayer(8, 2, dropout=0.0), (3, 2, 8)),
    ],
    ids=lambda value: type(value()).__name__ if callable(value) else str(value),
)
def test_layer_agrees_with_the_cpu(make, shape):
    on_cpu = make()
    on_mps = copy.deepcopy(on_cpu).to("mps")
    x = torch.randn(shape, requires_grad=True)
    x_mps = x.detach().to("mps").requires_grad_()
    y, y_mps = on_cpu(x), on_mps(x_mps)
    cotangent = torch.randn(y.shape)
    y.backward(cotangent)
    y_mps.backward(cotangent.to("mps"))
    torch.testing.assert_close(y_mps.detach().cpu(), y.detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(x_mps.grad.cpu(), x.grad, rtol=1e-4, atol=1e-4)
    for a, b in zip(on_cpu.parameters(), on_mps.parameters(), strict=True):
        torch.testing.assert_close(b.grad.cpu(), a.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layer", [nn.RNN, nn.LSTM, nn.GRU])
def test_recurrent_layer_agrees_with_the_cpu(layer):
    on_cpu = layer(4, 5, num_layers=2, batch_first=True, bidirectional=True)
    on_mps = copy.deepcopy(on_cpu).to("mps")
    x = torch.randn(2, 3, 4)
    y, _ = on_cpu(x)
    y_mps, _ = on_mps(x.to("mps"))
    y.sum().backward()
    y_mps.sum().backward()
    torch.testing.assert_close(y_mps.detach().cpu(), y.detach(), rtol=1e-4, atol=1e-5)
    for a, b in zip(on_cpu.parameters(), on_mps.parameters(), strict=True):
        torch.testing.assert_close(b.grad.cpu(), a.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mask", [None, "bool", "float", "causal"])
def test_attention_agrees_with_the_cpu(mask):
    query, key, value = (torch.randn(1, 2, 5, 8) for _ in range(3))
    options = {}
    if mask == "bool":
        options["attn_mask"] = torch.ones(5, 5, dtype=torch.bool).tril()
    elif mask == "float":
        options["attn_mask"] = torch.randn(5, 5)
    elif mask == "causal":
        options["is_causal"] = True
    expected = F.scaled_dot_product_attention(query, key, value, **options)
    moved = {k: v.to("mps") if isinstance(v, torch.Tensor) else v for k, v in options.items()}
    query_mps = query.to("mps").requires_grad_()
    actual = F.scaled_dot_product_attention(query_mps, key.to("mps"), value.to("mps"), **moved)
    torch.testing.assert_close(actual.detach().cpu(), expected, rtol=1e-4, atol=1e-5)
    actual.sum().backward()
    assert query_mps.grad.device.type == "mps"


def test_transformer_fast_path_is_missing_as_on_a_mac():
    layer = nn.TransformerEncoderLayer(8, 2).to("mps").eval()
    x = torch.randn(3, 2, 8, device="mps")
    with torch.no_grad():
        assert layer(x).shape == x.shape


def test_double_backward():
    x = torch.randn(4, device="mps", requires_grad=True)
    (first,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    torch.testing.assert_close(second, 6 * x.detach())


def test_function_transforms():
    x = torch.randn(4, device="mps")
    torch.testing.assert_close(vmap(torch.sin)(x), x.sin())
    _, tangent = jvp(torch.sin, (x,), (torch.ones_like(x),))
    torch.testing.assert_close(tangent, x.cos())
    torch.testing.assert_close(grad(lambda t: (t**2).sum())(x), 2 * x)
    torch.testing.assert_close(hessian(lambda t: (t**3).sum())(x), torch.diag(6 * x))


def test_checkpointed_backward_from_several_threads():
    x = torch.randn(4, device="mps", requires_grad=True)
    failures = []

    def work():
        try:
            for _ in range(20):
                (checkpoint(torch.sin, x, use_reentrant=False) * x).sum().backward()
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert torch.isfinite(x.grad).all()


def test_inference_mode():
    with torch.inference_mode():
        y = torch.ones(3, device="mps").mul_(2).view(3, 1)
        assert y.is_inference()
        assert y.sum().item() == 6
