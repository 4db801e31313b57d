"""Every differentiable operator and interface under transforms of transforms, against torch's operators in float64.

By default a part of the pairs and triples, always the same; with `--nightly` all pairs without torch.compile and more of the rest, and
all pairs and triples with `--hypothesis-profile=thorough`.
"""

import itertools
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path
from zlib import crc32

import metalops
import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from .nested import (
    NO_COMPILED_TANGENTS,
    REFUSALS,
    SUBJECTS,
    TRANSFORMS,
    composed,
    composed_for_reference,
    not_composed,
    traces_tangents,
)

ROOT = Path(__file__).parents[2]
PAIRS = list(itertools.product(TRANSFORMS, repeat=2))
TRIPLES = list(itertools.product(TRANSFORMS, repeat=3))


def one_in(count: int, *names: str) -> bool:
    """A part of the cases, always the same."""
    return crc32(" ".join(names).encode()) % count == 0


# Of every subject.
ALWAYS = {
    ("grad", "grad"),
    ("jacrev", "jacrev"),
    ("jacfwd", "grad"),
    ("create_graph", "grad"),
    ("vjp", "vjp"),
    ("vmap", "grad"),
}


def tier(subject: str, combination: tuple[str, ...]) -> int:
    """0: by default, 1: slow, 2: on demand."""
    is_compiled, is_pair = "compile" in combination, len(combination) == 2
    if combination in ALWAYS:
        return 0
    quick, slow = {
        (False, True): (8, 1),
        (False, False): (200, 50),
        (True, True): (60, 20),
        (True, False): (1000, 250),
    }[is_compiled, is_pair]
    return next((i for i, n in enumerate((quick, slow)) if one_in(n, subject, *combination)), 2)


def cases(most: int):
    for subject in SUBJECTS:
        for combination in PAIRS + TRIPLES:
            if subject in NO_COMPILED_TANGENTS and traces_tangents(combination):
                continue  # test_tangents_of_attention_are_not_compiled
            where = tier(subject, combination)
            if not_composed(combination) is None and where <= most:
                marks = [pytest.mark.nightly] if where > 0 else []
                name = f"{subject}-{'-'.join(combination)}".replace(" ", "_")
                yield pytest.param(subject, combination, id=name, marks=marks)


@pytest.fixture(autouse=True)
def _quiet():
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def pytest_generate_tests(metafunc):
    if metafunc.function is test_nested:
        is_thorough = metafunc.config.getoption("--hypothesis-profile") == "thorough"
        metafunc.parametrize(("name", "combination"), list(cases(most=2 if is_thorough else 1)))


@pytest.mark.sampled(12)
@pytest.mark.full
def test_nested(name, combination):
    subject = SUBJECTS[name]
    x = subject.sample()
    message = subject.refusal(combination)
    if message is not None:
        with pytest.raises((NotImplementedError, *REFUSALS), match=message):
            composed(combination, subject.function)(x.to("mps"))
        return
    expected = composed_for_reference(combination, subject.reference)(x.double())
    actual = composed(combination, subject.function)(x.to("mps"))
    size = max(expected.abs().max().item(), 1e-3)
    torch.testing.assert_close(actual.cpu().double(), expected, rtol=1e-4, atol=2e-5 * size)


@pytest.mark.nightly
def test_tangents_of_attention_are_not_compiled():
    """In a process of its own, since torch leaves its levels behind."""
    program = """
    from tests.ops.nested import SUBJECTS, composed
    subject = SUBJECTS["scaled_dot_product_attention"]
    composed(("compile", "jvp"), subject.function)(subject.sample().to("mps"))
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1 and "_unwrap_for_grad" in done.stderr, done.stderr


def plain(x):
    return torch.sin(x[0] * x[1])


def plain_cases():
    for combination in PAIRS + TRIPLES:
        count = 40 if "compile" in combination else 8 if len(combination) == 3 else 1
        is_slow = not one_in(count, *combination)
        yield pytest.param(
            combination, id="-".join(combination), marks=[pytest.mark.nightly] if is_slow else []
        )


@pytest.mark.sampled(4)
@pytest.mark.full
@pytest.mark.parametrize("combination", list(plain_cases()))
def test_what_torch_composes(combination):
    """That the rules of what it refuses, or gives wrong results for, are neither too narrow nor too wide."""
    if "compile" in combination:
        torch._dynamo.reset()  # functions that were compiled too often before run as they are, and are right
    x = torch.tensor([[0.3, -0.4], [0.5, 0.2]], dtype=torch.float64)
    expected = composed_for_reference(combination, plain)(x)
    try:
        actual = composed(combination, plain)(x)
        is_right = torch.allclose(actual, expected)
    except REFUSALS:
        is_right = False
    assert is_right == (not_composed(combination) is None)


def meta_gradients(layer, x, y):
    """The gradients of the loss after a step on it, as MAML has them."""
    parameters = {name: p.detach() for name, p in layer.named_parameters()}

    def loss(parameters, x, y):
        return (torch.func.functional_call(layer, parameters, (x,)) - y).square().mean()

    def loss_after_step(parameters):
        gradients = torch.func.grad(loss)(parameters, x[0], y[0])
        stepped = {name: p - 0.5 * gradients[name] for name, p in parameters.items()}
        return loss(stepped, x[1], y[1])

    return torch.func.grad(loss_after_step)(parameters)


@pytest.mark.parametrize("is_compiled", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_a_gradient_step_inside_a_loss_through_a_transformer_layer(is_compiled):
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, activation="gelu")
    x, y = torch.randn(2, 2, 2, 3, 8)
    with sdpa_kernel(SDPBackend.MATH):  # the CPU's other kernels have no second derivatives
        expected = meta_gradients(layer.double(), x.double(), y.double())
    function = torch.compile(meta_gradients, backend="aot_eager") if is_compiled else meta_gradients
    actual = function(layer.float().to("mps"), x.to("mps"), y.to("mps"))
    for name, gradient in expected.items():
        size = gradient.abs().max().item()
        torch.testing.assert_close(
            actual[name].cpu().double(), gradient, rtol=1e-3, atol=1e-4 * max(size, 1e-2), msg=name
        )


def test_the_second_derivative_of_one_score():
    q = torch.ones(1, 1, 1, 1, device="mps")
    k = torch.tensor([1.0, 0.0], device="mps").reshape(1, 1, 2, 1)

    def loss(q):
        return nn.functional.scaled_dot_product_attention(q, k, k).square().sum()

    def outer(q):
        return torch.func.grad(loss)(q).sum()

    second = torch.func.grad(outer)(q).item()
    assert second == pytest.approx(-0.05553, abs=1e-5)
    leaf = q.clone().requires_grad_()
    outer(leaf).backward()  # autograd around a transform
    assert leaf.grad.item() == pytest.approx(second, abs=1e-6)
    assert torch.func.hessian(loss)(q).item() == pytest.approx(second, abs=1e-6)


def test_what_has_no_derivative_says_so():
    """Instead of a gradient that is zero."""
    query = torch.randn(1, 1, 2, device="mps", requires_grad=True)
    cache = torch.randn(1, 2, 1, 2, device="mps")
    table, lengths = (torch.tensor(x, dtype=torch.int32, device="mps") for x in ([[0]], [2]))
    out = metalops.ops.paged_attention(query, cache, cache, table, lengths)
    with pytest.raises(NotImplementedError, match="derivative for metalops::paged_attention is"):
        out.sum().backward()


def test_merged_results_without_keys_have_finite_second_derivatives():
    out, lse = torch.randn(2, 3, 2, device="mps"), torch.tensor([[0.5, 1, 2], [0.1, 3, 2]])
    for empty in ([0], [1], [0, 1]):
        given = lse.clone()
        given[empty, 0] = -torch.inf
        a, b = given.to("mps")
        function = torch.func.grad(
            lambda x, a=a, b=b: metalops.ops.merge_attention(x, a, out[1], b)[0].square().sum()
        )
        assert torch.func.grad(lambda x, f=function: f(x).square().sum())(out[0]).isfinite().all()
