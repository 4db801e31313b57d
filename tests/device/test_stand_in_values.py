"""What stand-ins compute, against float64: a stand-in is torch's CPU kernel, and need not inherit its faults.

Every operator of torch's op_db that has no kernel of ours is called with torch's samples and, where it is elementwise, with
sizes around those that a vector of a CPU holds. The reference is the same operator on the CPU in float64.
"""

import pytest
import torch
from torch.testing._internal.opinfo.core import BinaryUfuncInfo, UnaryUfuncInfo
from torch.utils import _pytree as pytree

from .test_op_db import (
    UNINITIALISED,
    arguments,
    call,
    call_on_mps,
    cases,
    move,
    name_of,
    ours_takes_part,
    outcome,
    samples,
    tensors,
)

SIZES = (1, 15, 16, 17, 33, 64, 100)
DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "complex64": torch.complex64,
}
# How far a result may be from its number, and from one if that is smaller: sums are added up in the dtype.
TOLERANCE = {
    torch.float32: 2e-4,
    torch.float16: 2e-2,
    torch.bfloat16: 6e-2,
    torch.complex64: 2e-4,
}

SUMS = "the CPU rounds sums to the dtype again and again"
PLACES = "the CPU computes places between pixels in the dtype"
EXPONENTIAL = "the CPU's exponential overflows in the dtype"
STEEP = "it jumps or has poles there"

# name -> (dtypes, reason): what stand-ins inherit.
INHERITED = {
    "_unsafe_masked_index_put_accumulate": ((torch.float16, torch.bfloat16), SUMS),
    "addbmm": ((torch.bfloat16,), SUMS),
    "div.trunc_rounding": ((torch.bfloat16,), STEEP),
    "grid_sampler_2d": ((torch.float16, torch.bfloat16), PLACES),
    "nn.functional.grid_sample": ((torch.bfloat16,), PLACES),
    "nn.functional.soft_margin_loss": ((torch.float16,), EXPONENTIAL),
    "round.decimals_3": ((torch.float32,), STEEP),
}


def wide(tree):
    def one(x):
        if x.is_complex():
            return x.to(torch.complex128)
        return x.double() if x.is_floating_point() else x

    return pytree.tree_map_only(torch.Tensor, one, tree)


def is_random(op) -> bool:
    return op.name in UNINITIALISED or "rand" in op.name or op.name in (
        "bernoulli", "cauchy", "exponential", "geometric", "log_normal", "multinomial", "normal", "uniform",
    )  # fmt: skip


def elementwise_samples(op, dtype, like):
    """One sample's numbers and options with operands of other sizes."""
    low, high = getattr(op, "domain", (None, None))
    low = 0.2 if low is None or low < 0 else low + 0.1
    high = low + 2 if high is None else high - 0.1
    for size in SIZES:
        generator = torch.Generator().manual_seed(size)

        def operand(like, size=size, generator=generator):
            numbers = (
                torch.rand(size, generator=generator, dtype=torch.float64) * (high - low) + low
            )
            return numbers.to(like.dtype)

        sample = type(like)(operand(like.input), args=like.args, kwargs=like.kwargs)
        if isinstance(op, BinaryUfuncInfo) and isinstance(like.args[0], torch.Tensor):
            sample.args = (operand(like.args[0]), *like.args[1:])
        yield sample


def every_sample(op, dtype):
    found = samples(op, dtype, False)
    yield from found
    if isinstance(op, UnaryUfuncInfo | BinaryUfuncInfo) and isinstance(
        found[0].input, torch.Tensor
    ):
        yield from elementwise_samples(op, dtype, found[0])


def distance(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest, in terms of the number it is from, or of one."""
    rounded = expected.to(actual.dtype)
    same = (actual == rounded) | (actual.isnan() & rounded.isnan())
    wanted = expected.to(torch.complex128 if actual.is_complex() else torch.float64)
    apart = (actual.to(wanted.dtype) - wanted).abs() / wanted.abs().clamp(min=1)
    return apart.where(~same, 0).nan_to_num(torch.inf).max().item()


def farthest(op, dtype, sample) -> float:
    expected = outcome(lambda: call(op, wide(arguments(sample, "cpu"))))
    actual = outcome(lambda: call_on_mps(op, sample))
    if isinstance(expected, Exception) or isinstance(actual, Exception):
        return 0  # test_op_db compares errors
    pairs = zip(tensors(move(actual, "cpu")), tensors(expected), strict=True)
    compared = [
        distance(a, b)
        for a, b in pairs
        if a.shape == b.shape and a.numel() and (a.is_floating_point() or a.is_complex())
    ]
    return max(compared, default=0)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("op", "dtype"), cases(DTYPES, lambda op: op.supported_dtypes("mps")))
def test_values_are_those_of_float64(op, dtype):
    if is_random(op):
        pytest.skip("its values are random or whatever was in memory")
    if name_of(op) == "as_strided.partial_views":
        pytest.skip("it reads memory beside its argument, which the copy in float64 does not have")
    worst = 0
    for sample in every_sample(op, dtype):
        apart = farthest(op, dtype, sample)
        if apart > TOLERANCE[dtype] and not ours_takes_part(lambda s=sample: call_on_mps(op, s)):
            worst = max(worst, apart)
    dtypes, reason = INHERITED.get(name_of(op), ((), ""))
    if dtype in dtypes:
        assert worst > TOLERANCE[dtype], f"take it out of the list ({reason})"
    else:
        assert worst <= TOLERANCE[dtype]


def test_exceptions_are_operators_that_are_tried():
    tried = {
        name_of(case.values[0]) for case in cases(DTYPES, lambda op: op.supported_dtypes("mps"))
    }
    assert INHERITED.keys() <= tried
    assert len(tried) > 400
