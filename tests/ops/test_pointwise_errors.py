"""What pointwise operators refuse, in all forms, with the words of torch's own operators; and that they then write nothing."""

import itertools

import metalops
import pytest
import torch

NUMBERS = {0: {}, 1: {"s": 1.0}, 2: {"s": 1.0, "t": 1.0}}
SCALARS = tuple(NUMBERS)


def functor(scalars, operands=2):
    """An operator of some tensors and some numbers that adds up the tensors."""
    inputs = ["x", "y", "z", "w"][:operands]
    text = " + ".join(inputs) + "".join(f" + 0 * {name}" for name in NUMBERS[scalars])
    return metalops.functor(
        f"pointwise_errors::sum_{operands}_{scalars}", text, inputs=inputs, params=NUMBERS[scalars]
    )


# Of self and of another operand. Kernels for one dtype have one of the two cast.
by_dtypes = pytest.mark.parametrize(
    ("dtype", "other_dtype"),
    [
        (torch.float32, torch.float32),
        (torch.float32, torch.float16),
        (torch.float16, torch.float32),
    ],
    ids=str,
)
FUNCTORS = {key: functor(*key) for key in itertools.product(SCALARS, (2, 3, 4))}


def error_of(call):
    try:
        call()
    except Exception as error:  # noqa: BLE001 the type is compared
        return type(error), str(error).splitlines()[0]
    return None


def check_refused(actual, expected, written):
    """actual and expected: calls. written: the device tensor that has to stay what it is."""
    before, shape, strides = written.clone(), written.shape, written.stride()
    wanted = error_of(expected)
    assert wanted is not None
    assert error_of(actual) == wanted
    assert written.shape == shape and written.stride() == strides
    assert torch.equal(written, before)


@pytest.fixture(params=FUNCTORS, ids=lambda key: f"{key[1]} tensors {key[0]} numbers")
def operator(request):
    """(the operator, its in-place form, the number of tensors besides self and other)"""
    scalars, operands = request.param
    function = FUNCTORS[request.param]
    inplace = getattr(torch.ops.pointwise_errors, f"sum_{operands}_{scalars}_")
    return function, inplace, operands - 2


@by_dtypes
def test_in_place_does_not_resize(operator, dtype, other_dtype):
    _, inplace, more = operator
    self = torch.zeros(3, device="mps", dtype=dtype)
    other = torch.ones(2, 3, dtype=other_dtype)
    ones = [torch.ones(3, device="mps", dtype=torch.float16)] * more
    check_refused(
        lambda: inplace(self, other.to("mps"), *ones), lambda: self.cpu().add_(other), self
    )


@by_dtypes
def test_in_place_on_an_expanded_tensor(operator, dtype, other_dtype):
    _, inplace, more = operator
    self = torch.zeros(1, device="mps", dtype=dtype).expand(3)
    other = torch.ones(3, dtype=other_dtype)
    ones = [torch.ones(3, device="mps", dtype=torch.float16)] * more
    check_refused(
        lambda: inplace(self, other.to("mps"), *ones),
        lambda: torch.zeros(1, dtype=dtype).expand(3).add_(other),
        self,
    )


@by_dtypes
def test_in_place_over_a_part_of_an_input(operator, dtype, other_dtype):
    _, inplace, more = operator
    if more == 0 and dtype != other_dtype:
        pytest.skip("the operands that overlap have one dtype")
    whole = torch.arange(4.0, device="mps", dtype=dtype)
    reference = whole.cpu()
    ones = [torch.ones(3, device="mps", dtype=other_dtype)] * more
    check_refused(
        lambda: inplace(whole[1:], whole[:-1], *ones),
        lambda: reference[1:].add_(reference[:-1]),
        whole,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_in_place_to_a_narrower_kind_of_number(operator, dtype):
    _, inplace, more = operator
    self = torch.zeros(3, device="mps", dtype=torch.int32)
    other = torch.ones(3, dtype=dtype)
    ones = [torch.ones(3, device="mps", dtype=torch.int32)] * more
    check_refused(
        lambda: inplace(self, other.to("mps"), *ones),
        lambda: torch.zeros(3, dtype=torch.int32).add_(other),
        self,
    )


@by_dtypes
def test_out_over_a_part_of_an_input(operator, dtype, other_dtype):
    function, _, more = operator
    whole = torch.arange(4.0, device="mps", dtype=dtype)
    reference = whole.cpu()
    other = torch.ones(3, dtype=other_dtype)
    ones = [torch.ones(3, device="mps", dtype=torch.float16)] * more
    check_refused(
        lambda: function(whole[:-1], other.to("mps"), *ones, out=whole[1:]),
        lambda: torch.add(reference[:-1], other, out=reference[1:]),
        whole,
    )


@by_dtypes
def test_shapes_that_do_not_broadcast(operator, dtype, other_dtype):
    function, inplace, more = operator
    self = torch.zeros(3, device="mps", dtype=dtype)
    other = torch.ones(2, dtype=other_dtype)
    ones = [torch.ones(3, device="mps", dtype=torch.float16)] * more
    out = torch.zeros(5, device="mps")
    for actual, expected, written in (
        (lambda: function(self, other.to("mps"), *ones), lambda: torch.zeros(3) + other, self),
        (
            lambda: inplace(self, other.to("mps"), *ones),
            lambda: self.cpu().add_(other),
            self,
        ),
        (
            lambda: function(self, other.to("mps"), *ones, out=out),
            lambda: torch.add(torch.zeros(3), other, out=torch.zeros(5)),
            out,
        ),
    ):
        check_refused(actual, expected, written)


@pytest.mark.full
@by_dtypes
@pytest.mark.sampled(4)
def test_out_is_resized_and_cast_to(operator, dtype, other_dtype):
    function, inplace, more = operator
    self = torch.arange(3.0, device="mps", dtype=dtype)
    other = torch.ones(2, 1, dtype=other_dtype, device="mps")
    ones = [torch.ones(3, device="mps", dtype=torch.float16)] * more
    expected = function(self, other, *ones)
    out = torch.empty(0, device="mps", dtype=torch.float16)
    assert torch.equal(function(self, other, *ones, out=out), expected.half())
    result = self.expand(2, 3).contiguous()
    assert inplace(result, other, *ones) is result
    assert torch.equal(result, expected.to(dtype))


@pytest.mark.parametrize("offset", [0, 1])
def test_out_over_a_part_of_a_halved_input(offset):
    x = torch.arange(8.0, device="mps")
    reference = torch.arange(4.0)
    check_refused(
        lambda: metalops.ops.silu_and_mul(x, out=x[offset : offset + 4]),
        lambda: torch.add(reference[:-1], 1, out=reference[1:]),
        x,
    )
