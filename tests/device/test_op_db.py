"""torch's whole op_db on the device: results and gradients against the CPU, in MPS's dtypes.

What a Mac refuses is not listed here but computed: an operator that stock PyTorch lacks on MPS must
raise torch's NotImplementedError, and whatever needs float64 must raise MPS's TypeError. Everything
else that fails is in KNOWN_FAILURES with its reason, and must go on failing.
"""

import contextlib
import itertools
import re
import unittest.mock

import pytest
import torch
from metalops import _stock
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

# Some operators have thousands of samples: no more than this are made.
GENERATED = 32
# At most so many of them are run, spread evenly.
SAMPLES = 6
SAMPLES_OF_OTHER_DTYPES = 3
# Every so many-th operator stays in the fast run.
FAST_STEP = 6

FLOAT64_MESSAGES = (
    "Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64.",
    "Trying to convert ComplexDouble to the MPS backend",
)

# What stock MPS kernels say when they refuse arguments that the CPU takes.
REFUSALS = (
    "ConvTranspose 3D with BF16 or FP16 types is not supported on MPS",
    "Convolution is supported only for Floating types",
    "MPS device does not support linear for non-float",
    "cholesky_inverse: MPS only supports float type",
    "index_reduce for MPS does not support torch.long",
    "linalg.cholesky: Input tensor must be float32",
    "linalg.lu_factor(): MPS doesn't ",
    "linalg.solve.triangular(); Not supported for complex yet!",
    "linalg_inv: not supported for complex types yet!",
)

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
    "as_strided.partial_views": "the samples view memory beside the tensor that is moved",
    "sparse.mm.reduce": "sparse compressed tensors cannot be moved to the device",
    "sparse.sampled_addmm": "sparse compressed tensors cannot be moved to the device",
    "to_sparse": "the device has no sparse tensors",
}

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
HALVES = (torch.float16, torch.bfloat16)


def name_of(op) -> str:
    return op.name + (f".{op.variant_test_name}" if op.variant_test_name else "")


def cases(dtypes, supported) -> list:
    found = []
    for index, op in enumerate(op_db):
        for name, dtype in dtypes.items():
            if dtype not in supported(op):
                continue
            fast = index % FAST_STEP == 0 and name == "float32"
            marks = () if fast else (pytest.mark.slow,)
            found.append(pytest.param(op, dtype, id=f"{name_of(op)}-{name}", marks=marks))
    return found


def move(tree, device, keep_gradient=False):
    def one(tensor):
        moved = tensor.detach().to(device)
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
    # torch leaves open which place of the most frequent value the index is.
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
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def lacked_by_stock(error: Exception) -> bool:
    """Whether the error is torch's, and names an operator that stock MPS lacks."""
    if not isinstance(error, (NotImplementedError, RuntimeError)):
        return False
    match = re.search(
        r"The operator '(aten::[\w.]+)' is not currently implemented for the MPS device", str(error)
    )
    return match is not None and match.group(1) not in _stock.stock_overloads()


def wants_float64(tree) -> bool:
    wide = (torch.float64, torch.complex128)
    return any(
        leaf in wide or isinstance(leaf, torch.Tensor) and leaf.dtype in wide
        for leaf in pytree.tree_leaves(tree)
    )


def comparable(tensor):
    return tensor.to(torch.complex64) if tensor.dtype == torch.complex32 else tensor


@contextlib.contextmanager
def other_seeds():
    """Every seed becomes another, also those that an OpInfo sets itself."""
    original = torch.manual_seed
    with unittest.mock.patch.object(torch, "manual_seed", lambda seed: original(seed + 1)):
        yield


def assert_agrees(actual, expected, on_the_cpu, **tolerances) -> None:
    """Values agree, or the CPU too gives others with another seed: then shapes and dtypes agree."""
    try:
        torch.testing.assert_close(
            move(actual, "cpu"), expected, equal_nan=True, check_stride=False, **tolerances
        )
    except AssertionError:
        with other_seeds():
            first, second = tensors(expected), tensors(on_the_cpu())
        if len(first) == len(second) and all(
            a.shape == b.shape and torch.allclose(comparable(a), comparable(b), equal_nan=True)
            for a, b in zip(first, second, strict=True)
        ):
            raise
        assert_same_kind(actual, expected)


def assert_same_kind(actual, expected) -> None:
    assert [(t.shape, t.dtype) for t in tensors(actual)] == [
        (t.shape, t.dtype) for t in tensors(expected)
    ]


def tolerances(op, dtype) -> dict[str, float]:
    if op.name == "nn.functional.scaled_dot_product_attention" and dtype == torch.float32:
        return {
            "rtol": 1e-3,
            "atol": 1e-4,
        }  # the CPU takes its flash kernel, the device the composition
    if dtype in HALVES:
        return {"rtol": 2e-2, "atol": 2e-2}
    return {"rtol": 1e-4, "atol": 1e-5}


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


def check_forward(op, dtype, sample) -> None:
    expected = outcome(lambda: call(op, arguments(sample, "cpu")))
    actual = outcome(lambda: call_on_mps(op, sample))
    if isinstance(actual, Exception):
        if lacked_by_stock(actual):
            return
        if str(actual).startswith(FLOAT64_MESSAGES):
            assert wants_float64((expected, arguments(sample, "cpu")))
            return
        if isinstance(expected, Exception) or str(actual).startswith(REFUSALS):
            return
        raise actual
    assert all(tensor.device.type == "mps" for tensor in tensors(actual))
    if isinstance(expected, Exception):
        if dtype not in HALVES:
            return
        expected = widened_reference(op, sample, dtype)
        assert_agrees(actual, expected, lambda: expected, **tolerances(op, dtype))
    elif op.name in UNINITIALISED:
        assert_same_kind(actual, expected)
    else:
        assert_agrees(
            actual,
            expected,
            lambda: call(op, arguments(sample, "cpu")),
            **tolerances(op, dtype),
        )


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


def check_gradient(op, dtype, sample) -> None:
    expected = outcome(lambda: gradients(op, sample, "cpu"))
    actual = outcome(lambda: gradients(op, sample, "mps"))
    if isinstance(actual, Exception):
        if lacked_by_stock(actual) or isinstance(expected, Exception):
            return
        if str(actual).startswith(REFUSALS):
            return
        if str(actual).startswith(FLOAT64_MESSAGES):
            wide = outcome(lambda: call(op, arguments(sample, "cpu")))
            assert wants_float64((wide, arguments(sample, "cpu")))
            return
        raise actual
    if isinstance(expected, Exception):
        return
    assert_agrees(actual, expected, lambda: gradients(op, sample, "cpu"), rtol=1e-4, atol=1e-4)


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
    try:
        for sample in samples(op, dtype, requires_grad):
            check(op, dtype, sample)
    except Exception:
        if name in known:
            return
        raise
    if name in known:
        pytest.fail(f"{name} works; take it out of the list of known failures ({known[name]})")


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


def test_lists_name_operators_that_exist():
    names = {name_of(op) for op in op_db}
    assert set(KNOWN_FAILURES) | set(KNOWN_RESULT_FAILURES) <= names
    assert UNINITIALISED <= {op.name for op in op_db}
