"""linear_act: kernels/matmul/linear_act.metal."""

import functools
import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import metalops
import pytest
import torch
from metalops import ops
from metalops.msl import flatten
from metalops.testing import no_standins
from metalops.testing.samples import FLOATS, make
from torch.nn import functional

from ..benchmark import Benchmark
from ..families import kernel_file
from .bodies import with_dtypes

OTHERS = ("linear_act",)

ROOT = Path(__file__).parents[3]

ACTIVATIONS = {
    "none": lambda x: x,
    "relu": torch.relu,
    "gelu": functional.gelu,
    "gelu_tanh": functools.partial(functional.gelu, approximate="tanh"),
    "silu": functional.silu,
    "silu_and_mul": lambda x: functional.silu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1],
}
activations = pytest.mark.parametrize("activation", ACTIVATIONS)
dtypes = pytest.mark.parametrize("dtype", FLOATS, ids=str)
devices = pytest.mark.parametrize("device", ["mps", "cpu"])


@pytest.fixture(params=["tensor", "simdgroup"])
def body(request, monkeypatch):
    """By which products: of tensors, or of simdgroup matrices."""
    monkeypatch.setenv("METALOPS_MATMUL", request.param)


def linear_act(x, weight, bias=None, activation="none"):
    """The reference."""
    return ACTIVATIONS[activation](functional.linear(x, weight, bias))


@functools.lru_cache(maxsize=4)
def _weights(features, dtype, device):
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(256, features, generator=generator) / features**0.5
    return weight.to(dtype).to(device)


def _benchmark(activation, reason):
    def of(function):
        return lambda x, out: function(x, _weights(x.shape[-1], x.dtype, x.device))

    return Benchmark(
        f"linear_act, {activation}",
        of(lambda x, w: ops.linear_act(x, w, None, activation)),
        of(lambda x, w: linear_act(x, w, None, activation)),
        composed=True,
        reason=reason,
    )


BENCHMARKS = tuple(
    _benchmark(
        activation,
        "torch's CPU operator is a library's, which is written for each processor",
    )
    for activation in ("none", "gelu", "silu_and_mul")
)


def operands(shape, features, dtype=torch.float32, activation="none", seed=0):
    """x, weight and bias of `features` of a result, on the CPU."""
    rows = 2 * features if activation == "silu_and_mul" else features
    x = make(shape, dtype, seed=seed)
    scale = max(shape[-1], 1) ** 0.5
    weight = (make((rows, shape[-1]), torch.float32, seed=seed + 1) / scale).to(dtype)
    return x, weight, make((rows,), dtype, seed=seed + 2)


def assert_right(actual, x, weight, bias, activation):
    """Within what rounding float32 sums and then the result leaves."""
    wide = [None if t is None else t.detach().cpu().double() for t in (x, weight, bias)]
    expected = linear_act(*wide, activation)
    assert actual.shape == expected.shape and actual.dtype == x.dtype
    rtol = max(torch.finfo(x.dtype).eps, 1e-6)
    sums = functional.linear(*wide).abs()
    atol = 2e-6 * (sums.max().item() + 1 if sums.numel() else 1)
    torch.testing.assert_close(actual.detach().cpu().double(), expected, rtol=rtol, atol=atol)


def moved(*tensors):
    return [None if t is None else t.to("mps") for t in tensors]


# ---- values --------------------------------------------------------------------------------------

SHAPES = (
    ((5,), 3),
    ((1, 7), 1),
    ((2, 3, 33), 65),
    ((3, 150), 13),
    ((4, 128), 16),
    ((8, 64), 64),
    ((16, 16), 64),
    ((17, 31), 63),
    ((33, 40), 130),
    ((64, 48), 64),
    ((130, 17), 67),
)


@pytest.mark.sampled(12)
@activations
@with_dtypes(FLOATS)
def test_sizes_that_are_and_are_not_multiples_of_tiles(activation, dtype, body):
    for shape, features in SHAPES:
        x, weight, bias = operands(shape, features, dtype, activation)
        for b in (bias, None):
            actual = ops.linear_act(*moved(x, weight, b), activation)
            assert_right(actual, x, weight, b, activation)


@pytest.mark.sampled(3)
@with_dtypes(FLOATS)
@pytest.mark.parametrize("rows", [3, 20, 70])
def test_transposed_strided_and_expanded_operands(dtype, rows, body):
    x, weight, bias = operands((rows, 36), 50, dtype)
    gaps = torch.zeros(rows, 77, dtype=dtype)
    gaps[:, 5:41] = x
    for left in (
        x.t().contiguous().t(),
        gaps[:, 5:41],
        x.repeat_interleave(2, 1)[:, ::2],
        x[:1].expand(rows, -1),
    ):
        for right in (weight, weight.t().contiguous().t(), weight.repeat_interleave(3, 0)[::3]):
            placed = [_same_strides(t) for t in (left, right, bias.repeat_interleave(2)[::2])]
            actual = ops.linear_act(*placed, "gelu")
            assert_right(actual, left, right, bias, "gelu")


def _same_strides(x):
    base = x._base if x._base is not None else x
    return base.to("mps").as_strided(x.shape, x.stride(), x.storage_offset())


def test_a_transposed_weight_is_not_copied():
    x, weight, bias = moved(*operands((40, 64), 64))
    allocated = torch.mps.current_allocated_memory()
    result = ops.linear_act(x, weight.t(), bias)
    assert torch.mps.current_allocated_memory() - allocated <= 2 * result.nbytes
    with no_standins():
        ops.linear_act(x.t().contiguous().t(), weight.t(), bias)


@activations
def test_empty_tensors_and_sums_of_nothing(activation, body):
    for shape, features in (((0, 4), 3), ((2, 0, 4), 3), ((3, 4), 0), ((0,), 3), ((2, 3, 0), 4)):
        x, weight, bias = operands(shape, features, activation=activation)
        for b in (bias, None):
            actual = ops.linear_act(*moved(x, weight, b), activation)
            assert_right(actual, x, weight, b, activation)


@activations
def test_infinities_and_nan_are_those_of_torch(activation, body):
    x = torch.eye(4)
    weight = torch.tensor([[-torch.inf, 0.0, 1.0, torch.nan]]).repeat(2, 1)
    weight[:, 0] = torch.tensor([torch.nan, 1.0])
    actual = ops.linear_act(*moved(x, weight), None, activation).cpu()
    torch.testing.assert_close(actual, linear_act(x, weight, None, activation), equal_nan=True)


@with_dtypes(FLOATS[1:])
def test_half_precision_adds_up_in_float32(dtype, body):
    x = torch.ones(1, 4096, dtype=dtype)
    weight = torch.ones(64, 4096, dtype=dtype)
    assert ops.linear_act(*moved(x, weight)).unique().tolist() == [4096]


def test_out_is_resized_and_cast_to_and_may_have_gaps():
    x, weight, bias = operands((6, 20), 9)
    expected = linear_act(x, weight, bias, "silu")
    arguments = (*moved(x, weight, bias), "silu")
    for out in (
        torch.empty(0, device="mps"),
        torch.empty(6, 9, device="mps"),
        torch.zeros(9, 6, device="mps").t(),
        torch.zeros(6, 18, device="mps")[:, ::2],
        torch.zeros(6, 9, device="mps", dtype=torch.half),
    ):
        assert ops.linear_act(*arguments, out=out) is out
        torch.testing.assert_close(out.cpu(), expected.to(out.dtype))
    with pytest.raises(RuntimeError, match="can't be cast"):
        ops.linear_act(*arguments, out=torch.empty(6, 9, device="mps", dtype=torch.int))
    square = torch.eye(4, device="mps")
    with pytest.raises(RuntimeError, match="single memory location|overlap"):
        ops.linear_act(square, square.clone(), out=square)
    with pytest.raises(RuntimeError, match="don't support automatic differentiation"):
        ops.linear_act(
            arguments[0].requires_grad_(), *arguments[1:], out=torch.empty(0, device="mps")
        )


# ---- the two bodies of products ------------------------------------------------------------------


def _used(**environment):
    """The libraries that a process opens with these environment variables."""
    program = """
import metalops, torch
from metalops import _C, ops
x = torch.ones(20, 20, device="mps")
assert (ops.linear_act(x, x) == 20).all()
print(*[s["family"] for s in _C.kernel_libraries() if s["origin"] and "linear_act" in s["family"]])
"""
    others = {
        name: value
        for name, value in os.environ.items()
        if name not in ("METALOPS_MATMUL", *_VERSIONS)
    }
    result = subprocess.run(
        [sys.executable, "-c", program],
        env=others | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return result.stdout.split() if result.returncode == 0 else result.stderr.splitlines()[-1]


_VERSIONS = ("METALOPS_METAL_VERSION", "PYTORCH_MPS_METAL_VERSION")


@pytest.mark.nightly
def test_tensors_are_taken_where_the_language_has_them_unless_the_environment_says_otherwise():
    assert _used() == ["linear_act.tensors"]
    assert _used(METALOPS_MATMUL="simdgroup") == ["linear_act"]
    assert _used(METALOPS_METAL_VERSION="3.2") == ["linear_act"]
    assert _used(PYTORCH_MPS_METAL_VERSION="3.1") == ["linear_act"]
    assert _used(METALOPS_MATMUL="tensor", METALOPS_METAL_VERSION="3.1") == ["linear_act.tensors"]


def test_another_body_is_refused(monkeypatch):
    monkeypatch.setenv("METALOPS_MATMUL", "matrix")
    x = torch.ones(9, 9, device="mps")
    with pytest.raises(
        ValueError, match="METALOPS_MATMUL must be tensor or simdgroup, but is matrix"
    ):
        ops.linear_act(x, x)


@pytest.mark.nightly
@pytest.mark.parametrize("layout", ["apple8", "scramble:3"])
def test_products_of_tensors_do_not_depend_on_where_their_elements_are(layout, monkeypatch):
    monkeypatch.setenv("METALOPS_COOPERATIVE_LAYOUT", layout)
    source = flatten(kernel_file("linear_act"), [ROOT, ROOT / "python/metalops/include"])
    source = re.sub(r"^REGISTER_(TILES|OTHERS)\(.*$", "", source, flags=re.MULTILINE)
    source += "REGISTER_TILE(small_gated, float, 16, 64, 1, 4, 2);\n"
    kernel = metalops.compile_shader(source, language="4.0").linear_act_small_gated_float
    x, weight, bias = operands((20, 37), 70, activation="silu_and_mul")
    parameters = struct.pack("qqiiii????", 37, 37, 20, 70, 37, 4, False, False, True, False)
    parameters = torch.frombuffer(bytearray(parameters + bytes(4)), dtype=torch.uint8)
    result = torch.empty(20, 70, device="mps")
    kernel(result, result, *moved(x, weight, bias, parameters), threads=4 * 128, group_size=128)
    assert_right(result, x, weight, bias, "silu_and_mul")


# ---- errors --------------------------------------------------------------------------------------


@devices
def test_wrong_arguments_are_named(device):
    def tensor(*shape, **about):
        return torch.zeros(*shape, device=device, **about)

    for arguments, error, message in (
        ((tensor(2, 3), tensor(4, 5)), RuntimeError, r"weight must have as many columns as x, 3, but has sizes \[4, 5\]"),
        ((tensor(2, 3), tensor(3)), RuntimeError, r"weight must have 2 dimensions, but has sizes \[3\]"),
        ((tensor(()), tensor(3, 3)), RuntimeError, "x must have at least one dimension"),
        ((tensor(2, 3), tensor(4, 3), tensor(3)), RuntimeError, r"bias must have as many elements as weight has rows, 4, but has sizes \[3\]"),
        ((tensor(2, 3), tensor(4, 3, dtype=torch.half)), RuntimeError, "weight must have the dtype of x"),
        ((tensor(2, 3), tensor(4, 3), tensor(4, dtype=torch.half)), RuntimeError, "bias must have the dtype of x"),
        ((tensor(2, 3), tensor(5, 3), None, "silu_and_mul"), RuntimeError, r"weight must have an even number of rows for a gate, but has sizes \[5, 3\]"),
        ((tensor(2, 3), tensor(4, 3), None, "tanh"), ValueError, "activation must be one of 'none', 'relu', .*, but is 'tanh'"),
        ((tensor(2, 3, dtype=torch.long), tensor(4, 3, dtype=torch.long)), NotImplementedError, "\"linear_act\" not implemented for 'Long'"),
        ((tensor(2, 3, dtype=torch.complex64), tensor(4, 3, dtype=torch.complex64)), NotImplementedError, "not implemented for 'ComplexFloat'"),
    ):  # fmt: skip
        with pytest.raises(error, match=message):
            ops.linear_act(*arguments)


def test_tensors_of_several_devices_are_refused():
    x, weight, bias = operands((2, 3), 4)
    for arguments in ((x.to("mps"), weight), (x, weight.to("mps")), (*moved(x, weight), bias)):
        with pytest.raises(RuntimeError, match="same device"):
            ops.linear_act(*arguments)


# ---- derivatives ---------------------------------------------------------------------------------


def gradients(function, tensors, cotangent):
    leaves = [t.detach().requires_grad_() for t in tensors]
    return torch.autograd.grad(function(*leaves), leaves, cotangent)


@pytest.mark.sampled(2)
@activations
@with_dtypes(FLOATS)
def test_gradients(activation, dtype, body):
    for shape, features in (((3, 5, 19), 21), ((70, 33), 66), ((7,), 4)):
        tensors = operands(shape, features, dtype, activation)
        result = linear_act(*tensors, activation)
        cotangent = make(result.shape, dtype, seed=9)
        expected = gradients(
            lambda *t: linear_act(*t, activation),
            [t.double() for t in tensors],
            cotangent.double(),
        )
        with no_standins():
            actual = gradients(
                lambda *t: ops.linear_act(*t, activation), moved(*tensors), cotangent.to("mps")
            )
        for a, e, t in zip(actual, expected, tensors):
            assert a.shape == t.shape and a.dtype == dtype
            scale = e.abs().max().item()
            tolerance = 8 * torch.finfo(dtype).eps if dtype != torch.float32 else 1e-5
            torch.testing.assert_close(a.cpu().double(), e, rtol=tolerance, atol=tolerance * scale)


def test_gradients_of_transposed_operands_and_expanded_cotangents(body):
    x, weight, bias = operands((40, 24), 30)
    expected = gradients(lambda *t: linear_act(*t, "gelu"), (x, weight, bias), torch.ones(40, 30))
    x, weight, bias = moved(x.t().contiguous(), weight.t().contiguous(), bias)
    one = torch.ones((), device="mps")
    actual = gradients(
        lambda x, w, b: ops.linear_act(x.t(), w.t(), b, "gelu"),
        (x, weight, bias),
        one.expand(40, 30),
    )
    for a, e in zip(actual, (expected[0].t(), expected[1].t(), expected[2])):
        torch.testing.assert_close(a.cpu(), e, rtol=1e-4, atol=1e-4)


def test_only_wanted_gradients_are_given():
    x, weight, bias = moved(*operands((4, 6), 5))
    for wanted in range(3):
        leaves = [t.detach().requires_grad_(i == wanted) for i, t in enumerate((x, weight, bias))]
        ops.linear_act(*leaves, "silu").sum().backward()
        assert [t.grad is not None for t in leaves] == [i == wanted for i in range(3)]
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        leaf = x.detach().requires_grad_()
        result = ops.linear_act(leaf, weight, None, "relu")
        result.add_(1)
        result.sum().backward()


@activations
def test_gradients_of_empty_tensors(activation):
    for shape, features in (((0, 4), 3), ((3, 4), 0), ((2, 0), 4)):
        tensors = operands(shape, features, activation=activation)
        actual = gradients(
            lambda *t: ops.linear_act(*t, activation),
            moved(*tensors),
            torch.ones(*shape[:-1], features, device="mps"),
        )
        expected = gradients(
            lambda *t: linear_act(*t, activation), tensors, torch.ones(*shape[:-1], features)
        )
        for a, e in zip(actual, expected):
            torch.testing.assert_close(a.cpu(), e)


@activations
@devices
def test_second_derivatives_and_forward_mode(activation, device):
    tensors = operands((5, 6), 4, activation=activation)
    tangents = [make(t.shape, torch.float32, seed=20 + i) for i, t in enumerate(tensors)]

    def second(function, tensors, weights):
        leaves = [t.detach().requires_grad_() for t in tensors]
        result = function(*leaves, activation)
        first = torch.autograd.grad(result.square().sum(), leaves, create_graph=True)
        total = sum((g * w).sum() for g, w in zip(first, weights))
        return torch.autograd.grad(total, leaves)

    def tangent(function, tensors, tangents):
        return torch.func.jvp(lambda *t: function(*t, activation), tuple(tensors), tuple(tangents))[
            1
        ]

    on_device = [[t.to(device) for t in group] for group in (tensors, tangents)]
    expected = second(linear_act, tensors, tangents)
    actual = second(ops.linear_act, *on_device)
    for a, e in zip(actual, expected):
        torch.testing.assert_close(a.cpu(), e, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(
        tangent(ops.linear_act, *on_device).cpu(),
        tangent(linear_act, tensors, tangents),
        rtol=1e-4,
        atol=1e-5,
    )


# ---- torch.func, torch.compile, torch.export, the CPU ---------------------------------------------


@activations
@devices
def test_vmap_over_any_of_the_operands(activation, device):
    x, weight, bias = (t.to(device) for t in operands((3, 4, 6), 5, activation=activation))
    xs, weights, biases = (torch.stack([t, -t, t / 2]) for t in (x, weight, bias))
    for dims, batch in (
        ((0, None, None), (xs, weight, bias)),
        ((2, None, None), (xs.movedim(0, 2), weight, bias)),
        ((None, 0, None), (x, weights, bias)),
        ((0, 0, 0), (xs, weights, biases)),
        ((None, None, 0), (x, weight, biases)),
    ):
        calls = [
            [t if d is None else t.movedim(d, 0)[i] for t, d in zip(batch, dims)] for i in range(3)
        ]

        def function(*t):
            return ops.linear_act(*t, activation)

        actual = torch.vmap(function, in_dims=dims)(*batch)
        torch.testing.assert_close(actual, torch.stack([function(*t) for t in calls]))

        def gradient(*t):
            return torch.func.grad(lambda *t: function(*t).square().sum(), argnums=(0, 1, 2))(*t)

        actual = torch.vmap(gradient, in_dims=dims)(*batch)
        for a, *e in zip(actual, *(gradient(*t) for t in calls)):
            torch.testing.assert_close(a, torch.stack(e), rtol=1e-4, atol=1e-4)


@devices
@pytest.mark.parametrize("dtype", FLOATS[1:], ids=str)
def test_autocast_lowers_the_precision_as_that_of_linear(device, dtype):
    leaves = [t.to(device).requires_grad_() for t in operands((3, 6), 5)]
    with torch.autocast(device, dtype=dtype):
        result = ops.linear_act(*leaves, "gelu")
    assert result.dtype == dtype
    with torch.no_grad():
        low = [t.to(dtype) for t in leaves]
        assert torch.equal(result, ops.linear_act(*low, "gelu"))
    result.sum().backward()
    assert all(t.grad.dtype == torch.float32 for t in leaves)


@pytest.mark.sampled(2)
@activations
@devices
def test_opcheck(activation, device):
    utilities = (
        "test_schema",
        "test_faketensor",
        "test_aot_dispatch_static",
        "test_aot_dispatch_dynamic",
    )
    x, weight, bias = (t.to(device) for t in operands((2, 3, 8), 6, activation=activation))
    leaves = [t.clone().requires_grad_() for t in (x, weight, bias)]
    packets = torch.ops.metalops
    torch.library.opcheck(packets.linear_act.default, (*leaves, activation), test_utils=utilities)
    if activation in ("gelu", "silu_and_mul"):
        out = torch.empty(2, 3, 6, device=device)
        torch.library.opcheck(
            packets.linear_act.out,
            (x, weight, None, activation),
            {"out": out},
            test_utils=utilities,
        )
        _, saved = packets.linear_act_with_input(x, weight, bias, activation)
        for mask in ([True] * 3, [False, True, False]):
            torch.library.opcheck(
                packets.linear_act_backward.default,
                (out, x, weight, bias, saved, activation, mask),
                test_utils=utilities[:2],
            )


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu_and_mul"])
@devices
def test_compile_in_one_graph_forward_and_backward(activation, device):
    tensors = [t.to(device) for t in operands((6, 10), 8, activation=activation)]

    def function(*t):
        return ops.linear_act(t[0] * 2, *t[1:], activation) + 1

    cotangent = torch.ones(6, 8, device=device)
    expected = gradients(function, tensors, cotangent)
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(*tensors), function(*tensors))
    for a, e in zip(gradients(compiled, tensors, cotangent), expected):
        torch.testing.assert_close(a, e)


def test_compiled_autograd_takes_the_gradient():
    tensors = moved(*operands((6, 10), 8))
    expected = gradients(
        lambda *t: ops.linear_act(*t, "gelu"), tensors, torch.ones(6, 8, device="mps")
    )
    leaves = [t.detach().requires_grad_() for t in tensors]
    torch._dynamo.reset()
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="aot_eager")):
        ops.linear_act(*leaves, "gelu").sum().backward()
    for leaf, e in zip(leaves, expected):
        torch.testing.assert_close(leaf.grad, e)


@pytest.mark.full
@devices
def test_export_keeps_the_operator_as_one_node(device):
    class Module(torch.nn.Module):
        def forward(self, x, weight, bias):
            return ops.linear_act(x, weight, bias, "gelu")

    args = tuple(t.to(device) for t in operands((4, 10), 8))
    program = torch.export.export(
        Module(), args, dynamic_shapes=({0: torch.export.Dim("rows", min=2, max=64)}, None, None)
    ).run_decompositions()
    targets = [node.target for node in program.graph.nodes if node.op == "call_function"]
    assert targets == [torch.ops.metalops.linear_act.default]
    more = (torch.cat([args[0], args[0]]), *args[1:])
    torch.testing.assert_close(program.module()(*more), Module()(*more))


def test_fake_results_have_the_strides_of_real_ones():
    from torch._subclasses.fake_tensor import FakeTensorMode

    for shape, features in (((2, 3, 8), 6), ((5,), 4), ((0, 4), 3)):
        args = moved(*operands(shape, features))
        real = ops.linear_act(*args, "relu")
        with FakeTensorMode() as mode:
            fake = ops.linear_act(*map(mode.from_tensor, args), "relu")
        assert (fake.shape, fake.dtype, fake.device) == (real.shape, real.dtype, real.device)
        assert fake.stride() == real.stride()


@activations
@dtypes
def test_tensors_of_the_cpu(activation, dtype):
    tensors = operands((3, 5, 19), 21, dtype, activation)
    assert_right(ops.linear_act(*tensors, activation), *tensors, activation)
    leaves = [t.clone().requires_grad_() for t in tensors]
    ops.linear_act(*leaves, activation).sum().backward()
    expected = gradients(
        lambda *t: linear_act(*t, activation),
        [t.double() for t in tensors],
        torch.ones(3, 5, 21, dtype=torch.double),
    )
    for leaf, e in zip(leaves, expected):
        tolerance = 8 * torch.finfo(dtype).eps if dtype != torch.float32 else 1e-5
        scale = max(e.abs().max().item(), 1)
        torch.testing.assert_close(leaf.grad.double(), e, rtol=tolerance, atol=tolerance * scale)
