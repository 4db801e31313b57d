"""Checks of an operator on a device against a reference on the CPU.

``op`` is the function under test, or an operator of ``torch.ops``: ``torch.ops.ns.name`` or one of its overloads.
``reference`` takes the same arguments, on the CPU, and computes with any precision: it is run in the operands' own
dtypes, which gives the expected dtype, and in float64, which gives the expected values.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from .._torch.internals import OpOverload, OpOverloadPacket, pytree, schema, version
from .samples import Case, make, to_device
from .tolerances import tolerance


def wider(x: Tensor) -> Tensor:
    if x.dtype.is_complex:
        return x.to(torch.complex128)
    return x.double() if x.is_floating_point() else x


def in_float64(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns ``function`` with its floating-point tensor arguments converted to float64 first."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = pytree.tree_map_only(Tensor, wider, (args, kwargs))
        return function(*args, **kwargs)

    return wrapper


def _in_float32(x: Tensor) -> Tensor:
    if x.is_complex():
        return x.to(torch.complex64)
    return x.float() if x.is_floating_point() else x


def _promoted(function: Callable[..., Any], convert: Callable[[Tensor], Tensor], case: Case) -> Any:
    # Integers that the reference would promote to the default dtype are promoted to this precision instead.
    args, kwargs = pytree.tree_map_only(Tensor, convert, (case.args, case.kwargs))
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64 if convert is wider else torch.float32)
    try:
        return function(*args, **kwargs)
    finally:
        torch.set_default_dtype(before)


def rounded_once(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns float64 or complex128 ``values`` rounded to ``dtype``. Tensor.to goes through float32 to half precision
    and rounds twice."""
    if values.is_complex() and dtype == torch.complex32:
        parts = torch.view_as_real(values.resolve_conj())
        return torch.view_as_complex(rounded_once(parts, torch.float16))
    if values.dtype != torch.float64 or dtype not in (torch.float16, torch.bfloat16):
        return values.to(dtype)
    nearest = values.float()
    error = values - nearest.double()
    bits = nearest.view(torch.int32)
    towards_error = torch.where((error > 0) == (nearest > 0), bits + 1, bits - 1)
    inexact = torch.isfinite(nearest) & (nearest != 0) & (error != 0) & ((bits & 1) == 0)
    return torch.where(inexact, towards_error, bits).view(torch.float32).to(dtype)


def expected_result(reference: Callable[..., Any], case: Case) -> Any:
    """Returns the operator's expected result: the reference's dtypes, and its values computed in float64.

    Computed in float32 for cases at the limits of the range (``Case.precise``).
    """
    native = reference(*case.args, **case.kwargs)
    values = _promoted(reference, wider if case.precise else _in_float32, case)
    return pytree.tree_map(
        lambda n, v: rounded_once(v, n.dtype) if n.is_floating_point() or n.is_complex() else n,
        native,
        values,
    )


def _largest(x: Tensor) -> float:
    """Returns the largest finite magnitude."""
    magnitudes = (x.to(torch.complex128) if x.is_complex() else x.double()).detach().abs()
    finite = magnitudes[magnitudes.isfinite()]
    return finite.max().item() if finite.numel() else 0.0


def scale_of(expected: Tensor, operands: Sequence[Tensor]) -> float:
    """Returns the scale of atol: the sample's largest result, or, if terms may have cancelled in it, the largest
    operand. The latter if an operand or the result has few different values, or if all results are smaller than a unit
    in the last place of numbers like the operands."""
    result = _largest(expected)
    terms = max(map(_largest, operands), default=0.0)
    few = any(_has_few_values(x) for x in (expected, *operands))
    cancelled = _is_floating(expected) and result <= torch.finfo(expected.dtype).eps * terms
    return max(result, terms) if few or cancelled else result


def _has_few_values(x: Tensor) -> bool:
    if x.numel() < 16 or 0 not in x.stride():
        return x.numel() < 16
    if x.is_complex():
        x = torch.view_as_real(x.resolve_conj())
        return x.detach().reshape(-1, 2).unique(dim=0).shape[0] < 16
    return x.detach().unique().numel() < 16


def _is_floating(x: Tensor) -> bool:
    return x.is_floating_point() or x.is_complex()


def assert_close(
    actual: Tensor,
    expected: Tensor,
    name: str,
    *,
    operands: Sequence[Tensor] = (),
    gradient: bool = False,
    dtype: torch.dtype | None = None,
    terms: float = 1,
) -> None:
    """Raises AssertionError unless shapes and dtypes are equal and values as close as the tolerance policy asks for.

    name: the operator's. expected: on the CPU. operands: on the CPU, from which both were computed. dtype: in which the
    operator computed, if not the result's; the coarser of the two counts. terms: the number of rounded terms in a sum.

    Complex numbers are compared by the magnitude of their difference. Non-finite ones are equal if both parts are, or
    if one of the two numbers has a NaN part: whether an infinity has one depends on the order of the arithmetic.

    The message has the first mismatch and, if operands and result have a common shape, the operands there. It says
    whether the reference overflowed where the operator did not, which is a fault of the reference and not of the
    operator.
    """
    actual = actual.detach().cpu()
    expected = expected.detach()
    assert actual.dtype == expected.dtype, f"dtype {actual.dtype}, expected {expected.dtype}"
    assert actual.shape == expected.shape, (
        f"shape {tuple(actual.shape)}, expected {tuple(expected.shape)}"
    )
    coarser = expected.dtype
    if dtype is not None and _is_floating(expected):
        coarser = max(dtype, coarser, key=lambda dtype: torch.finfo(dtype).eps)
    rtol, atol = tolerance(name, coarser, gradient, scale_of(expected, operands))
    wrong = ~_is_close(actual, expected, rtol, terms * atol)
    if not wrong.any():
        return
    index = tuple(wrong.nonzero()[0].tolist())
    there = [_element(x, expected.shape, index) for x in operands]
    lines = [
        f"{name}: {int(wrong.sum())} of {wrong.numel()} elements are wrong, the first at {index}: "
        f"{actual[index].item()!r}, expected {expected[index].item()!r} "
        f"(rtol {rtol:.2g}, atol {terms * atol:.2g})"
    ]
    if there and None not in there:
        lines.append(f"of the operands {', '.join(repr(x.item()) for x in there)}")
    if _is_floating(expected) and _overflowed(actual[index], expected[index], there):
        lines.append("The reference overflows there and the operator does not: mend the reference.")
    raise AssertionError("\n".join(lines))


def _is_close(actual: Tensor, expected: Tensor, rtol: float, atol: float) -> Tensor:
    if not actual.is_complex():
        return torch.isclose(actual, expected, rtol=rtol, atol=atol, equal_nan=True)
    # torch compares no complex32.
    a, e = (x if x.dtype == torch.complex128 else x.to(torch.complex64) for x in (actual, expected))
    close = torch.isclose(a, e, rtol=rtol, atol=atol, equal_nan=True)
    # Depending on the order of the arithmetic, an infinity may have a NaN part or be NaN altogether.
    is_either = ~a.isfinite() & ~e.isfinite() & (a.isnan() | e.isnan())
    return close | is_either


def _element(x: Tensor, shape: torch.Size, index: tuple[int, ...]) -> Tensor | None:
    """Returns an element of a tensor broadcast to a shape; None if it cannot be."""
    try:
        return x.detach().expand(shape)[index]
    except RuntimeError:
        return None


def _overflowed(actual: Tensor, expected: Tensor, operands: Iterable[Tensor | None]) -> bool:
    finite = all(x is None or bool(x.isfinite()) for x in operands)
    return finite and bool(actual.isfinite()) and not bool(expected.isfinite())


def _tensors(tree: Any) -> list[Tensor]:
    return [x for x in pytree.tree_leaves(tree) if isinstance(x, Tensor)]


def _naming_the_case(check: Callable[..., None]) -> Callable[..., None]:
    """Adds the name of the case to the message of a check that fails."""

    @functools.wraps(check)
    def wrapper(op, reference, case: Case, *args, **kwargs) -> None:
        try:
            check(op, reference, case, *args, **kwargs)
        except AssertionError as error:
            raise AssertionError(f"case {case.name!r}: {error}") from None

    return wrapper


@_naming_the_case
def check_forward(
    op: Callable[..., Any],
    reference: Callable[..., Any],
    case: Case,
    device: torch.device | str,
    *,
    name: str,
) -> None:
    """Checks device, dtype, shape and values of the result. name: the operator's, for the tolerance policy."""
    args, kwargs = to_device((case.args, case.kwargs), device)
    actual = op(*args, **kwargs)
    expected = expected_result(reference, case)
    for a, e in zip(pytree.tree_leaves(actual), pytree.tree_leaves(expected), strict=True):
        assert a.device.type == torch.device(device).type, f"result on {a.device}"
        assert_close(a, e, name, operands=_tensors((case.args, case.kwargs)))


def _differentiable(tree: Any) -> list[int]:
    leaves = pytree.tree_leaves(tree)
    return [i for i, x in enumerate(leaves) if isinstance(x, Tensor) and _is_floating(x)]


def cotangents(like: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yields gradients for the backward pass: random, random with another layout, and an expanded one."""
    yield "contiguous", make(like.shape, like.dtype, low=-2, high=2, seed=1)
    if like.dim() > 1:
        yield (
            "transposed",
            make(like.shape[::-1], like.dtype, low=-2, high=2, seed=2).permute(
                *range(like.dim() - 1, -1, -1)
            ),
        )
    elif like.dim() == 1:
        yield "step 2", make((2 * len(like),), like.dtype, low=-2, high=2, seed=3)[::2]
    yield "expanded", make((), like.dtype, low=1, high=2, seed=4).expand(like.shape)


def _gradients(function: Callable[..., Tensor], tree: Any, cotangent: Tensor) -> list[Tensor]:
    leaves, spec = pytree.tree_flatten(tree)
    wanted = _differentiable(tree)
    for i in wanted:
        leaves[i] = leaves[i].detach().requires_grad_()
    args, kwargs = pytree.tree_unflatten(leaves, spec)
    result = function(*args, **kwargs)
    # torch's formulas for empty matrices return no gradients, which are zeros.
    return list(
        torch.autograd.grad(result, [leaves[i] for i in wanted], cotangent, materialize_grads=True)
    )


@_naming_the_case
def check_gradient(
    op: Callable[..., Tensor],
    reference: Callable[..., Tensor],
    case: Case,
    device: torch.device | str,
    *,
    name: str,
) -> None:
    """Checks vector-Jacobian products with random cotangents, for all floating-point and complex tensors of the case.

    Raises ValueError if it has none.
    """
    native = reference(*case.args, **case.kwargs)
    inputs = _tensors((case.args, case.kwargs))
    wanted = [x for x in inputs if _is_floating(x)]
    if not wanted:
        raise ValueError(f"case {case.name!r} has no floating-point or complex tensor")
    wide = pytree.tree_map_only(Tensor, wider, (case.args, case.kwargs))
    for layout, cotangent in cotangents(native):
        expected = _gradients(reference, wide, wider(cotangent))
        on_device = to_device((case.args, case.kwargs), device)
        actual = _gradients(op, on_device, to_device(cotangent, device))
        for i, (a, e, x) in enumerate(zip(actual, expected, wanted, strict=True)):
            try:
                # It is computed in the result's dtype; for a broadcast operand it is a sum of rounded terms.
                assert_close(
                    a,
                    e.to(x.dtype),
                    name,
                    operands=inputs,
                    gradient=True,
                    dtype=native.dtype,
                    terms=max(1, native.numel() // max(1, x.numel())),
                )
            except AssertionError as error:
                raise AssertionError(f"gradient {i}, cotangent {layout}: {error}") from None


def _with_border(shape: Iterable[int], dtype: torch.dtype, device: Any) -> tuple[Tensor, Tensor]:
    """Returns a strided view inside a tensor filled with a mark, and that tensor."""
    shape = tuple(shape)
    whole = torch.full([2 * n + 3 for n in shape], 77, dtype=dtype, device=device)
    return whole[tuple(slice(1, 1 + 2 * n, 2) for n in shape)], whole


def _assert_only_view_changed(whole: Tensor, shape: Iterable[int]) -> None:
    outside = torch.ones(whole.shape, dtype=torch.bool)
    outside[tuple(slice(1, 1 + 2 * n, 2) for n in shape)] = False
    assert bool((whole.cpu()[outside] == 77).all()), "wrote outside of the view"


@contextlib.contextmanager
def _raises(message: str) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        assert message in str(error), f"expected {message!r} in: {error}"
    else:
        raise AssertionError(f"no error; expected one with {message!r}")


def _taking_out(op: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Returns the function op(*args, **kwargs, out=out), also for an overload that has another one for ``out=`` and for
    operators of torch.ops, which leave their warnings to stderr. Raises ValueError if there is no such overload."""
    if isinstance(op, OpOverloadPacket):
        overloads = [getattr(op, name) for name in op.overloads()]
        if not any(_out_name(one) for one in overloads):
            raise ValueError(f"{op} has no overload with out=")
    if isinstance(op, OpOverload) and not _out_name(op):
        packet, wanted = op.overloadpacket, _inputs_of(op)
        overloads = [getattr(packet, name) for name in packet.overloads()]
        found = [one for one in overloads if _out_name(one) and _inputs_of(one) == wanted]
        if not found:
            raise ValueError(f"{op} has no overload with out= beside it")
        op = found[0]
    called = _out_name(op) if isinstance(op, OpOverload) else "out"

    def function(*args: Any, out: Tensor, **kwargs: Any) -> Tensor:
        return _with_warnings(lambda: op(*args, **kwargs, **{called: out}))

    return function


def _out_name(overload: OpOverload) -> str | None:
    """Returns the name of the only argument that a result is written to, or None."""
    names = [x.name for x in schema(overload).arguments if x.is_out]
    return names[0] if len(names) == 1 else None


def _inputs_of(overload: OpOverload) -> list[tuple[str, str]]:
    return [(x.name, str(x.type)) for x in schema(overload).arguments if not x.is_out]


def _with_warnings(function: Callable[[], Any]) -> Any:
    """Returns function(), with C++ warnings as Python warnings. torch has a handler for that around its own functions,
    but not around operators that are called through torch.ops; ``apply_`` is such a function and calls one of Python.
    """
    results = []

    def call(element: float) -> float:
        results.append(function())
        return element

    torch.zeros(()).apply_(call)
    return results[0]


@_naming_the_case
def check_out(
    op: Callable[..., Tensor],
    reference: Callable[..., Tensor],
    case: Case,
    device: torch.device | str,
    *,
    name: str,
    differentiable: bool = True,
) -> None:
    """Checks ``out=``: of the right size, empty, of a wrong size, strided, of other dtypes, overlapping itself or an
    input, on another device, and with gradients.

    op: a function that takes ``out=``, ``torch.ops.ns.name``, its overload that takes it, or the one without, beside
    which there is one that does; raises ValueError if there is none. The case needs a floating-point or complex result
    of at least two dimensions with at least two elements in the last one, and a contiguous first operand.
    differentiable: whether the operator has a derivative, and so rejects operands that require one.
    """
    op = _taking_out(op)
    expected = expected_result(reference, case)
    args, kwargs = to_device((case.args, case.kwargs), device)
    shape, dtype = expected.shape, expected.dtype
    operands = _tensors((case.args, case.kwargs))

    def close(actual: Tensor) -> None:
        assert_close(actual, expected, name, operands=operands)

    def run(out: Tensor) -> Tensor:
        result = op(*args, **kwargs, out=out)
        assert result is out, "out= was not returned"
        assert out.shape == shape, f"out has shape {tuple(out.shape)}"
        return out

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        close(run(torch.empty(shape, dtype=dtype, device=device)))
        close(run(torch.empty(0, dtype=dtype, device=device)))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        close(run(torch.empty(3, 2, 1, dtype=dtype, device=device)))
    assert any("was resized" in str(w.message) for w in caught), "no warning about the resized out"

    view, whole = _with_border(shape, dtype, device)
    close(run(view))
    _assert_only_view_changed(whole, shape)
    transposed = torch.empty(shape[::-1], dtype=dtype, device=device).permute(
        *range(len(shape) - 1, -1, -1)
    )
    close(run(transposed))

    for other in (torch.float32, torch.float16, torch.bfloat16):
        if dtype.is_complex:
            with _raises("can't be cast to the desired output type"):
                run(torch.empty(shape, dtype=other, device=device))
        elif other != dtype:
            out = run(torch.empty(shape, dtype=other, device=device))
            # Both the computed value and its cast are rounded.
            scale = _largest(expected)
            pairs = zip(tolerance(name, dtype, scale=scale), tolerance(name, other, scale=scale))
            rtol, atol = (max(pair) for pair in pairs)
            torch.testing.assert_close(out.cpu(), expected.to(other), rtol=2 * rtol, atol=2 * atol)
    with _raises("can't be cast to the desired output type"):
        run(torch.empty(shape, dtype=torch.int32, device=device))

    with _raises("single memory location"):
        run(torch.empty(1, dtype=dtype, device=device).expand(shape))
    first = args[0]
    storage = torch.empty(2 * first.numel() + 1, dtype=first.dtype, device=device)
    overlapped = storage[: first.numel()].view(first.shape).copy_(first)
    out = storage[1 : 1 + expected.numel()].view(shape)
    if out.dtype == dtype:
        with _raises("single memory location"):
            op(overlapped, *args[1:], **kwargs, out=out)
    with _raises("device"):
        run(torch.empty(shape, dtype=dtype))
    if differentiable and _is_floating(first):
        with _raises("don't support automatic differentiation"):
            op(
                first.detach().requires_grad_(),
                *args[1:],
                **kwargs,
                out=torch.empty_like(expected, device=device),
            )


@_naming_the_case
def check_inplace(
    op: Callable[..., Tensor],
    reference: Callable[..., Tensor],
    case: Case,
    device: torch.device | str,
    *,
    name: str,
) -> None:
    """Checks the in-place form on a tensor of its own and on a strided view, the rest of whose storage must stay.

    The case's first operand must have the shape and dtype of the result.
    """
    expected = expected_result(reference, case)
    args, kwargs = to_device((case.args, case.kwargs), device)
    operands = _tensors((case.args, case.kwargs))
    first = args[0].clone()
    before = version(first)
    assert op(first, *args[1:], **kwargs) is first, "the changed tensor was not returned"
    assert version(first) == before + 1, "the version counter did not advance by one"
    assert_close(first, expected, name, operands=operands)
    view, whole = _with_border(expected.shape, expected.dtype, device)
    view.copy_(args[0])
    op(view, *args[1:], **kwargs)
    assert_close(view, expected, name, operands=operands)
    _assert_only_view_changed(whole, expected.shape)


@contextlib.contextmanager
def no_standins(allowed: Iterable[str] = ()) -> Iterator[None]:
    """Fails if a stand-in served an operator in this block other than those ``allowed`` (overload names).

    On a Mac, which has no stand-ins, it does nothing.
    """
    from metalops import debug

    with debug.standins() as served:
        yield
    unexpected = sorted(set(served) - set(allowed))
    assert not unexpected, f"served by a stand-in: {', '.join(unexpected)}"


@contextlib.contextmanager
def no_host_copies() -> Iterator[None]:
    """Makes every copy from the device to the host raise RuntimeError: ``.item()``, ``.cpu()``, ``bool(x)`` and the
    like.

    Copies inside operators and in autograd's threads count, too. An operator without such copies never synchronises. On
    a Mac, where torch's own copies cannot be observed, it does nothing.
    """
    import metalops

    if not metalops._is_software:
        yield
        return
    from metalops import _host

    before = _host.refuse_host_copies(True)
    try:
        yield
    finally:
        _host.refuse_host_copies(before)
