"""torch's whole op_db on the device: results, gradients and errors against the CPU, in MPS's dtypes.

A stand-in is the CPU's kernel on the same memory: its results are the CPU's bit for bit, strides
included. Where a kernel of ours took part, where a library multiplied (LIBRARIES), and where the CPU
refuses the dtype and the device widens it, results agree within tolerances. Where the CPU raises, the
device raises the same.

What a Mac refuses is not listed here but computed: an operator that stock PyTorch lacks on MPS must
raise torch's NotImplementedError, and whatever needs float64 must raise MPS's TypeError. Everything
else that fails is in KNOWN_FAILURES with its reason, and must go on failing.
"""

import functools
import itertools
import re

import pytest
import torch
from metalops import _host, debug
from metalops._torch import stock
from metalops.trace.capture import run_by_default
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

# Some operators have thousands of samples: no more than this are made.
GENERATED = 32
# At most so many of them are run, spread evenly.
SAMPLES = 6
SAMPLES_OF_OTHER_DTYPES = 3
# Of the operators in float32 one in STEP is in the quick run and all are in the full one, which has one in STEP of those in
# other dtypes. The nightly run has all.
STEP = 6

FLOAT64_MESSAGES = (
    "Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64.",
    "Trying to convert ComplexDouble to the MPS backend",
)

# What stock MPS kernels say when they refuse arguments that the CPU takes.
REFUSALS = (
    "grid_sampler_3d: Unsupported Bicubic interpolation",
    "ConvTranspose 3D with BF16 or FP16 types is not supported on MPS",
    "Convolution is supported only for Floating types",
    "Failed to create function state object for: ",
    "MPS device does not support addr for non-float input",
    "MPS device does not support linear for non-float",
    "_upsample_bilineard2d_aa_out_mps only supports floating-point dtypes",
    "index_reduce for MPS does not support torch.",
    "value cannot be converted to type double without overflow",
)

# They draw more than once: the device's generator has moved on in another way than the CPU's.
RANDOM = {
    "nn.functional.rrelu": "a kernel of ours, with numbers of its own",
}
ATTENTION = "nn.functional.scaled_dot_product_attention"

# MKL, oneDNN and LAPACK round as processor, number of threads and addresses have it, and torch multiplies elsewhere in
# other ways than on the CPU: vectors by mm for instance, chunks of a batch one by one.
LIBRARIES = re.compile(
    r"aten::(_?(add)?(b|baddb)?mm|_?addmm_activation|_int_mm|addmv|mv|v?dot|linear|cholesky\w*|lu_\w+|linalg_\w+|ormqr"
    r"|triangular_solve|\w*conv(olution)?\w*|mkldnn\w*|_fft_\w+|_cdist_\w+)(\.\w+)?"
)

# What an operator of ours says instead of what the CPU says.
OTHER_ERRORS = {
    "narrow_copy": (
        # the CPU: "Expected dim < static_cast<int64_t>(self_sizes.size()) to be true"
        "Dimension out of range (expected to be in range of [-3, 2], but got 3)",
        # the CPU: "start (0) + length (-1) exceeds dimension size (10)."
        "narrow(): length must be non-negative.",
    ),
}

# Their values are whatever was in memory.
UNINITIALISED = {
    "empty",
    "empty_like",
    "empty_permuted",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
    "resize_",
    "resize_as_",
}

# name -> reason. Strict: a test of these that passes is an error.
KNOWN_FAILURES = {
    "tensor_split": "torch wants the indices on the CPU, and the samples are moved as a whole",
    "sparse.mm.reduce": "sparse compressed tensors cannot be moved to the device",
    "sparse.sampled_addmm": "sparse compressed tensors cannot be moved to the device",
}

# What torch's CPU loses all digits of in half precision; ours is compared with float32.
WRONG_IN_HALF_PRECISION = ("matrix_exp",)

# For these only the results differ.
KNOWN_RESULT_FAILURES = {
    "to": "the samples name the CPU as the device to go to",
}

DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int64": torch.int64,
    "uint8": torch.uint8,
    "bool": torch.bool,
    "complex64": torch.complex64,
}
# An integer as wide as a floating-point number of so many bytes.
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
HALVES = (torch.float16, torch.bfloat16)


def name_of(op) -> str:
    return op.name + (f".{op.variant_test_name}" if op.variant_test_name else "")


def cases(dtypes, supported) -> list:
    found = []
    for index, op in enumerate(op_db):
        for place, (name, dtype) in enumerate(dtypes.items()):
            if dtype not in supported(op):
                continue
            in_full_tier = dtype == torch.float32 and (index + place) % STEP == 0
            marks = () if in_full_tier else (pytest.mark.nightly,)
            found.append(pytest.param(op, dtype, id=f"{name_of(op)}-{name}", marks=marks))
    return found


def move(tree, device, keep_gradient=False):
    """A copy on the device in which tensors share memory, and lie in it, as they do in `tree`."""
    storages = {}

    def one(tensor):
        if tensor.layout != torch.strided or tensor._is_zerotensor():
            return tensor.detach().to(device)
        storage = tensor.untyped_storage()
        if storage._cdata not in storages:
            whole = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
            storages[storage._cdata] = whole.to(device, copy=True).untyped_storage()
        moved = torch.empty(0, dtype=tensor.dtype, device=device).set_(
            storages[storage._cdata], tensor.storage_offset(), tensor.shape, tensor.stride()
        )
        moved = moved.conj() if tensor.is_conj() else moved
        moved = torch._neg_view(moved) if tensor.is_neg() else moved
        return moved.requires_grad_(tensor.requires_grad) if keep_gradient else moved

    return pytree.tree_map_only(torch.Tensor, one, tree)


def arguments(sample, device, keep_gradient=False):
    tree = move((sample.input, tuple(sample.args), dict(sample.kwargs)), device, keep_gradient)
    if "device" in tree[2]:
        tree[2]["device"] = device
    return tree


def call(op, tree):
    torch.manual_seed(7)
    result = op(tree[0], *tree[1], **tree[2])
    # torch leaves open which place of the most frequent value the index is, and the phases of vectors.
    if op.name in ("linalg.eig", "linalg.eigh"):
        return result[0], result[1].abs()
    if op.name in ("linalg.svd", "svd", "svd_lowrank", "pca_lowrank"):
        return result[0].abs(), result[1], result[2].abs()
    return result.values if op.name == "mode" else result


def call_on_mps(op, sample):
    tree = arguments(sample, "mps")
    if tensors(tree) or "device" in tree[2]:
        return call(op, tree)
    with torch.device("mps"):  # an operator that makes tensors from numbers
        return call(op, tree)


def outcome(function):
    """The result, or the exception."""
    try:
        return function()
    except Exception as error:
        return error


def tensors(tree):
    """All in the tree; of a sparse one its indices and values."""
    found = [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
    parts = [(x._indices(), x._values()) if x.is_sparse else (x,) for x in found]
    return list(itertools.chain(*parts))


def lacked_by_stock(error: Exception) -> bool:
    """Whether the error is torch's, and names an operator that stock MPS lacks."""
    if not isinstance(error, (NotImplementedError, RuntimeError)):
        return False
    match = re.search(
        r"The operator '(aten::[\w.]+)' is not currently implemented for the MPS device", str(error)
    )
    return match is not None and match.group(1) not in stock.stock_overloads()


def wants_float64(tree) -> bool:
    wide = (torch.float64, torch.complex128)
    return any(
        leaf in wide or isinstance(leaf, torch.Tensor) and leaf.dtype in wide
        for leaf in pytree.tree_leaves(tree)
    )


def bits(tensor):
    """What two tensors must share to be equal: NaNs of every kind are one, zeros have signs."""
    tensor = tensor.resolve_conj().resolve_neg()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    if not tensor.is_floating_point():
        return tensor
    return torch.where(tensor.isnan(), torch.nan, tensor).contiguous().view(BITS[tensor.itemsize])


def assert_same_bits(actual, expected) -> None:
    assert_same_kind(actual, expected)
    for a, b in zip(tensors(move(actual, "cpu")), tensors(expected), strict=True):
        if not torch.equal(bits(a), bits(b.detach())):
            raise AssertionError(f"not bit for bit the same: {a} and {b}")
    others = [
        [leaf for leaf in pytree.tree_leaves(tree) if not isinstance(leaf, torch.Tensor)]
        for tree in (actual, expected)
    ]
    assert repr(others[0]).replace("mps:0", "cpu") == repr(others[1])


def assert_agrees(actual, expected, **tolerances) -> None:
    torch.testing.assert_close(
        move(actual, "cpu"), expected, equal_nan=True, check_stride=False, **tolerances
    )


def assert_same_kind(actual, expected) -> None:
    """Shapes, dtypes and strides are the same."""

    def kind(tensor):
        strides = [
            stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1
        ]
        return tensor.shape, tensor.dtype, strides if tensor.numel() else None

    assert [kind(t) for t in tensors(actual)] == [kind(t) for t in tensors(expected)]


def normalised(error: Exception) -> str:
    """An error's text with every device's name read as the CPU's."""
    text = re.sub(r"\bmps(:0)?\b", "cpu", str(error))
    text = re.sub(r'_mps(?=" not implemented for)', "_cpu", text)
    return re.sub(r"\bMPS(?=\w*Type\b)", "CPU", text)


def refused_dtype(error: Exception) -> bool:
    return "not implemented for '" in str(error)


def assert_same_error(actual, expected) -> None:
    assert isinstance(actual, Exception), f"the CPU raises {expected!r}"
    assert (type(actual), normalised(actual)) == (type(expected), normalised(expected))


def refused_by_a_mac(error, expected, sample) -> bool:
    """Whether the device refuses what a Mac refuses, for a reason that the CPU does not have."""
    if not isinstance(error, Exception):
        return False
    if str(error).startswith(FLOAT64_MESSAGES):
        assert wants_float64((expected, arguments(sample, "cpu")))
        return True
    return lacked_by_stock(error) or str(error).startswith(REFUSALS)


def tolerances(op, dtype) -> dict[str, float]:
    if dtype in HALVES:
        return {"rtol": 2e-2, "atol": 2e-2}
    return {"rtol": 1e-4, "atol": 1e-5}


# What a refused dtype is computed in.
WIDER = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.complex32: torch.complex64,
}


def widened_reference(op, sample, dtype):
    """What the operator gives in float32, for a dtype that the CPU refuses."""
    wide = pytree.tree_map_only(
        torch.Tensor, lambda t: t.float() if t.dtype == dtype else t, arguments(sample, "cpu")
    )
    result = call(op, wide)

    def narrow(tensor):
        if tensor.dtype == torch.complex64 and dtype == torch.float16:
            return tensor.to(torch.complex32)
        return tensor.to(dtype) if tensor.dtype == torch.float32 else tensor

    return pytree.tree_map_only(torch.Tensor, narrow, result)


def kernels_and_standins(function) -> tuple[list[str], list[str]]:
    """The kernels that a call launches, all of which are ours, and the stand-ins that serve it."""
    kernels = []

    def hook(launch):
        kernels.append(launch.name)
        run_by_default(launch)

    before = _host.set_launch_hook(hook)
    try:
        with debug.standins() as served:
            outcome(function)
    finally:
        _host.set_launch_hook(before)
    return kernels, list(served)


def ours_takes_part(function) -> bool:
    """Whether the call launches kernels of ours."""
    return bool(kernels_and_standins(function)[0])


def may_round_otherwise(function) -> bool:
    """Whether the call launches kernels of ours, or a library multiplies."""
    kernels, served = kernels_and_standins(function)
    return bool(kernels) or any(map(LIBRARIES.fullmatch, served))


def check_forward(op, dtype, sample) -> str:
    """How the results agree: "bits", "close" or, where there is nothing to compare, ""."""
    expected = outcome(lambda: call(op, arguments(sample, "cpu")))
    actual = outcome(lambda: call_on_mps(op, sample))
    if refused_by_a_mac(actual, expected, sample):
        return ""
    if isinstance(expected, Exception):
        if isinstance(actual, Exception) or not refused_dtype(expected):
            assert_same_error(actual, expected)
        elif dtype in HALVES:
            assert_agrees(actual, widened_reference(op, sample, dtype), **tolerances(op, dtype))
        return ""
    if isinstance(actual, Exception):
        raise actual
    assert all(tensor.device.type == "mps" for tensor in tensors(actual))
    if op.name in WRONG_IN_HALF_PRECISION and dtype in HALVES:
        assert_agrees(actual, widened_reference(op, sample, dtype), **tolerances(op, dtype))
        return ""
    if op.name in UNINITIALISED or op.name in RANDOM:
        assert_same_kind(actual, expected)
        return ""
    if has_dropout_of_ours(op, sample):
        assert actual.shape == expected.shape and actual.dtype == expected.dtype
        return ""
    again = functools.partial(call_on_mps, op, sample)
    return compare(actual, expected, again, **tolerances(op, dtype))


def has_dropout_of_ours(op, sample) -> bool:
    """Attention's numbers are its kernel's own, and its result is in the query's order of dimensions."""
    return op.name == ATTENTION and sample.kwargs.get("dropout_p", 0) > 0


def compare(actual, expected, again, **tolerances) -> str:
    try:
        assert_same_bits(actual, expected)
        return "bits"
    except AssertionError:
        assert_agrees(actual, expected, **tolerances)
        return "" if may_round_otherwise(again) else "close"


def gradients(op, sample, device):
    tree = arguments(sample, device, keep_gradient=True)
    leaves = [tensor for tensor in tensors(tree) if tensor.requires_grad]
    result = call(op, tree)
    if sample.output_process_fn_grad is not None:
        result = sample.output_process_fn_grad(result)
    outputs = [tensor for tensor in tensors(result) if tensor.requires_grad]
    if not outputs or not leaves:
        return None
    torch.manual_seed(9)
    cotangents = [torch.randn(output.shape, dtype=output.dtype).to(device) for output in outputs]
    return torch.autograd.grad(outputs, leaves, cotangents, allow_unused=True)


def check_gradient(op, dtype, sample) -> str:
    expected = outcome(lambda: gradients(op, sample, "cpu"))
    actual = outcome(lambda: gradients(op, sample, "mps"))
    forward = outcome(lambda: call(op, arguments(sample, "cpu")))
    if refused_by_a_mac(actual, forward, sample):
        return ""
    if isinstance(expected, Exception):
        assert_same_error(actual, expected)
        return ""
    if isinstance(actual, Exception):
        raise actual
    if op.name in RANDOM:
        assert_same_kind(actual, expected)
        return ""
    if has_dropout_of_ours(op, sample):
        return ""
    again = functools.partial(gradients, op, sample, "mps")
    return compare(actual, expected, again, rtol=1e-4, atol=1e-4)


def samples(op, dtype, requires_grad):
    try:
        every = op.sample_inputs("cpu", dtype, requires_grad=requires_grad, set_seed=True)
        first = list(itertools.islice(every, GENERATED))
    except NotImplementedError as error:
        pytest.skip(f"torch cannot make samples on the CPU: {error}")
    most = SAMPLES if dtype == torch.float32 else SAMPLES_OF_OTHER_DTYPES
    return first[:: max(1, -(-len(first) // most))]


def run(check, op, dtype, requires_grad, known):
    name = name_of(op)
    found = set()
    try:
        for sample in samples(op, dtype, requires_grad):
            found.add(check(op, dtype, sample))
    except Exception:
        if name in known:
            return
        raise
    if name in known:
        pytest.fail(f"{name} works; take it out of the list of known failures ({known[name]})")
    if "close" in found:
        pytest.fail(f"{name} is served by the CPU's kernels and its results differ from theirs")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("op", "dtype"), cases(DTYPES, lambda op: op.supported_dtypes("mps")))
def test_result_agrees_with_the_cpu(op, dtype):
    run(check_forward, op, dtype, False, KNOWN_FAILURES | KNOWN_RESULT_FAILURES)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("op", "dtype"),
    cases(
        {"float32": torch.float32},
        lambda op: op.supported_backward_dtypes("mps") if op.supports_autograd else (),
    ),
)
def test_gradient_agrees_with_the_cpu(op, dtype):
    run(check_gradient, op, dtype, True, KNOWN_FAILURES)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "op", [pytest.param(op, id=name_of(op)) for op in op_db if op.error_inputs_func is not None]
)
def test_errors_are_those_of_the_cpu(op):
    others = 0
    for wrong in op.error_inputs("cpu"):
        sample = wrong.sample_input
        with torch.backends.mkldnn.flags(
            enabled=False
        ):  # oneDNN, where it serves, has messages of its own
            expected = outcome(lambda sample=sample: call(op, arguments(sample, "cpu")))
            actual = outcome(lambda sample=sample: call_on_mps(op, sample))
        if not isinstance(expected, Exception) or refused_by_a_mac(actual, expected, sample):
            continue
        if name_of(op) in OTHER_ERRORS and normalised(actual) in OTHER_ERRORS[name_of(op)]:
            others += 1
            continue
        assert_same_error(actual, expected)
    assert others == len(OTHER_ERRORS.get(name_of(op), ()))


def test_lists_name_operators_that_exist():
    names = {name_of(op) for op in op_db}
    for table in (KNOWN_FAILURES, KNOWN_RESULT_FAILURES, OTHER_ERRORS):
        assert set(table) <= names
    assert UNINITIALISED | set(RANDOM) <= {op.name for op in op_db}
