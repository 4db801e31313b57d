"""Products in the place of stock ones, while the fix "matmul" is on: csrc/ops/matmul/products.mm. The reported faults, out=,
operators in place, errors and derivatives; what the kernel computes is in test_gemm.py."""

import metalops
import pytest
import torch
from torch.nn import functional as F

from ..aten import kernels_of


@pytest.fixture(autouse=True)
def ours():
    with metalops.enable_fixes("matmul"):
        yield


def both(call):
    """What call(device) gives on the CPU, and on mps."""
    return call("cpu"), call("mps")


def numbers(*shape, device, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(device, dtype)


# ---- what users reported -------------------------------------------------------------------------


def test_rows_beyond_2_to_the_16_with_a_bias():
    rows = torch.arange(65_537.0, device="mps").remainder(251)
    x = rows.view(-1, 1, 1).expand(-1, 1, 8).contiguous()
    arguments = x, torch.ones(4, 8, device="mps"), torch.ones(4, device="mps")
    for function in (F.linear, _linear):
        y = function(*arguments)
        assert torch.equal(y, (rows * 8 + 1).view(-1, 1, 1).expand(-1, 1, 4))


@pytest.mark.parametrize("depth", [32_767, 32_768, 70_001])
def test_a_depth_beyond_2_to_the_15(depth):
    """With other numbers around the operands, which no result has a part of."""
    memory = torch.full((2 * depth * 20 + 200,), 1e6, device="mps")
    memory[100:-100] = 1
    for m, n in ((20, 17), (1, 20)):
        a = memory[100 : 100 + 2 * m * depth].view(2, m, depth)
        b = memory[100 : 100 + 2 * n * depth].view(2, depth, n)
        assert torch.bmm(a, b).unique().tolist() == [depth]
        assert torch.baddbmm(memory[100:101], a, b).unique().tolist() == [depth + 1]
        assert torch.addbmm(memory[100:101], a, b).unique().tolist() == [2 * depth + 1]
        assert (a[0] @ b[0]).unique().tolist() == [depth]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_beta_of_zero_hides_what_is_not_a_number(dtype):
    x = torch.ones(2, 3, 3, dtype=dtype, device="mps")
    for value in (torch.nan, torch.inf):
        added = torch.full((1, 1, 1), value, dtype=dtype, device="mps")
        assert torch.baddbmm(added, x, x, beta=0).unique().tolist() == [3]
        assert torch.addmm(added[0], x[0], x[0], beta=0).unique().tolist() == [3]
        assert torch.addbmm(added[0], x, x, beta=0).unique().tolist() == [6]
        assert torch.addmv(added[0, 0], x[0], x[0, 0], beta=0).unique().tolist() == [3]


def test_a_strided_out():
    a, b = numbers(6, 20, device="mps"), numbers(20, 9, device="mps", seed=1)
    expected = a.cpu().double() @ b.cpu().double()
    for out in (
        torch.zeros(6, 18, device="mps")[:, ::2],
        torch.zeros(9, 6, device="mps").t(),
        torch.zeros(12, 9, device="mps")[::2],
    ):
        assert torch.mm(a, b, out=out) is out
        torch.testing.assert_close(out.cpu().double(), expected, rtol=1e-5, atol=1e-5)


def test_the_transposed_operand_that_depended_on_allocations():
    a = numbers(5_000, 25, device="cpu")
    expected = (a.double().t() @ a.double()).float()
    for count in (1, 10_000, 100_000):
        torch.full((count,), 1e9, device="mps")
        x = a.to("mps")
        torch.testing.assert_close((x.t() @ x).cpu(), expected, rtol=1e-4, atol=1e-2)


# ---- out=, in place, aliases ---------------------------------------------------------------------

SUMS = {
    "addmm": ((6, 9), (6, 20), (20, 9)),
    "addmv": ((6,), (6, 20), (20,)),
    "baddbmm": ((3, 6, 9), (3, 6, 20), (3, 20, 9)),
    "addbmm": ((6, 9), (3, 6, 20), (3, 20, 9)),
}
by_sum = pytest.mark.parametrize("name", SUMS)


def _arguments(name, device):
    return [numbers(*shape, device=device, seed=i) for i, shape in enumerate(SUMS[name])]


@by_sum
def test_sums_in_place_into_out_and_broadcast(name, tmp_path):
    def call(device):
        self, a, b = _arguments(name, device)
        results = [
            getattr(torch, name)(x, a, b, beta=0.5, alpha=2)
            for x in (self, self[..., :1], self[(0,) * self.dim()])
        ]
        out = torch.empty(0, device=device)
        results.append(getattr(torch, name)(self, a, b, out=out))
        strided = torch.zeros(*self.shape, 2, device=device)[..., 1]
        results.append(getattr(torch, name)(self, a, b, beta=3, out=strided))
        in_place = self.clone()
        results.append(getattr(in_place, f"{name}_")(a, b, alpha=-1))
        results.append(getattr(torch, name)(in_place, a, b, beta=2, out=in_place).clone())
        transposed = self.mT.contiguous().mT if self.dim() > 1 else self.clone()
        results.append(getattr(transposed, f"{name}_")(a, b, beta=0))
        return results

    expected = call("cpu")
    actual, launched = kernels_of(lambda: call("mps"), tmp_path)
    for e, a in zip(expected, actual, strict=True):
        assert a.stride() == e.stride()
        torch.testing.assert_close(a.cpu(), e, rtol=1e-5, atol=1e-4)
    assert len([kernel for kernel in launched if kernel.startswith("gemm")]) == len(expected)


def test_an_out_that_overlaps_an_operand_is_refused():
    x = numbers(4, 4, device="mps")
    with pytest.raises(RuntimeError, match="unsupported operation"):
        torch.mm(x, x, out=x)
    with pytest.raises(RuntimeError, match="unsupported operation"):
        torch.mm(x, x, out=x[0].expand(4, 4))


def test_wrong_arguments_are_named():
    x = torch.ones(3, 3, device="mps")
    for call, kind, message in (
        (lambda: torch.mm(x[0], x), RuntimeError, "self must be a matrix"),
        (lambda: torch.mm(x[:, :2], x), RuntimeError, r"cannot be multiplied \(3x2 and 3x3\)"),
        (lambda: torch.mm(x, x.half()), RuntimeError, "mm: expected operands of the same dtype, but got Float and Half"),
        (lambda: torch.mm(x.bool(), x.bool()), NotImplementedError, "\"mm\" not implemented for 'Bool'"),
        (lambda: torch.mm(x, x, out=x.half()), RuntimeError, "Expected out tensor to have dtype float, but got .*Half"),
        (lambda: torch.mm(x, x.cpu()), RuntimeError, "same device"),
        (lambda: torch.bmm(x, x), RuntimeError, "batch1 must be a 3D tensor"),
        (lambda: torch.bmm(x[None], x[None][:, :2]), RuntimeError, r"to be: \[1, 3\] but got: \[1, 2\]"),
        (lambda: torch.addmm(x.half(), x, x), RuntimeError, "addmm: self and the operands must have the same dtype"),
        (lambda: torch.addmm(x[:2], x, x), RuntimeError, "size"),
        (lambda: x[:1].addmm_(x, x), RuntimeError, r"addmm_: output with shape \[1, 3\] doesn't match"),
        (lambda: torch.addmv(x[0], x, x), RuntimeError, "vector . matrix @ vector expected"),
        (lambda: torch.addmv(x[0], x, x[0, :2]), RuntimeError, r"got mat \(3x3\), vec \(2\)"),
        (lambda: _linear(x, x[:, :2]), RuntimeError, r"cannot be multiplied \(3x3 and 2x3\)"),
        (lambda: _linear(x, x, x[0].half()), RuntimeError, "linear: bias has dtype Half, but the input Float"),
    ):  # fmt: skip
        with pytest.raises(kind, match=message):
            call()


# ---- linear, derivatives, transforms -------------------------------------------------------------


# On a Mac autograd has a formula for linear, which calls linear_backward. On the software device it is composed above
# autograd, so that these two are called here as from there.


def _linear(x, weight, bias=None):
    with torch.inference_mode():
        return F.linear(x, weight, bias)


@pytest.mark.parametrize("shape", [(8,), (5, 8), (2, 5, 8), (2, 1, 3, 8), (0, 8)], ids=str)
@pytest.mark.parametrize("outputs", [(6,), ()], ids=str)
def test_linear_and_its_gradients(shape, outputs, tmp_path):
    x, weight = numbers(*shape, device="cpu"), numbers(*outputs, 8, device="cpu", seed=1)
    bias = numbers(6, device="cpu", seed=2) if outputs else None
    inputs = [tensor.requires_grad_() for tensor in (x, weight, bias) if tensor is not None]
    y = F.linear(x, weight, bias)
    grad = numbers(*y.shape, device="cpu", seed=3)
    expected = [y, *torch.autograd.grad(y, inputs, grad)]
    moved = [tensor.detach().to("mps") for tensor in inputs]

    def call():
        mask = [True, True, bool(outputs)]
        gradients = torch.ops.aten.linear_backward(moved[0], grad.to("mps"), moved[1], mask)
        return [_linear(*moved), *gradients[: len(inputs)]]

    actual, launched = kernels_of(call, tmp_path)
    for e, a in zip(expected, actual, strict=True):
        torch.testing.assert_close(a.cpu(), e.detach(), rtol=1e-5, atol=1e-4)
    if x.numel():
        assert len([name for name in launched if name.startswith("gemm")]) == 3


def test_a_bias_for_each_row():
    x, weight = numbers(2, 5, 8, device="mps"), numbers(6, 8, device="mps", seed=1)
    for shape in ((1, 6), (5, 6), (2, 5, 6), (2, 1, 6)):
        bias = numbers(*shape, device="mps", seed=2)
        expected = x.cpu().double() @ weight.cpu().double().t() + bias.cpu()
        actual = _linear(x, weight, bias).cpu().double()
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


def _transformed(device):
    a, b = numbers(3, 4, device=device), numbers(4, 5, device=device, seed=1)
    batch = numbers(2, 3, 4, device=device, seed=2)

    def loss(a, b):
        return (torch.mm(a, b) ** 2).sum()

    yield torch.func.grad(loss)(a, b)
    yield torch.func.jvp(torch.mm, (a, b), (b.t()[:3], a.t()[:, [0, 1, 2, 0, 1]]))[1]
    yield torch.func.vmap(torch.mm, (0, None))(batch, b)
    yield torch.func.vmap(torch.func.grad(loss), (0, None))(batch, b)
    yield torch.func.jacrev(torch.mm)(a, b)
    yield torch.func.jacfwd(torch.mm)(a, b)
    yield torch.func.hessian(lambda a: loss(a, b))(a)


def test_transforms():
    for expected, actual in zip(*both(lambda device: list(_transformed(device))), strict=True):
        torch.testing.assert_close(actual.cpu(), expected, rtol=1e-4, atol=1e-4)


def test_fake_tensors_are_like_real_ones():
    from torch._subclasses.fake_tensor import FakeTensorMode

    x = numbers(4, 4, device="mps")
    for call in (
        lambda x: torch.mm(x, x.t()),
        lambda x: torch.bmm(x[None], x[None].mT),
        lambda x: torch.addmv(x[0], x, x[1]),
        lambda x: F.linear(x[None], x, x[0]),
    ):
        real = call(x)
        with FakeTensorMode() as mode:
            fake = call(mode.from_tensor(x))
        assert (real.shape, real.dtype, real.stride()) == (fake.shape, fake.dtype, fake.stride())


def test_autocast():
    x = numbers(4, 8, device="mps")
    with torch.autocast("mps", torch.float16):
        assert torch.mm(x, x.t()).dtype == F.linear(x, x).dtype == torch.float16
