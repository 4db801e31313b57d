"""Operators on tensors that 32-bit indices do not reach: more than 2^31 and 2^32 elements, and elements further apart than
that. Memory is committed where it is touched, so of the operands a few pages are, and one result of 4 GiB:

    python -m pytest --nightly tests/ops/test_large_tensors.py tests/metal/test_large_tensors.py

takes 5 GiB. Operators without one-byte kernels are tried on few elements that lie far apart: how an index is made
does not depend on the dtype.
"""

import metalops
import pytest
import torch
from metalops import testing
from metalops.testing.samples import FLOATS

from .subjects import SUBJECTS

NUMEL = 2**32 + 1024
ROW = NUMEL // 2
# The ends, and both sides of every multiple of 2^31 and of where a launch may be split.
MARKS = sorted(
    {0, 1, NUMEL - 1}
    | {boundary + step for boundary in (2**30, ROW, 2**31, 3 * 2**30, 2**32) for step in (-1, 0, 1)}
)


@pytest.fixture(scope="module")
def out():
    """The result of every test, so that its memory is committed once."""
    yield torch.empty(NUMEL, dtype=torch.uint8, device="mps")
    torch.mps.empty_cache()


@pytest.fixture(autouse=True)
def _give_memory_back():
    yield
    torch.mps.empty_cache()


def _values(seed):
    return testing.make((len(MARKS),), torch.uint8, low=0, high=11, seed=seed)


def _operand(values, step=1):
    """NUMEL elements, `values` at the marks."""
    result = torch.empty(step * NUMEL, dtype=torch.uint8, device="mps")[::step]
    result[torch.tensor(MARKS, device="mps")] = values.to("mps")
    return result


def _at_marks(result):
    return result.view(-1)[torch.tensor(MARKS, device=result.device)].cpu()


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("operator", "reference", "operands"),
    [
        (metalops.ops.relu_squared, lambda a: a * a, 1),
        (metalops.ops.reglu, lambda a, b: a * b, 2),
        (torch.heaviside, lambda a, b: torch.heaviside(a, b), 2),
        (metalops.ops.fma, lambda a, b, c: a * b + c, 3),
    ],
    ids=["unary", "binary", "binary of ATen", "ternary"],
)
def test_dense(out, operator, reference, operands):
    values = [_values(seed) for seed in range(operands)]
    operator(*(_operand(x) for x in values), out=out)
    assert torch.equal(_at_marks(out), reference(*values))


@pytest.mark.nightly
def test_strided(out):
    values = _values(1)
    metalops.ops.relu_squared(_operand(values, step=2), out=out)
    assert torch.equal(_at_marks(out), values * values)


@pytest.mark.nightly
def test_broadcast_scalar(out):
    values = _values(2)
    metalops.ops.reglu(_operand(values), torch.tensor(3, dtype=torch.uint8, device="mps"), out=out)
    assert torch.equal(_at_marks(out), values * 3)


@pytest.mark.nightly
def test_broadcast_row(out):
    values = _values(3)
    row = torch.empty(ROW, dtype=torch.uint8, device="mps")
    columns = torch.tensor([mark % ROW for mark in MARKS])
    row[columns.to("mps")] = columns.to("mps").to(torch.uint8)
    metalops.ops.reglu(_operand(values).view(2, ROW), row, out=out.view(2, ROW))
    assert torch.equal(_at_marks(out), values * columns.to(torch.uint8))


@pytest.mark.nightly
def test_alpha_on_the_halves_of_rows(out):
    rows = 64
    width = NUMEL // rows
    values, others = _values(4), _values(5)
    whole = torch.empty(rows, 2 * width, dtype=torch.uint8, device="mps")
    y = torch.tensor([mark // width for mark in MARKS], device="mps")
    x = torch.tensor([mark % width for mark in MARKS], device="mps")
    whole[y, x] = values.to("mps")
    whole[y, width + x] = others.to("mps")
    metalops.ops.fatrelu_and_mul(whole, threshold=4.5, out=out.view(rows, width))
    assert torch.equal(_at_marks(out), torch.where(values > 4.5, values, 0) * others)


# Distances in elements of two bytes, which pass 2^31 and 2^32 bytes and elements.
FAR = {
    "outer": ((2, 3), (2**30 + 7, 1)),
    "inner": ((2, 3), (1, 2**30 + 7)),
    "beyond 2^32 elements": ((2, 2), (2**32 + 5, 3)),
}


def _far(place, values=None, dtype=torch.float16):
    shape, strides = FAR[place]
    span = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides))
    view = torch.empty(span, dtype=dtype, device="mps").as_strided(shape, strides)
    return view if values is None else view.copy_(values)


def _near(place, subject, seed):
    shape, _ = FAR[place]
    shape = (*shape[:-1], 2 * shape[-1]) if subject.halving else shape
    return testing.make(shape, torch.float16, low=subject.low, high=subject.high, seed=seed)


def _assert_same(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True, check_stride=False)


@pytest.mark.parametrize("place", FAR)
@pytest.mark.parametrize("subject", SUBJECTS, ids=str)
def test_elements_far_apart(subject, place):
    """Each operand in turn, and the result."""
    assert torch.float16 in FLOATS and torch.float16 in subject.dtypes
    values = [_near(place, subject, seed).to("mps") for seed in range(subject.arity)]
    arguments = subject.arguments[-1]
    expected = subject.function(*values, **arguments)
    if not subject.halving:
        for i in range(subject.arity):
            operands = list(values)
            operands[i] = _far(place, values[i])
            _assert_same(subject.function(*operands, **arguments), expected)
    if subject.has_out:
        far = _far(place)
        subject.function(*values, **arguments, out=far)
        _assert_same(far, expected)
    if subject.inplace is not None:
        far = _far(place, values[0])
        subject.inplace(far, *values[1:], **arguments)
        _assert_same(far, expected)


@pytest.mark.parametrize("place", FAR)
def test_results_of_logspace_far_apart(place):
    far = _far(place)
    torch.logspace(0, 1, far.numel(), out=far)
    assert torch.equal(
        far.cpu().flatten(), torch.logspace(0, 1, far.numel(), device="mps", dtype=far.dtype).cpu()
    )


@pytest.mark.parametrize("place", FAR)
def test_both_results_of_frexp_far_apart(place):
    x = testing.make(FAR[place][0], torch.float16)
    mantissa, exponent = _far(place), _far(place, dtype=torch.int32)
    torch.frexp(x.to("mps"), out=(mantissa, exponent))
    assert torch.equal(mantissa.cpu(), torch.frexp(x).mantissa)
    assert torch.equal(exponent.cpu(), torch.frexp(x).exponent)


@pytest.mark.parametrize("place", FAR)
def test_training_of_rrelu_far_apart(place):
    x = _far(place, testing.make(FAR[place][0], torch.float16, low=-5, high=-1))
    noise = _far(place)
    out = _far(place)
    torch._C._nn.rrelu_with_noise(x, noise, 0.25, 0.5, True, out=out)
    torch.testing.assert_close(out, x * noise, check_stride=False)
    assert len(noise.unique()) > 1
