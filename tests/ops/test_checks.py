"""The checks of metalops.testing: with complex operands, with operators as torch.ops has them, and that they find mistakes."""

import math

import pytest
import torch
from metalops import testing
from metalops.testing import Case, check_forward, check_gradient, check_inplace, check_out, make

CASES = {
    arity: list(testing.elementwise_cases(arity, torch.complex64, low=-2, high=2))
    for arity in (1, 2)
}
OPERATORS = {"mul": (torch.mul, 2), "sub": (torch.sub, 2), "square": (torch.square, 1)}
TO_REAL = {"abs": (torch.abs, 1), "angle": (torch.angle, 1)}


@pytest.mark.parametrize("name", [*OPERATORS, *TO_REAL])
def test_complex_operands_in_every_layout_with_gradients(name):
    function, arity = {**OPERATORS, **TO_REAL}[name]
    for i, case in enumerate(CASES[arity]):
        check_forward(function, function, case, "mps", name=name)
        if case.precise and i % arity == 0:
            check_gradient(function, function, case, "mps", name=name)


class WrongGradient(torch.autograd.Function):
    """x * y, whose gradient is that of real numbers."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx, gradient):
        x, y = ctx.saved_tensors
        return gradient * y, gradient * x.conj()


def _imaginary_part_off(x):
    return torch.complex(x.real, x.imag * (1 + 1e-4)) if x.is_mps else x


def _blind_to_conjugation(x):
    plain = torch.empty(0, dtype=x.dtype, device=x.device).set_(x.untyped_storage())
    return plain.as_strided(x.size(), x.stride(), x.storage_offset()) * 1


@pytest.mark.parametrize(
    "wrong", [_imaginary_part_off, _blind_to_conjugation, lambda x: x.conj() if x.is_mps else x]
)
def test_wrong_complex_results_are_found(wrong):
    found = 0
    for case in CASES[1]:
        try:
            check_forward(wrong, lambda x: x * 1, case, "mps", name="copy")
        except AssertionError as error:
            assert f"case {case.name!r}: copy:" in str(error)
            found += 1
    assert found >= 2


def test_a_wrong_complex_gradient_is_found():
    case = CASES[2][0]
    check_forward(WrongGradient.apply, torch.mul, case, "mps", name="mul")
    with pytest.raises(AssertionError, match="gradient 0, cotangent contiguous: mul: "):
        check_gradient(WrongGradient.apply, torch.mul, case, "mps", name="mul")


def test_complex_infinities_are_told_from_finite_numbers_and_from_each_other():
    inf, nan = math.inf, math.nan
    values = [
        complex(*pair) for pair in ((inf, 0), (-inf, 0), (0, inf), (inf, nan), (nan, 1), (1, 2))
    ]
    equal = {(x, y) for x in range(3) for y in (3, 4)} | {(3, 4)} | {(x, x) for x in range(6)}
    for dtype in (torch.complex64, torch.complex32):
        for i, a in enumerate(values):
            for j, b in enumerate(values):
                pair = torch.tensor([a], dtype=dtype), torch.tensor([b], dtype=dtype)
                if (min(i, j), max(i, j)) in equal:
                    testing.assert_close(*pair, "same")
                else:
                    with pytest.raises(AssertionError, match="1 of 1 elements are wrong"):
                        testing.assert_close(*pair, "other")


def test_numbers_of_half_precision_are_rounded_once_in_both_parts():
    near = 1 + 2**-11 + 2**-40  # float32 rounds it to a tie, which then goes down
    case = Case("near", (torch.tensor([1 + 1j], dtype=torch.complex32),))
    expected = testing.checks.expected_result(lambda x: (x * near).to(x.dtype), case)
    assert torch.view_as_real(expected).tolist() == [[1 + 2**-10] * 2]


def test_copies_on_the_device_stay_conjugated_and_negated():
    x = make((3, 4), torch.complex64)
    for view in (x.conj(), x.t().conj(), x.conj().imag, x.imag, x.conj()[1:, ::2]):
        there = testing.to_device(view, "mps")
        assert (there.is_conj(), there.is_neg()) == (view.is_conj(), view.is_neg())
        assert torch.equal(there.cpu(), view.resolve_conj().resolve_neg())


def test_a_gradient_of_integers_alone_is_refused():
    case = Case("integers", (make((3,), torch.int64),))
    with pytest.raises(ValueError, match="case 'integers' has no floating-point or complex tensor"):
        check_gradient(torch.abs, torch.abs, case, "mps", name="abs")


# ---- operators as torch.ops has them -------------------------------------------------------------


def _gelu_quick(x):
    return x * torch.sigmoid(1.702 * x)


METALOPS, ATEN = torch.ops.metalops, torch.ops.aten
GELU_QUICK = (METALOPS.gelu_quick, METALOPS.gelu_quick.default, METALOPS.gelu_quick.out)
MUL = (ATEN.mul, ATEN.mul.Tensor, ATEN.mul.out, torch.mul)
AIRY = "special.airy_ai"


@pytest.mark.parametrize(
    ("op", "reference", "name", "operands", "dtypes"),
    [
        *((op, _gelu_quick, "gelu_quick", 1, (torch.float32, torch.bfloat16)) for op in GELU_QUICK),
        *((op, torch.mul, "mul", 2, (torch.float32, torch.complex64)) for op in MUL),
        (ATEN.special_airy_ai.default, torch.special.airy_ai, AIRY, 1, (torch.float32,)),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_operators_as_torch_ops_has_them(op, reference, name, operands, dtypes):
    for dtype in dtypes:
        case = Case("simple", tuple(make((4, 6), dtype, seed=i) for i in range(operands)))
        check_out(op, reference, case, "mps", name=name, differentiable=name != AIRY)
        if not str(op).endswith(".out"):
            check_forward(op, reference, case, "mps", name=name)
        if not str(op).endswith(".out") and name != AIRY:
            check_gradient(op, reference, case, "mps", name=name)


def test_in_place_operators_as_torch_ops_has_them():
    for dtype in (torch.float32, torch.complex64):
        case = Case("simple", (make((4, 6), dtype), make((4, 6), dtype, seed=1)))
        for op in (ATEN.mul_, ATEN.mul_.Tensor, torch.Tensor.mul_):
            check_inplace(op, torch.mul, case, "mps", name="mul")


@pytest.fixture
def faulty():
    """A library of operators on the CPU that do something wrong with out=, by what it is."""
    library = torch.library.Library("metalops_test_checks", "DEF")
    for name in ("silent", "other", "late"):
        library.define(f"{name}(Tensor x) -> Tensor")
        library.define(f"{name}.out(Tensor x, *, Tensor(a!) out) -> Tensor(a!)")
        library.impl(name, lambda x: 2 * x, "CPU")
    library.define("none(Tensor x) -> Tensor")

    def silent(x, *, out):  # resizes without a warning
        return torch.mul(x, 2, out=out.resize_(x.shape))

    def other(x, *, out):  # writes to another place
        return torch.mul(x, 2, out=torch.empty_like(x))

    def late(x, *, out):  # warns where nothing is to be warned of
        torch.mul(x, 2, out=torch.empty(x.shape[0] + 1))
        return torch.mul(x, 2, out=out)

    for function in (silent, other, late):
        library.impl(f"{function.__name__}.out", function, "CPU")
    yield torch.ops.metalops_test_checks
    library._destroy()


def test_mistakes_with_out_are_found_in_every_form(faulty):
    case = Case("simple", (make((4, 6), torch.float32),))
    for name, message in {
        "silent": "no warning about the resized out",
        "other": "out= was not returned",
    }.items():
        packet = getattr(faulty, name)
        for op in (packet, packet.default, packet.out):
            with pytest.raises(AssertionError, match=message):
                check_out(op, lambda x: 2 * x, case, "cpu", name="twice")
    for op in (faulty.late, faulty.late.default, faulty.late.out):
        with pytest.raises(UserWarning, match="was resized"):
            check_out(op, lambda x: 2 * x, case, "cpu", name="twice")
    for op in (faulty.none, faulty.none.default):
        with pytest.raises(
            ValueError, match="metalops_test_checks.none.* has no overload with out="
        ):
            check_out(op, lambda x: 2 * x, case, "cpu", name="twice")
