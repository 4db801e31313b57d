"""Operators of fixes with tensors without elements: launches of no threads, reductions of nothing.

Cases are generated from torch's samples: in each of them, every size of a tensor in turn becomes 0, in all tensors that have a
dimension of that size. What the CPU refuses is refused, and all else has the CPU's result.
"""

import contextlib

import metalops
import pytest
import torch
import torch.utils._pytree as pytree
from metalops import debug, fixes
from metalops.fixes import FIXES
from metalops.testing import to_device
from torch import Tensor
from torch.testing._internal.common_methods_invocations import op_db

# Names of op_db, beside those that are the operators' own, that end in operators of a fix.
COMPOSITE = {
    "adaptive_max_pool": ("nn.functional.adaptive_max_pool1d", "nn.functional.adaptive_max_pool2d"),
    "convolution": tuple(f"nn.functional.conv{t}{n}d" for t in ("", "_transpose") for n in (1, 2, 3)),
    "grid_sample": ("nn.functional.grid_sample",),
    "histogram": ("histogramdd",),
    "indexing": ("__getitem__", "index_select", "take_along_dim"),
    "matmul": ("matmul", "nn.functional.linear", "mv", "inner", "__rmatmul__"),
    "norm": ("nn.functional.rms_norm", "nn.functional.batch_norm", "nn.functional.instance_norm", "nn.functional.layer_norm", "nn.functional.group_norm"),
    "reduction": ("linalg.vector_norm", "norm", "trace", "nansum"),
    "sort": ("argsort", "msort", "quantile", "nanquantile"),
    "unique": ("unique",),
}  # fmt: skip
RANDOM = {"multinomial", "exponential"}
# Gradients of some of these end the process on the CPU: they divide by 0.
WITHOUT_GRADIENTS = {"norm"}
# The CPU refuses all cases of these.
REFUSED = {"_batch_norm_with_update", "kthvalue", "max", "min", "nn.functional.conv3d"}
# The CPU refuses some cases of these in the libraries that serve it, or in its gradients: of filters of size 0, whose sums have
# no terms, and of vectors that are broadcast. On the device they have a result.
SERVED = {"addmv", *COMPOSITE["convolution"]}
# Fixes whose operators have no samples; and the CPU's embedding_bag reads out of bounds where the weight has no rows.
WITHOUT_SAMPLES = {"copy", "embedding_bag"}


def _entries():
    for name in FIXES:
        with metalops.enable_fixes(name):
            (status,) = (fix for fix in fixes.status() if fix.name == name)
        own = {x.split("::")[1].split(".")[0].removesuffix("_") for x in status.operators}
        seen = set()
        for op in op_db:
            if op.name not in seen and (op.name in own or op.name in COMPOSITE.get(name, ())):
                seen.add(op.name)
                dtypes = [t for t in (torch.float32, torch.int64) if t in op.dtypes]
                if dtypes:
                    yield pytest.param(name, op, dtypes[0], id=f"{name}-{op.name}")


ENTRIES = list(_entries())


def test_every_fix_has_entries():
    assert {entry.values[0] for entry in ENTRIES} | WITHOUT_SAMPLES == set(FIXES)


def _without(tree, size):
    """Copies of the tensors, in which dimensions of this size have size 0."""

    def collapse(x):
        for dim, length in enumerate(x.shape):
            if length == size:
                x = x.narrow(dim, 0, 0)
        return x.detach().clone()

    return pytree.tree_map_only(Tensor, collapse, tree)


def _cases(op, dtype, most=40):
    """Some of all cases, from samples of every kind."""
    cases = []
    for sample in op.sample_inputs("cpu", dtype):
        tree = ((sample.input, *sample.args), sample.kwargs)
        sizes = {n for x in pytree.tree_leaves(tree) if isinstance(x, Tensor) for n in x.shape}
        cases.extend((tree, size) for size in sorted(sizes))
    step = max(len(cases) // most, 1)
    for tree, size in cases[step // 2 :: step]:
        yield _without(tree, size)


def _call(fix, op, args, kwargs):
    """The results, and the gradients of the first two tensors."""
    tensors = [x for x in args[:2] if isinstance(x, Tensor) and x.is_floating_point()]
    if op.supports_autograd and fix not in WITHOUT_GRADIENTS:
        tensors = [x.requires_grad_() for x in tensors]
    result = [x for x in pytree.tree_leaves(op.op(*args, **kwargs)) if isinstance(x, Tensor)]
    grads = []
    if op.supports_autograd and result[0].requires_grad:
        grads = torch.autograd.grad(result[0].sum(), tensors, allow_unused=True)
    torch.mps.synchronize()
    return [x.detach() for x in result], grads


def _assert_same(actual, expected, is_random):
    assert (actual is None) == (expected is None)
    if expected is None:
        return
    assert actual.shape == expected.shape and actual.dtype == expected.dtype
    if not is_random:
        torch.testing.assert_close(actual.cpu(), expected, equal_nan=True)


@pytest.mark.sampled(4)
@pytest.mark.full
@pytest.mark.parametrize(("fix", "op", "dtype"), ENTRIES)
def test_no_elements(fix, op, dtype):
    compared = 0
    with metalops.enable_fixes(fix), debug.standins() as served:
        for args, kwargs in _cases(op, dtype):
            moved = to_device((args, kwargs), "mps")
            try:
                expected = _call(fix, op, args, kwargs)
            except (IndexError, RuntimeError, ValueError):
                refused = pytest.raises((IndexError, RuntimeError, ValueError))
                with contextlib.suppress(RuntimeError) if op.name in SERVED else refused:
                    _call(fix, op, *moved)
                continue
            actual = _call(fix, op, *moved)
            compared += 1
            for a, e in zip((*actual[0], *actual[1]), (*expected[0], *expected[1]), strict=True):
                _assert_same(a, e, op.name in RANDOM)
        ours = next(each.operators for each in fixes.status() if each.name == fix)
    assert fix == "norm" or not set(served) & set(ours)
    assert compared or op.name in REFUSED
