"""ATen operators that metalops implements, through torch's own OpInfo entries or, where it has none,
ours: forward, gradient, reference inputs, error inputs, in-place variants, meta functions. Samples
are made on the CPU, where the reference runs in float64."""

import pytest
import torch
import torch.utils._pytree as pytree
from metalops import testing
from metalops.testing.samples import FLOATS
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo, SampleInput

from .aten import NARROW, reference, served_by_us
from .families import gather


def _opinfo(entry):
    def samples(info, device, dtype, requires_grad, **kwargs):
        for args, options in entry.calls(dtype):
            first, *others = testing.to_device(args, device)
            options = testing.to_device(options, device)
            yield SampleInput(first, args=tuple(others), kwargs=options)

    return OpInfo(
        entry.name,
        op=entry.op,
        dtypes=set(entry.dtypes),
        sample_inputs_func=samples,
        supports_out=False,
        supports_autograd=False,
        supports_forward_ad=False,
        supports_gradgrad=False,
    )


NAMES = gather("OPINFOS")
OUR_ENTRIES = [_opinfo(entry) for entry in gather("OPINFO_SAMPLES")]
OURS = [op.name for op in OUR_ENTRIES]
OPERATORS = [op for op in op_db if op.name in NAMES] + OUR_ENTRIES
IN_PLACE = [op for op in OPERATORS if op.inplace_variant is not None]
WITHOUT_HALF_PRECISION = (
    "nn.functional.ctc_loss",
    "nn.functional.pdist",
    "cholesky",
    "cholesky_inverse",
    "cholesky_solve",
    "geqrf",
    "logdet",
    "lu",
    "lu_solve",
    "ormqr",
    "qr",
    "svd",
    "triangular_solve",
)
# In torch. The shape of what ctc_loss keeps for the gradient depends on the targets.
WITHOUT_META_FUNCTION = (
    "nn.functional.ctc_loss",
    "_masked_softmax",
    "_transform_bias_rescale_qkv",
    "linalg.lstsq",
)
LARGE_DTYPES = (torch.float64, torch.complex128, torch.uint16, torch.uint32, torch.uint64)
# Reading and writing elements: operands have shapes of their own, and results are exact.
MOVERS = ("take", "put", "narrow_copy", "nn.functional.channel_shuffle")


def _dtypes(op):
    """What the CPU takes and a Mac can hold, and half precision nearly wherever float32 is taken."""
    if op.name == "logit":  # in place an integer cannot become a float
        return FLOATS
    if op.name == "signal.windows.kaiser":  # a Python function that refuses half precision
        return (torch.float32,)
    if (
        op.name == "_upsample_bilinear2d_aa"
    ):  # stock, and refuses the CPU's uint8; its backward is ours
        return FLOATS
    only_wide = op.name in WITHOUT_HALF_PRECISION or op.name.startswith("linalg.")
    floats = () if only_wide else FLOATS
    return sorted({*op.dtypes, *floats} - set(LARGE_DTYPES), key=str)


def _pairs(operators):
    """Every operator with each of its dtypes, in the full tier with float32 and every second one with the others."""
    for number, op in enumerate(operators):
        dtypes = _dtypes(op)
        for dtype in dtypes:
            is_extra = number % 2 and torch.float32 in dtypes and dtype != torch.float32
            marks = [pytest.mark.nightly] if is_extra else []
            yield pytest.param(op, dtype, id=f"{op.formatted_name}-{str(dtype)[6:]}", marks=marks)


by_operator = pytest.mark.parametrize("op", OPERATORS, ids=lambda op: op.formatted_name)
by_operator_and_dtype = pytest.mark.parametrize(("op", "dtype"), list(_pairs(OPERATORS)))


def _call(op):
    """The operator as a function. Of logit only the in-place form is ours."""
    if op.name == "logit":
        return lambda x, *args, **kwargs: torch.logit_(x * 1, *args, **kwargs)
    return SPECIAL_CALLS.get(op.name, op.op)


def _eigh(a, *args, **kwargs):
    """The eigenvalues and what does not depend on the phases of the eigenvectors."""
    values, vectors = torch.linalg.eigh(a, *args, **kwargs)
    return values, vectors * values.to(vectors.dtype).unsqueeze(-2) @ vectors.mH


def _eig(a):
    """Of vectors only the absolute values, which do not depend on their phases; parts of numbers, which have gradients."""
    values, vectors = torch.linalg.eig(a)
    return torch.cat([values.real, values.imag], -1), vectors.mT.abs().mT


def _eigvals(a):
    values = torch.linalg.eigvals(a)
    return torch.cat([values.real, values.imag], -1)


def _without_phases(svd, adjoint):
    """The singular values and what does not depend on the phases of the vectors, nor on those that belong to none."""

    def wrapper(a, *args, **kwargs):
        u, values, v = svd(a, *args, **kwargs)
        k = values.shape[-1]
        u, v_adjoint = u[..., :k], adjoint(v)[..., :k, :]
        return values, u * values.to(u.dtype).unsqueeze(-2) @ v_adjoint

    return wrapper


def _mode(x, dim=-1, keepdim=False):
    """Mode, and the element at its index: torch's CPU operator picks any of the equal ones of a long row."""
    values, indices = torch.mode(x, dim, keepdim)
    if x.dim() > 0 and not keepdim:
        indices = indices.unsqueeze(dim)
    return values, x.gather(dim, indices)


SPECIAL_CALLS = {
    "linalg.svd": _without_phases(torch.linalg.svd, lambda x: x),
    "svd": _without_phases(torch.svd, lambda x: x.mH),
    "mode": _mode,
    "linalg.eig": _eig,
    "linalg.eigh": _eigh,
    "linalg.eigvals": _eigvals,
}


def test_every_operator_has_entries():
    removed = {name for name in ("cholesky", "qr") if not hasattr(torch.ops.aten, name)}
    assert {op.name for op in OPERATORS} == {*NAMES, *OURS} - removed
    assert not {op.name for op in op_db} & set(OURS)


def _on_device(sample):
    """Arguments for the device; factories get their device by name."""
    arguments = testing.to_device((sample.input, sample.args, sample.kwargs), "mps")
    if "device" in sample.kwargs or not _tensors(sample):
        arguments[2]["device"] = "mps"
    return arguments


def _tensors(sample):
    leaves = pytree.tree_leaves((sample.input, sample.args))
    return [x for x in leaves if isinstance(x, torch.Tensor)]


def _samples(op, dtype, kind="sample_inputs"):
    """The OpInfo's, with random numbers for those operators that would make their own."""
    for sample in getattr(op, kind)("cpu", dtype):
        if "fractional_max_pool" in op.name and "_random_samples" not in sample.kwargs:
            x, dimensions = sample.input, int(op.name[-2])
            batch = (1,) if x.dim() == dimensions + 1 else ()
            planes = (*batch, *x.shape[:-dimensions])
            numbers = torch.randint(32, (*planes, dimensions)) / 32 + 1 / 64
            sample.kwargs["_random_samples"] = numbers.to(dtype)
        yield sample


def _is_random(sample):
    return sample.kwargs.get("training", False)


def _in_float32(function, sample):
    """Half precision computed in float32; the results have the dtype of the first tensor. From contiguous copies: torch's
    _fused_adagrad_ for the CPU pairs elements as they lie in memory, whatever the strides."""
    dtype = _tensors(sample)[0].dtype
    computed = torch.float32 if dtype in NARROW else dtype

    def copied(x):
        return x.contiguous().to(computed if x.dtype == dtype else x.dtype)

    args = pytree.tree_map_only(torch.Tensor, copied, (sample.input, *sample.args))
    result = function(*args, **sample.kwargs)
    if dtype not in NARROW:
        return result
    return pytree.tree_map(lambda x: x.to(dtype) if x.is_floating_point() else x, result)


def _compare_all(op, samples, variant=None):
    """Compares what is not random; there must be something."""
    count = 0
    for sample in samples:
        if not _is_random(sample):
            _compare(op, sample, variant)
            count += 1
    assert count, f"{op.name} has no samples that could be compared"


def _compare(op, sample, variant=None):
    first, args, kwargs = _on_device(sample)
    function = _call(op)
    actual = (variant or function)(first, *args, **kwargs)
    if op.name in OURS:
        expected = _in_float32(function, sample)
    elif not _tensors(sample):  # logspace of numbers is computed as it stands
        expected = function(sample.input, *sample.args, **{**sample.kwargs, "device": "cpu"})
    else:
        case = testing.Case("sample", (sample.input, *sample.args), sample.kwargs)
        expected = testing.checks.expected_result(reference(function), case)
    for a, e in zip(pytree.tree_leaves(actual), pytree.tree_leaves(expected), strict=True):
        assert a.device.type == "mps"
        testing.assert_close(a, e, op.name, operands=_tensors(sample))


@by_operator_and_dtype
def test_samples(op, dtype):
    _compare_all(op, _samples(op, dtype))


@pytest.mark.nightly
@by_operator
@pytest.mark.parametrize("dtype", (torch.float32, torch.int32), ids=str)
def test_reference_inputs(op, dtype):
    if op.name == "logspace":
        pytest.skip("its reference inputs are its samples")
    if dtype not in _dtypes(op):
        dtype = min(_dtypes(op), key=lambda dtype: dtype.itemsize)
    _compare_all(
        op,
        (
            sample
            for sample in _samples(op, dtype, "reference_inputs")
            if not _loses_all_digits(op, sample)
        ),
    )


def _loses_all_digits(op, sample):
    """Where not even torch's CPU operator in float64 means anything, or reads what it never wrote."""
    tensors = _tensors(sample)
    if "polynomial" in op.name:
        # Degrees up to 1e20; and the CPU operator's loop over the degrees stops at NaN without a
        # result.
        return any(not (x.float().abs() < 50).all() for x in tensors)
    return op.name == "special.airy_ai" and any((x < -1e4).any() for x in tensors)


def test_operators_with_an_inplace_variant():
    names = {"heaviside", "logit", "nn.functional.rrelu", "put"}
    assert {op.name for op in IN_PLACE} == names


@pytest.mark.parametrize("op", IN_PLACE, ids=lambda op: op.formatted_name)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_inplace_variant(op, dtype):
    def fits(sample):
        shapes = [x.shape for x in _tensors(sample)]
        return op.name in MOVERS or torch.broadcast_shapes(*shapes) == shapes[0]

    _compare_all(
        op,
        filter(fits, op.sample_inputs("cpu", dtype)),
        lambda x, *args, **kwargs: op.inplace_variant(x.clone(), *args, **kwargs),
    )


@pytest.mark.parametrize(
    "op", [op for op in OPERATORS if op.supports_autograd], ids=lambda op: op.formatted_name
)
def test_gradients(op):
    for sample in _samples(op, torch.float32):
        if not _is_random(sample):
            # The first one of lu is a permutation, without a gradient.
            one = _one_output(_call(op), number=1 if op.name == "linalg.lu" else 0)
            function = _with_options(one, sample.kwargs)
            case = testing.Case("sample", (sample.input, *sample.args))
            testing.check_gradient(function, function, case, "mps", name=op.name)


def _with_options(function, options):
    """The function of its operands alone. Tensors among the options, weights or lengths, have no derivative."""

    def like(x, option):
        return option.to(x.device, x.dtype if option.is_floating_point() else option.dtype)

    def wrapper(x, *args):
        like_x = pytree.tree_map_only(torch.Tensor, lambda option: like(x, option), options)
        return function(x, *args, **like_x)

    return wrapper


def _one_output(function, number=0):
    def wrapper(*args, **kwargs):
        result = function(*args, **kwargs)
        return result if isinstance(result, torch.Tensor) else result[number]

    return wrapper


@pytest.mark.parametrize(
    "op", [op for op in OPERATORS if op.error_inputs_func], ids=lambda op: op.formatted_name
)
def test_error_inputs(op):
    count = 0
    for error in op.error_inputs("mps"):
        sample = error.sample_input
        with pytest.raises(error.error_type, match=error.error_regex or None):
            op.op(sample.input, *sample.args, **sample.kwargs)
        count += 1
    assert count


@by_operator
def test_never_served_by_a_stand_in(op):
    def call():
        for sample in list(op.sample_inputs("cpu", torch.float32))[:40]:
            first, args, kwargs = _on_device(sample)
            if op.supports_autograd:
                first.requires_grad_()
            result = _one_output(_call(op))(first, *args, **kwargs)
            if op.supports_autograd and result.requires_grad:
                result.sum().backward()

    assert served_by_us(call) == []


@by_operator
@pytest.mark.sampled(2)
def test_meta_function_agrees(op):
    """torch.compile sees shapes, dtypes and strides of the result before it exists."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    if op.name in WITHOUT_META_FUNCTION:
        pytest.skip("torch's meta function is missing, or cannot know the shapes")
    if op.formatted_name == "logspace_tensor_overload":
        pytest.skip("it reads its ends, which a fake tensor does not have")
    for sample in list(op.sample_inputs("cpu", torch.float32))[:40]:
        first, args, kwargs = _on_device(sample)
        real = pytree.tree_leaves(_call(op)(first, *args, **kwargs))
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            fake_first, fake_args = pytree.tree_map_only(
                torch.Tensor, mode.from_tensor, (first, args)
            )
            fake = pytree.tree_leaves(_call(op)(fake_first, *fake_args, **kwargs))
        for r, f in zip(real, fake, strict=True):
            assert (r.shape, r.dtype, r.device) == (f.shape, f.dtype, f.device)
            assert r.stride() == f.stride()
