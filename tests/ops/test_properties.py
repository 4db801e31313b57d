"""Every operator on random shapes, layouts, dtypes, broadcasts and out= tensors, against torch on the CPU. Operators that
are not elementwise on the samples that torch has of them, in random layouts.

50 examples of each property, always the same; 2,000 new ones on demand, the first that fails made as small as possible
and printed as the call that fails:

    python -m pytest tests/ops/test_properties.py --hypothesis-profile=thorough [-k OPERATOR] [--hypothesis-seed=N]
"""

import functools

import hypothesis.strategies as st
import pytest
import torch
import torch.utils._pytree as pytree
from hypothesis import assume, given, note, settings
from metalops.debug import SanitizerError
from metalops.testing import Case, check_forward, to_device
from metalops.testing.promotion import promoted
from metalops.testing.samples import FLOATS
from torch.testing._internal.opinfo.core import SampleInput

from . import strategies
from .subjects import SUBJECTS
from .test_aten_opinfo import OPERATORS, _compare, _dtypes, _is_random
from .test_aten_opinfo import _samples as _samples_of


def _by_subject(first, has=lambda subject: True):
    """By those that have something, beginning with number `first`: a third of them belong to the full tier, which are not
    the same for all properties."""
    subjects = [subject for subject in SUBJECTS if has(subject)]
    return pytest.mark.parametrize("subject", subjects[first:] + subjects[:first], ids=str)


OVERLAP = "single memory location|unsupported operation"


@st.composite
def calls(draw, subject, dtypes=None):
    """Operands that are promoted and broadcast, in any layout, and keyword arguments."""
    shape = draw(strategies.shapes(even_last=subject.halving))
    shapes = draw(strategies.broadcast_shapes(shape, subject.arity))
    dtype = draw(st.sampled_from(dtypes or subject.dtypes))
    operands = []
    for shape in shapes:
        if subject.mixed and dtypes is None and operands:
            dtype = draw(st.sampled_from(subject.dtypes))
        operands.append(draw(strategies.operands(shape, dtype, subject.low, subject.high)))
    return operands, draw(st.sampled_from(subject.arguments))


def _note(subject, operands, arguments, more=""):
    keywords = "".join(f", {name}={value}" for name, value in arguments.items())
    note(f"{subject.name}({', '.join(map(repr, operands))}{keywords}{more})")


def test_the_profile_is_the_one_that_was_asked_for(pytestconfig):
    """torch's testing modules load one of their own, of ten examples, when they are imported."""
    asked_for = pytestconfig.getoption("--hypothesis-profile") or "quick"
    assert settings.get_current_profile_name() == asked_for


@pytest.mark.sampled(6)
@pytest.mark.full
@_by_subject(0)
@given(data=st.data())
def test_values_and_dtypes(subject, data):
    operands, arguments = data.draw(calls(subject))
    _note(subject, operands, arguments)
    case = Case("random", _representable([x.tensor() for x in operands]), arguments)
    check_forward(subject.function, subject.reference, case, "mps", name=subject.name)


def _representable(tensors):
    """The operands, of which rounding to their common dtype takes nothing."""
    common = promoted(*tensors)[0].dtype
    return tuple(x.to(common).to(x.dtype) if x.is_floating_point() else x for x in tensors)


def _cotangent(data, shape, dtype):
    return data.draw(strategies.operands(shape, dtype, -2, 2))


@pytest.mark.sampled(3)
@_by_subject(1, lambda subject: subject.has_out)
@given(data=st.data())
def test_out_may_lie_anywhere_and_nothing_else_is_written(subject, data):
    operands, arguments = data.draw(calls(subject, FLOATS))
    tensors = to_device([x.tensor() for x in operands], "mps")
    expected = subject.function(*tensors, **arguments)
    out = data.draw(strategies.operands(tuple(expected.shape), expected.dtype, 7, 7, False))
    _note(subject, operands, arguments, f", out={out!r}")
    storage = torch.full((out.extent + 9,), 77, dtype=out.dtype, device="mps")
    view = storage.as_strided(out.shape, out.strides, out.offset)
    assert subject.function(*tensors, **arguments, out=view) is view
    assert torch.equal(view, expected) or _equal_with_nan(view, expected)
    outside = torch.ones(storage.shape, dtype=torch.bool)
    outside.as_strided(out.shape, out.strides, out.offset).fill_(False)
    assert bool((storage.cpu()[outside] == 77).all()), "wrote outside of out"


def _equal_with_nan(a, b):
    torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
    return True


def _halves(subject, tensors):
    """What the kernel reads: the operands, or the two halves of the only one."""
    if not subject.halving:
        return tensors
    middle = tensors[0].shape[-1] // 2
    return [tensors[0][..., :middle], tensors[0][..., middle:]]


_ORACLES = {1: torch.neg, 2: torch.add, 3: torch.addcmul}


def _is_refused(inputs, out):
    """Whether torch's own elementwise operators refuse this out on the CPU, because of memory that is shared."""
    try:
        _ORACLES[len(inputs)](*inputs, out=out)
    except RuntimeError as error:
        assert "unsupported operation" in str(error), error
        return True
    return False


def _addresses(tensor):
    """The numbers of the elements in the storage, in row-major order."""
    numbers = torch.arange(tensor.untyped_storage().nbytes() // tensor.element_size())
    return numbers.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).flatten()


def _is_hazard(inputs, out):
    """Whether writing one element changes what another one is computed from, or two write the same place."""
    written = _addresses(out)
    elements = torch.arange(len(written))
    writer = torch.full((out.untyped_storage().nbytes() // out.element_size(),), -1)
    writer[written] = elements
    if len(written.unique()) < len(written):
        return True
    writers = [writer[_addresses(x)] for x in inputs]
    return any(bool(((w >= 0) & (w != elements)).any()) for w in writers)


@pytest.mark.sampled(3)
@_by_subject(2, lambda subject: subject.has_out)
@given(data=st.data())
def test_out_that_shares_memory_with_an_operand(subject, data):
    """The same, a part of it, or with itself: refused where torch refuses it, else right."""
    shape = data.draw(strategies.shapes(even_last=subject.halving))
    dtype = data.draw(st.sampled_from(FLOATS))
    operands = [
        data.draw(strategies.operands(shape, dtype, subject.low, subject.high))
        for _ in range(subject.arity)
    ]
    arguments = data.draw(st.sampled_from(subject.arguments))
    place = data.draw(st.integers(0, subject.arity - 1))
    shared = operands[place]
    result_shape = (*shape[:-1], shape[-1] // 2) if subject.halving else shape
    if data.draw(st.booleans()):
        where = (result_shape, shared.strides, shared.offset)
    else:
        out = data.draw(strategies.operands(result_shape, dtype, 0, 0))
        where = (result_shape, out.strides, out.offset)
    _note(subject, operands, arguments, f", out=operands[{place}].as_strided{where}")

    tensors = [x.tensor() for x in operands]
    needed = where[2] + strategies.storage_extent(*where[:2])
    storage = torch.cat(
        [tensors[place].as_strided((shared.extent,), (1,), 0), torch.zeros(needed, dtype=dtype)]
    )
    tensors[place] = storage.as_strided(shared.shape, shared.strides, shared.offset)
    on_device = to_device(tensors, "mps")
    expected = subject.function(*(x.clone() for x in on_device), **arguments)
    on_cpu = [x.clone() if i != place else x for i, x in enumerate(tensors)]
    inputs = _halves(subject, on_cpu)
    sharing = inputs if subject.halving else [inputs[place]]
    hazard = _is_hazard(sharing, storage.as_strided(*where))
    # An order that is read from a result may be any number, and the recurrence has as many steps.
    assume(not (hazard and "polynomial" in subject.name))
    out = on_device[place].as_strided(*where)
    if _is_refused(inputs, storage.as_strided(*where)):
        with pytest.raises(RuntimeError, match=OVERLAP):
            subject.function(*on_device, **arguments, out=out)
        return
    try:
        subject.function(*on_device, **arguments, out=out)
    except SanitizerError:
        assert hazard
        return
    except RuntimeError as error:
        # Operators that halve their operand refuse an out that is one of the halves.
        assert subject.halving and "single memory location" in str(error), error
        return
    if not hazard:  # torch cannot see that some strided views share memory, and says nothing then
        torch.testing.assert_close(
            out, expected, rtol=0, atol=0, equal_nan=True, check_stride=False
        )


@pytest.mark.sampled(3)
@_by_subject(0, lambda subject: subject.inplace is not None)
@given(data=st.data())
def test_in_place(subject, data):
    operands, arguments = data.draw(calls(subject, FLOATS))
    first = data.draw(
        strategies.operands(
            tuple(torch.broadcast_shapes(*(x.shape for x in operands))),
            operands[0].dtype,
            subject.low,
            subject.high,
            False,
        )
    )
    operands = [first, *operands[1:]]
    aliased = data.draw(st.booleans())  # the other operands are the changed tensor itself
    _note(subject, operands, arguments, ", all of them the first" if aliased else "")
    tensors = to_device([x.tensor() for x in operands], "mps")
    storage = tensors[0].as_strided((first.extent,), (1,), 0)
    before = storage.clone()
    if aliased:
        tensors = [tensors[0]] * subject.arity
    expected = subject.function(*(x.clone() for x in tensors), **arguments)
    assert subject.inplace(*tensors, **arguments) is tensors[0]
    torch.testing.assert_close(
        tensors[0], expected, rtol=0, atol=0, equal_nan=True, check_stride=False
    )
    outside = torch.ones(first.extent, dtype=torch.bool)
    outside.as_strided(first.shape, first.strides, first.offset).fill_(False)
    assert torch.equal(storage.cpu()[outside], before.cpu()[outside]), "wrote outside"


def _laid_out(data, tensor):
    """A copy in another layout, in a larger storage."""
    layout = data.draw(
        strategies.operands(tuple(tensor.shape), tensor.dtype, 0, 9, overlapping=False)
    )
    return layout.tensor().copy_(tensor).requires_grad_(tensor.requires_grad)


BY_NAME = {op.formatted_name: op for op in OPERATORS}


@functools.cache
def _samples(name, dtype):
    return [s for s in _samples_of(BY_NAME[name], dtype) if not _is_random(s)]


@pytest.mark.nightly
@pytest.mark.parametrize("name", BY_NAME)
@given(data=st.data())
def test_samples_in_other_layouts(name, data):
    dtype = data.draw(st.sampled_from(_dtypes(BY_NAME[name])))
    samples = _samples(name, dtype)
    number = data.draw(st.integers(0, len(samples) - 1))
    sample = samples[number]
    operands = pytree.tree_map_only(
        torch.Tensor, lambda x: _laid_out(data, x), (sample.input, sample.args)
    )
    note(f"sample {number} of {name} for {dtype}: {sample}")
    _compare(BY_NAME[name], SampleInput(operands[0], args=operands[1], kwargs=sample.kwargs))
