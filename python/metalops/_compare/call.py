"""One call of an operator on mps tensors, and the examination of its results."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import torch
from torch import Tensor

from .._torch.internals import OpOverload, has_kernel_for_key, pytree, schema
from ..debug import standins
from . import indices, random_numbers, reference
from .arguments import Snapshot, bytes_of, extent, named, snapshot, tensors_of
from .differences import Mismatch
from .judgement import judge

# Operators whose results are uninitialised memory, or that are about memory alone.
_OF_MEMORY = {
    *("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"),
    *("resize_", "resize_as_", "set_", "record_stream", "is_pinned", "is_set_to", "_pin_memory"),
    *("as_strided_", "squeeze_", "unsqueeze_", "t_", "transpose_", "swapaxes_", "swapdims_"),
    *("_unsafe_view", "detach_", "lift", "lift_fresh", "_has_same_storage_numel"),
}
# Arguments that operators write without saying so in their schemas.
_ALSO_WRITTEN = {"running_mean", "running_var"}
_KERNEL_KEYS = ("MPS", "CompositeExplicitAutogradNonFunctional", "CompositeExplicitAutograd")


@dataclasses.dataclass(frozen=True)
class Operator:
    """An overload, and what is known of all its calls. name: "aten::addmm.out". short: "addmm"."""

    overload: OpOverload
    name: str
    short: str
    is_silent: bool  # computes nothing
    is_composite: bool  # of other operators, which the comparison sees
    is_random: bool
    is_pointwise: bool
    has_effects: bool
    written: frozenset[str]

    @property
    def is_comparable(self) -> bool:
        return not self.is_random or random_numbers.has_properties(self.overload)


@functools.cache
def operator_of(overload: OpOverload) -> Operator:
    name = overload.name()
    short = name.partition("::")[2].partition(".")[0]
    written = {
        a.name
        for a in schema(overload).arguments
        if a.name in _ALSO_WRITTEN or (a.alias_info is not None and a.alias_info.is_write)
    }
    return Operator(
        overload,
        name,
        short,
        overload.is_view or short in _OF_MEMORY,
        has_kernel_for_key(name, "CompositeImplicitAutograd")
        and not any(has_kernel_for_key(name, key) for key in _KERNEL_KEYS),
        random_numbers.is_random(overload),
        torch.Tag.pointwise in overload.tags,
        reference.has_effects(overload),
        frozenset(written),
    )


@dataclasses.dataclass(frozen=True)
class Finding:
    """A wrong result: which, how, and in what the reference was computed."""

    result: str
    mismatch: Mismatch
    reference: str


@dataclasses.dataclass(frozen=True)
class Outcome:
    """A call that was made. before: its arguments as they were. state: of the generator, if it is random. finding: None
    if the results are right; error: why they could not be examined, or None."""

    result: Any
    before: Snapshot
    state: Tensor | None
    stand_ins: tuple[str, ...]
    finding: Finding | None = None
    error: reference.NoReferenceError | None = None


def is_on_mps(tree: Any) -> bool:
    """Returns true if arguments have a tensor on mps, or name the device."""
    leaves = pytree.tree_leaves(tree)
    return any(
        x.is_mps if isinstance(x, Tensor) else isinstance(x, torch.device) and x.type == "mps"
        for x in leaves
    )


def make(operator: Operator, args: tuple, kwargs: dict[str, Any], *, gradient: bool) -> Outcome:
    """Calls an operator and examines its results. gradient: whether they are of a backward pass."""
    state = _state((args, kwargs)) if operator.is_random else None
    before = snapshot((args, kwargs))
    with standins() as served:
        result = operator.overload(*args, **kwargs)
    outcome = Outcome(result, before, state, tuple(served))
    try:
        with torch.no_grad():
            finding = _examine(operator, before, args, kwargs, result, gradient)
    except reference.NoReferenceError as error:
        return dataclasses.replace(outcome, error=error)
    return dataclasses.replace(outcome, finding=finding)


def _state(tree: Any) -> Tensor:
    """Returns the state of the generator among the arguments, or of the device's own."""
    given = [x for x in pytree.tree_leaves(tree) if isinstance(x, torch.Generator)]
    return given[0].get_state() if given else torch.mps.get_rng_state()


def _examine(
    operator: Operator,
    before: Snapshot,
    args: tuple,
    kwargs: dict[str, Any],
    result: Any,
    gradient: bool,
) -> Finding | None:
    overload = operator.overload
    actual = _results(operator, args, kwargs, result)
    if operator.is_random:
        given, keywords = before.on_cpu()
        found = random_numbers.check(overload, given, keywords, [x for _, x in actual])
        return None if found is None else Finding("the result", found, "properties of all results")
    computed, native_args, native_kwargs = reference.run(overload, before, wide=False)
    native = _results(operator, native_args, native_kwargs, computed)
    if not all(_is_equal(a, n) for (_, a), (_, n) in zip(actual, native)):
        finding = _judged(operator, before, actual, native, args, kwargs, gradient)
        if finding is not None:
            return finding
    return _outside(operator, args, kwargs, native_args, native_kwargs)


def _is_equal(actual: Any, native: Any) -> bool:
    """Returns true if a result is the CPU's own, NaN included."""
    if native is None:
        return True
    if not isinstance(actual, Tensor) or not isinstance(native, Tensor):
        return type(actual) is type(native) and actual == native
    if actual.dtype != native.dtype or actual.shape != native.shape:
        return False
    return torch.equal(actual, native) or _are_same(actual, native)


def _are_same(x: Tensor, y: Tensor) -> bool:
    """Returns true if all elements are equal, or NaN in both."""
    return bool(((x == y) | ((x != x) & (y != y))).all())


def _judged(
    operator: Operator,
    before: Snapshot,
    actual: list,
    native: list,
    args: tuple,
    kwargs: dict[str, Any],
    gradient: bool,
) -> Finding | None:
    """Returns the first result that is wrong, of (name, value) as computed on mps and on the CPU."""
    wide = _wide_results(operator, before, native)
    operands = tensors_of(before.on_cpu(fresh=False))
    by_name = {a.name: value for a, value in named(schema(operator.overload), args, kwargs)}
    for position, ((where, a), (_, n), (_, w)) in enumerate(zip(actual, native, wide)):
        is_index = indices.is_index(operator.short, position)
        if n is None or (is_index and _is_tie(operator, a, n, operands, by_name)):
            continue
        found = judge(
            a,
            n,
            w,
            name=operator.short,
            gradient=gradient or "backward" in operator.short,
            pointwise=operator.is_pointwise,
            operands=operands,
        )
        if found is not None:
            return Finding(where, found, "its dtype" if w is None else "float64, rounded")
    return None


def _wide_results(operator: Operator, before: Snapshot, native: list) -> list:
    """Returns the results in float64 where the dtype has an error of its own, else None for each."""
    nothing = [(where, None) for where, _ in native]
    is_inexact = any(isinstance(x, Tensor) and _is_inexact(x) for _, x in native)
    if not is_inexact or operator.name.partition(".")[0] in reference.EXACT:
        return nothing
    try:
        computed, args, kwargs = reference.run(operator.overload, before, wide=True)
    except Exception:  # some kernels take some dtypes only, or those of all operands must agree
        return nothing
    wide = _results(operator, args, kwargs, computed)
    return wide if len(wide) == len(native) else nothing


def _is_inexact(x: Tensor) -> bool:
    return (x.is_floating_point() or x.is_complex()) and x.dtype != torch.float64


def _results(operator: Operator, args: tuple, kwargs: dict[str, Any], result: Any) -> list:
    """Returns (name, value on the CPU) of the results, and of the arguments that are written."""
    returned = pytree.tree_leaves(result, is_leaf=lambda x: x is None)
    many = len(returned) > 1
    found = [(f"result {i}" if many else "the result", _on_cpu(x)) for i, x in enumerate(returned)]
    for argument, value in named(schema(operator.overload), args, kwargs):
        if argument.name in operator.written:
            tensors = tensors_of(value)
            of_list = isinstance(value, (list, tuple))
            found += [
                (f"{argument.name}[{i}]" if of_list else argument.name, _on_cpu(x))
                for i, x in enumerate(tensors)
                if not any(x is one for one in returned)
            ]
    return found


def _on_cpu(x: Any) -> Any:
    return x.detach().cpu() if isinstance(x, Tensor) else x


def _is_tie(
    operator: Operator, found: Any, native: Tensor, operands: list[Tensor], by_name: dict[str, Any]
) -> bool:
    """Returns true if the indices that were found are of the values that the CPU's indices are of."""
    if by_name.get("stable") or not isinstance(found, Tensor) or found.shape != native.shape:
        return False
    values = indices.values_at(operator.short, operands[0], found, by_name)
    expected = indices.values_at(operator.short, operands[0], native, by_name)
    if values is None or expected is None:
        return False
    return _are_same(values, expected)


def _outside(
    operator: Operator, args: tuple, kwargs: dict, native_args: tuple, native_kwargs: dict
) -> Finding | None:
    """Returns a finding if the call wrote between the elements of a view that it was to write."""
    parameters = schema(operator.overload)
    pairs = zip(named(parameters, args, kwargs), named(parameters, native_args, native_kwargs))
    for (argument, value), (_, reference_value) in pairs:
        if argument.name not in operator.written:
            continue
        for x, n in zip(tensors_of(value), tensors_of(reference_value)):
            if _wrote_outside(x, n):
                mismatch = Mismatch("elements changed that are between those of the view")
                return Finding(argument.name, mismatch, "its dtype")
    return None


def _wrote_outside(x: Tensor, native: Tensor) -> bool:
    begin, end = extent(x)
    if x.shape != native.shape or x.stride() != native.stride():
        return False  # it was resized
    if end - begin <= x.numel() * x.element_size():
        return False
    found = bytes_of(x, begin, end).cpu()
    begin, end = extent(native)
    expected = bytes_of(native, begin, end).clone()
    for memory in (found, expected):
        view = torch.empty(0, dtype=x.dtype).set_(memory.untyped_storage(), 0, x.shape, x.stride())
        view.zero_()
    return not torch.equal(found, expected)
