"""Checks of pointwise operators and of ATen's, against the CPU: at least one call of each kernel file that is not about
GEMM or attention."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import _C
from .._torch.internals import pytree
from ..ops._define.pointwise import declared
from ..testing import Case, Operator, check_forward, check_gradient, make, to_device, tolerance
from ..testing.checks import expected_result
from ..testing.promotion import floating, promoted
from ..testing.samples import FLOATS, _with_step
from .check import Check, Mismatch, dtype_name


def _reporting_inputs(run: Callable[..., None], cases: Iterator[Case]) -> None:
    for case in cases:
        try:
            run(case)
        except Exception as error:
            cause = None if isinstance(error, AssertionError) else error
            raise Mismatch(error, (case.args, case.kwargs)) from cause


# ---- operators of metalops.ops -------------------------------------------------------------------


def _operators() -> Iterator[Operator]:
    """Yields each operator with its declaration as the reference, and 2 for scalars without a default."""
    for about in declared.values():

        @functools.wraps(about.declaration)
        def reference(*args, _about=about, **kwargs):
            tensors = promoted(*args)
            if not _about.integers_stay:
                tensors = [floating(x) for x in tensors]
            dtype = tensors[0].dtype
            # As the operator on the CPU: half precision is computed in float32.
            single = [x.float() if dtype.itemsize == 2 else x for x in tensors]
            return _about.declaration(*single, **kwargs).to(dtype)

        numbers = list(inspect.signature(about.declaration).parameters.values())[about.operands :]
        arguments = {p.name: 2.0 for p in numbers if p.default is p.empty}
        yield Operator(reference, arguments=(arguments,))


def _check_at_limits(op, reference, case: Case, device: str, *, name: str) -> None:
    """Checks infinities, NaN and limits of the range, where a result depends on the precision in which it is computed,
    and with torch's CPU kernels on the number of elements: it must equal the result in float32 or in float64."""
    actual = op(*to_device(case.args, device), **case.kwargs).cpu()
    right = torch.zeros(actual.shape, dtype=torch.bool)
    for precise in (False, True):
        expected = expected_result(reference, replace(case, precise=precise))
        rtol, atol = tolerance(name, expected.dtype)
        right |= torch.isclose(actual, expected, rtol=rtol, atol=atol, equal_nan=True)
    at = (~right).nonzero()
    assert not len(at), (
        f"case {case.name!r}: {name} is wrong at {at[0].tolist()}: {actual[tuple(at[0])]}"
    )


def pointwise() -> Iterator[Check]:
    """Checks every operator in every layout, shape, dtype and promotion."""
    for operator in _operators():
        for dtype in (*FLOATS, torch.int32):

            def run(operator=operator, dtype=dtype):
                def forward(case):
                    check = check_forward if case.precise else _check_at_limits
                    check(operator.function, operator.reference, case, "mps", name=operator.name)

                cases = list(operator.cases(dtype))
                some = cases if dtype == torch.float32 else cases[::4] + cases[-1:]
                _reporting_inputs(forward, iter(some))

            yield Check(f"{operator.name} {dtype_name(dtype)}", run)


# References for operators whose declaration rounds by steps without a derivative.
_DIFFERENTIABLE = {"fma": lambda a, b, c: a * b + c}


def _has_gradient(case: Case) -> bool:
    return case.precise and all(x.is_floating_point() for x in case.args)


def gradients() -> Iterator[Check]:
    """Checks every fourth case in float32, and one in half precision."""
    for operator in _operators():
        for dtype in FLOATS:

            def run(operator=operator, dtype=dtype):
                reference = _DIFFERENTIABLE.get(operator.name, operator.reference)

                def gradient(case):
                    check_gradient(operator.function, reference, case, "mps", name=operator.name)

                cases = [operator.simple_case(dtype)]
                if dtype == torch.float32:
                    cases = [case for case in operator.cases(dtype) if _has_gradient(case)][::4]
                _reporting_inputs(gradient, iter(cases))

            yield Check(f"gradient of {operator.name} {dtype_name(dtype)}", run)


# ---- ATen's --------------------------------------------------------------------------------------


def _of_float64(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns torch's CPU function computed in float64; floating-point results have the dtype of the first argument."""

    @functools.wraps(function)
    def reference(*args):
        dtype = args[0].dtype
        # torch's CPU operators may mishandle strides: _masked_softmax does.
        wide = [(x.double() if x.is_floating_point() else x).contiguous() for x in args]
        results = function(*wide)
        if not dtype.is_floating_point:
            return results
        return pytree.tree_map(lambda x: x.to(dtype) if x.is_floating_point() else x, results)

    return reference


def _calls() -> Iterator[tuple[str, Callable[..., Any], tuple[Tensor, ...], bool]]:
    """Yields (name in the tolerance policy, function, operands, true if it has a gradient); samples are float32."""

    def x(*shape, low=-4.0, high=4.0, seed=0):
        return make(shape, torch.float32, low=low, high=high, seed=seed)

    def index(*shape, high):
        return make(shape, torch.int64, low=0, high=high - 1, seed=7)

    yield "special.airy_ai", torch.special.airy_ai, (x(50, 33, low=-12, high=8),), False
    yield "special.ndtri", torch.special.ndtri, (x(50, 33, low=0.001, high=0.999),), True
    yield "special.log_ndtr", torch.special.log_ndtr, (x(50, 33, low=-4, high=8),), True
    for name, function in (
        ("special.laguerre_polynomial_l", torch.special.laguerre_polynomial_l),
        ("special.legendre_polynomial_p", torch.special.legendre_polynomial_p),
    ):
        yield name, functools.partial(_swapped, function, 5), (x(40, 33, low=-1, high=1),), False
    yield "heaviside", torch.heaviside, (x(30, 33).round(), x(33, seed=1)), False
    yield "frexp", torch.frexp, (x(30, 33),), False
    yield "logit", lambda x: torch.logit_(x * 1), (x(30, 33, low=0.01, high=0.99),), True
    yield "rrelu", F.rrelu, (x(30, 33),), True
    yield "glu_jvp", _glu_jvp, (x(9, 66), x(9, 66, seed=1), x(9, 33, seed=2)), False
    yield "_add_relu", torch.ops.aten._add_relu, (x(9, 33), x(9, 33, seed=1)), False
    yield (
        "fake_quantize",
        lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -8, 7),
        (x(30, 33),),
        True,
    )
    yield "_masked_softmax", _masked_softmax, (x(4, 3, 60, 70),), True
    yield "mode", lambda x: torch.mode(x)[0], (x(20, 50).round(),), False
    yield "hash_tensor", lambda x: torch.hash_tensor(x, 1), (make((9, 70), torch.int32),), False
    yield "take", torch.take, (x(30, 33), index(50, high=990)), True
    yield "put", lambda x, i, y: x.clone().put_(i, y), (x(990), torch.arange(50) * 3, x(50)), False
    yield "embedding_renorm", _renormalised, (x(30, 33), torch.arange(9)), False
    yield "narrow_copy", lambda x: torch.narrow_copy(x, 1, 3, 20), (x(30, 33),), False
    yield "median", _median_of_bool, (x(30, 33),), False
    yield "adaptive_avg_pool3d", lambda x: F.adaptive_avg_pool3d(x, 3), (x(2, 3, 7, 8, 9),), True
    yield "adaptive_max_pool3d", lambda x: F.adaptive_max_pool3d(x, 3), (x(2, 3, 7, 8, 9),), True
    yield "fractional_max_pool2d", _fractional_max_pool, (x(2, 3, 16, 16),), True
    yield "segment_reduce", _segments, (x(40, 9),), True
    yield "pdist", torch.pdist, (x(40, 9),), True
    yield "multi_margin_loss", F.multi_margin_loss, (x(30, 9), index(30, high=9)), True
    yield "multilabel_margin_loss", F.multilabel_margin_loss, (x(30, 9), index(30, 9, high=9)), True
    yield "nn.functional.ctc_loss", _ctc_loss, (x(20, 3, 8).log_softmax(-1),), True
    yield "batch_norm_update_stats", _batch_norm_stats, (x(4, 8, 9, 9),), False
    yield "_upsample_bilinear2d_aa", _antialiased, (x(2, 3, 16, 20),), True
    yield (
        "_compute_linear_combination",
        torch.ops.aten._compute_linear_combination,
        (x(4, 30), x(5, 4)),
        False,
    )
    yield "matrix_exp", torch.linalg.matrix_exp, (x(3, 9, 9) / 4,), True
    yield "qr", lambda x: torch.cat(torch.linalg.qr(x), -2), (x(3, 40, 9),), True
    yield "lu", _inverse, (x(3, 40, 40),), True
    yield "cholesky", _cholesky, (x(3, 40, 40),), True
    yield (
        "lstsq",
        lambda a, b: torch.linalg.lstsq(a, b)[0],
        (x(3, 20, 6), x(3, 20, 2, seed=1)),
        True,
    )
    yield "ldl", _indefinite, (x(3, 9, 9), x(3, 9, 2, seed=1)), False
    yield "compressed_indices", _there_and_back, (index(50, high=20).sort()[0],), False
    yield "sparse_coo", _sparse, (x(20, 30), x(30, 7, seed=1)), False
    yield "_transform_bias_rescale_qkv", _project, (x(2, 9, 96), x(96, seed=1)), False
    yield "_linalg_eigh", _exponential, (x(4, 9, 9) / 8,), True
    yield "_linalg_svd", _singular, (x(4, 9, 9) / 8,), True
    yield "_linalg_svd of 20 rows", _singular, (x(2, 20, 12) / 32,), False
    yield "_linalg_svd of 70 rows", _singular, (x(70, 70) / 32,), False
    yield "_linalg_eigh of 70 rows", _exponential, (x(70, 70) / 32,), False
    yield "linalg_eig", _from_eigenvalues, (x(4, 9, 9) / 8,), False
    yield "linalg_eig of 70 rows", _from_eigenvalues, (x(70, 70) / 32,), False
    yield "jagged", _padded, (x(20, 9), torch.tensor([0, 3, 3, 12, 20])), False
    yield "_fused_adagrad_", _adagrad, (x(30, 33), x(30, 33, seed=1)), False


def _exponential(a):
    """Returns the exponential of a symmetric matrix from its eigenvalues and eigenvectors, whose signs are free."""
    values, vectors = torch.linalg.eigh(a if a.dtype == torch.float64 else a.float())
    return (vectors * values.exp().unsqueeze(-2) @ vectors.mT).to(a.dtype)


def _from_eigenvalues(a):
    """Returns the exponential of a matrix with complex eigenvalues. Its eigenvectors are orthogonal: with others the
    solution could be wrong in more digits than the tolerance allows."""
    wide = a if a.dtype == torch.float64 else a.float()
    values, vectors = torch.linalg.eig(wide - wide.mT)
    return torch.linalg.solve(vectors.mT, (vectors * values.exp().unsqueeze(-2)).mT).mT.real.to(
        a.dtype
    )


def _inverse(x):
    return torch.linalg.inv(x + 20 * torch.eye(40, device=x.device))


def _cholesky(x):
    return torch.linalg.cholesky(x @ x.mT / 40 + torch.eye(40, device=x.device))


def _indefinite(x, b):
    factors = torch.linalg.ldl_factor(x + x.mT + torch.eye(9, device=x.device))
    return torch.linalg.ldl_solve(*factors, b)


def _singular(a):
    """Returns a function of singular values and vectors that does not depend on the free signs."""
    u, values, v = torch.linalg.svd(
        a if a.dtype == torch.float64 else a.float(), full_matrices=False
    )
    return (u * values.sinh().unsqueeze(-2) @ v).to(a.dtype)


def _there_and_back(rows):
    pointers = torch.ops.aten._convert_indices_from_coo_to_csr(rows, 20)
    return torch.ops.aten._convert_indices_from_csr_to_coo(pointers, rows)


def _sparse(a, b):
    """Returns a matrix of diagonals and products of sparse matrices, which torch's CPU sums in the precision of the
    elements."""
    wide = torch.promote_types(a.dtype, torch.float32)
    sparse = a.to(wide).relu().to_sparse()
    places = torch.arange(20, device=a.device) - 9
    diagonals = torch.sparse.spdiags(a, places, (20, 30)).to_dense()
    products = torch.hspmm(sparse, b.to(wide)), torch.smm(sparse, b.to(wide))
    return torch.cat([diagonals, *(x.to_dense().to(a.dtype) for x in products)], 1)


def _swapped(function, n, x):
    return function(x, n)


def _glu_jvp(tangent, x, result):
    return torch.ops.aten.glu_jvp(result, x, tangent, -1)


def _masked_softmax(x):
    mask = (torch.arange(x.shape[-1], device=x.device) % 3 == 0).expand(x.shape).contiguous()
    return torch.ops.aten._masked_softmax(x, mask, x.dim() - 1)


def _median_of_bool(x):
    """torch's CPU operator does not support bool."""
    return torch.median(x > 0) if x.is_mps else torch.median((x > 0).int()).bool()


def _renormalised(weight, rows):
    return torch.embedding_renorm_(weight.clone(), rows, 1.0, 2.0)


def _fractional_max_pool(x):
    places = torch.full((*x.shape[:2], 2), 0.3, dtype=x.dtype, device=x.device)
    return F.fractional_max_pool2d(x, 2, 7, _random_samples=places)


def _segments(x):
    lengths = torch.tensor([0, 3, 17, 20], device=x.device)
    return torch.segment_reduce(x, "mean", lengths=lengths, unsafe=True)


def _ctc_loss(log_probs):
    targets = (torch.arange(15, device=log_probs.device) % 7 + 1).view(3, 5)
    return F.ctc_loss(log_probs, targets, [20] * 3, [5, 4, 3], reduction="sum")


def _batch_norm_stats(x):
    return torch.batch_norm_update_stats(x, None, None, 0.1)


def _antialiased(x):
    return F.interpolate(x, (7, 9), mode="bilinear", antialias=True)


def _project(qkv, bias):
    return torch.ops.aten._transform_bias_rescale_qkv(qkv, bias, 4)


def _padded(values, offsets):
    return torch.ops.aten._jagged_to_padded_dense_forward(values, [offsets], [10], 0.5)


def _adagrad(parameter, gradient):
    parameter, sums = parameter.clone(), torch.ones_like(gradient)
    step = torch.ones((), device=gradient.device)
    options = {"lr": 0.1, "lr_decay": 0.0, "weight_decay": 0.1, "eps": 1e-8, "maximize": False}
    torch.ops.aten._fused_adagrad_([parameter], [gradient], [sums], [step], **options)
    return parameter, sums


def _factories() -> Iterator[Check]:
    """Checks factories, and random numbers, of which only the distribution can be compared."""

    def logspace():
        torch.testing.assert_close(
            torch.logspace(0, 3, 1000, device="mps").cpu(), torch.logspace(0, 3, 1000)
        )

    def kaiser_window():
        actual = torch.kaiser_window(1000, True, 9.0, device="mps").cpu()
        expected = torch.kaiser_window(1000, True, 9.0, dtype=torch.float64)
        torch.testing.assert_close(actual, expected.float())

    def poisson():
        counts = torch.poisson(torch.full((200_000,), 6.0, device="mps")).cpu()
        assert abs(counts.mean() - 6) < 0.05 and abs(counts.var() - 6) < 0.15, (
            f"mean {counts.mean():.3f} and variance {counts.var():.3f} of rate 6"
        )

    def narrow_floats():
        x = make((1000,), torch.float32, low=-400, high=400)
        for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
            codes = x.to("mps").to(dtype).cpu().view(torch.uint8)
            assert torch.equal(codes, x.to(dtype).view(torch.uint8)), dtype

    def philox():
        # The known answer of Philox-4x32-10 for a key and a counter of zeros (Salmon et al., Random123).
        key = torch.zeros(2, dtype=torch.int64).view(torch.uint64).to("mps")
        (derived,) = torch.ops.aten._philox_key_split(key, 1).cpu().view(torch.int32).tolist()
        words = [word % 2**32 for word in derived]
        assert words == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8], words

    runs = [logspace, kaiser_window, poisson, narrow_floats]
    if hasattr(torch.ops.aten, "_philox_key_split"):  # an operator of later versions of torch
        runs.append(philox)
    for run in runs:
        yield Check(run.__name__, run)


def aten_dtypes(operands: tuple[Tensor, ...]) -> tuple[torch.dtype, ...]:
    return FLOATS if operands[0].is_floating_point() else (operands[0].dtype,)


# Operators that take float32 only, by the tolerance policy's name.
_SINGLE = (
    "pdist",
    "nn.functional.ctc_loss",
    "_add_relu",
    "_upsample_bilinear2d_aa",
    "qr",
    "lu",
    "cholesky",
    "ldl",
    "lstsq",
)


# Operators that later versions of torch have Metal kernels for, which round their steps in half precision.
_LATER_TORCHS = {
    "_compute_linear_combination": "aten::_compute_linear_combination",
    "matrix_exp": "aten::linalg_matrix_exp",
}


def compare(
    name: str,
    function: Callable[..., Any],
    operands: tuple[Tensor, ...],
    dtype: torch.dtype,
    has_gradient: bool,
) -> None:
    """Compares a function of contiguous and of strided operands with the CPU, and its gradients. name: in the tolerance policy."""
    args = tuple(x.to(dtype) if x.is_floating_point() else x for x in operands)
    strided = tuple(_with_step(x) if x.dim() == 1 else x.mT.contiguous().mT for x in args)
    cases = (Case("contiguous", args), Case("strided", strided))

    def both(case):
        reference = _of_float64(function)
        check_forward(function, reference, case, "mps", name=name)
        if has_gradient:
            check_gradient(function, reference, case, "mps", name=name)

    _reporting_inputs(both, iter(cases))


def aten() -> Iterator[Check]:
    """Checks contiguous and strided operands, results and gradients."""
    left_to_torch = {name for name, reason in _C.shared_overloads() if not reason}
    for name, function, operands, differentiable in _calls():
        dtypes = aten_dtypes(operands)
        is_single = name in _SINGLE or _LATER_TORCHS.get(name) in left_to_torch
        for dtype in dtypes[:1] if is_single else dtypes:
            run = functools.partial(compare, name, function, operands, dtype, differentiable)
            yield Check(f"{name} {dtype_name(dtype)}", run)
    yield from _factories()
