"""``out=`` of every ATen operator that metalops implements, as torch's CPU operators have it: an output of
the right size keeps its memory and its strides, whatever they are, one without elements is resized, and
so, with torch's warning, is one of a wrong size.
"""

import contextlib
import functools
import itertools
import math
import warnings

import metalops
import pytest
import torch
from metalops.testing import to_device
from torch.testing._internal.common_methods_invocations import op_db
from torch.torch_version import TorchVersion
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from .families import gather

aten = torch.ops.aten

# Of each operator so many samples are looked at, and so many different calls tried.
SAMPLES = 12
CALLS = 2

SPARSE = "its output is a sparse tensor"
WITHOUT_CALLS = {"aten::hspmm.out": SPARSE, "aten::sspaddmm.out": SPARSE}

# Outputs that are laid out otherwise than the CPU's where they are resized: why.
_ROWS = "earlier meta functions of torch lay rows of factors side by side on mps"
OTHERWISE = {
    "aten::_linalg_solve_ex.result": _ROWS,
    "aten::cholesky_inverse.out": "rows lie side by side where it has no elements",
    "aten::linalg_lu_factor_ex.out": _ROWS,
}
AS_ON_THE_CPU_FROM = {
    "aten::_linalg_solve_ex.result": (2, 15),
    "aten::linalg_lu_factor_ex.out": (2, 14),
}

# Overloads whose CPU kernels take contiguous outputs only.
CONTIGUOUS_ON_THE_CPU = {
    "aten::_convert_indices_from_csr_to_coo.out",
    "aten::_int_mm.out",
    "aten::multi_margin_loss_backward.grad_input",
    "aten::multilabel_margin_loss_backward.grad_input",
    "aten::multilabel_margin_loss_forward.output",
}

# Overloads whose CPU kernels resize without torch's warning.
SILENT_ON_THE_CPU = {
    "aten::adaptive_avg_pool3d.out",
    "aten::fractional_max_pool3d_backward.grad_input",
    "aten::multi_margin_loss.out",
    "aten::multi_margin_loss_backward.grad_input",
    "aten::multilabel_margin_loss_backward.grad_input",
    "aten::multilabel_margin_loss_forward.output",
    "aten::narrow_copy.out",
}


def numbers(*shape, dtype=torch.float32):
    return (torch.arange(math.prod(shape)) * 37 % 23 - 11).reshape(shape).to(dtype)


def calls_by_hand() -> dict:
    """Arguments of what none of torch's samples calls by its own name."""
    pooled, places = aten.adaptive_max_pool3d(numbers(2, 4, 6, 8), [2, 3, 4])
    halves = torch.full((2, 3, 2), 0.5)
    fractional2, places2 = aten.fractional_max_pool2d(numbers(2, 3, 6, 8), [2, 2], [3, 4], halves)
    halves3 = torch.full((2, 3, 3), 0.5)
    fractional3, places3 = aten.fractional_max_pool3d(
        numbers(2, 3, 6, 8, 6), [2, 2, 2], [3, 4, 3], halves3
    )
    half = torch.float16
    narrow = torch.float8_e4m3fn
    a, b = numbers(16, 32, dtype=narrow), numbers(16, 32, dtype=narrow).t()
    scale = torch.ones(())
    targets = torch.tensor([1, 0, 4])
    many = torch.tensor([[1, 3, -1, 0, 0], [0, -1, 0, 0, 0], [4, 2, 1, -1, 0]])
    _, is_target = aten.multilabel_margin_loss_forward(numbers(3, 5), many, 1)
    return {
        "aten::_convert_indices_from_coo_to_csr.out": (torch.tensor([0, 1, 1, 3]), 4),
        "aten::_convert_indices_from_csr_to_coo.out": (
            torch.tensor([0, 2, 4]),
            torch.tensor([0, 1, 0, 2]),
        ),
        "aten::_int_mm.out": (numbers(32, 16, dtype=torch.int8), numbers(16, 24, dtype=torch.int8)),
        "aten::batch_norm_elemt.out": (
            numbers(2, 3, 4),
            None,
            None,
            numbers(3),
            torch.tensor([0.5, 1.0, 2.0]),
            1e-5,
        ),
        "aten::_scaled_mm.out": (a, b, scale, scale, None, None, torch.bfloat16),
        "aten::_scaled_mm_v2.out": (
            a,
            b,
            [scale],
            [0],
            [0],
            [scale],
            [0],
            [0],
            None,
            torch.bfloat16,
        ),
        "aten::_scaled_addmm.out": (numbers(16, 16), a, b, [scale], [0], [], [scale], [0], []),
        "aten::_scaled_grouped_mm_v2.out": (
            *(x.unsqueeze(0) for x in (a, b)),
            *([torch.ones(1, 16)], [1], []) * 2,
        ),
        "aten::adaptive_avg_pool2d.out": (numbers(2, 3, 6, 8), [2, 4]),
        "aten::adaptive_avg_pool3d.out": (numbers(2, 3, 6, 8, 4), [2, 4, 2]),
        "aten::adaptive_max_pool3d_backward.grad_input": (pooled, numbers(2, 4, 6, 8), places),
        "aten::addmm.dtype_out": (
            numbers(3, 5),
            numbers(3, 4, dtype=half),
            numbers(4, 5, dtype=half),
            torch.float32,
        ),
        "aten::baddbmm.dtype_out": (
            numbers(2, 3, 5),
            numbers(2, 3, 4, dtype=half),
            numbers(2, 4, 5, dtype=half),
            torch.float32,
        ),
        "aten::bmm.dtype_out": (
            numbers(2, 3, 4, dtype=half),
            numbers(2, 4, 5, dtype=half),
            torch.float32,
        ),
        "aten::fractional_max_pool2d_backward.grad_input": (
            fractional2,
            numbers(2, 3, 6, 8),
            [2, 2],
            [3, 4],
            places2,
        ),
        "aten::fractional_max_pool3d_backward.grad_input": (
            fractional3,
            numbers(2, 3, 6, 8, 6),
            [2, 2, 2],
            [3, 4, 3],
            places3,
        ),
        "aten::linalg_eigvals.out": (numbers(2, 5, 5),),
        "aten::linalg_svd.U": (numbers(2, 5, 3),),
        "aten::max.unary_out": (numbers(4, 5),),
        "aten::median.dim_values": (numbers(4, 5, 3), 1),
        "aten::min.unary_out": (numbers(4, 5),),
        "aten::mm.dtype_out": (numbers(3, 4, dtype=half), numbers(4, 5, dtype=half), torch.float32),
        "aten::multi_margin_loss_backward.grad_input": (
            torch.ones(()),
            numbers(3, 5),
            targets,
            1,
            1.0,
        ),
        "aten::multilabel_margin_loss_backward.grad_input": (
            torch.ones(()),
            numbers(3, 5),
            many,
            1,
            is_target,
        ),
        "aten::nanmedian.dim_values": (numbers(4, 5, 3), 1),
        "aten::std.correction_out": (numbers(4, 5, 3), [1]),
        "aten::var.correction_out": (numbers(4, 5, 3), [1]),
    }


def overload_of(name: str):
    packet, _, overload = name.removeprefix("aten::").partition(".")
    return getattr(getattr(aten, packet), overload or "default")


def outputs_of(op) -> list[str]:
    return [a.name for a in op._schema.arguments if a.is_out]


def inputs_of(op) -> list[tuple[str, str]]:
    return [(a.name, str(a.type)) for a in op._schema.arguments if not a.is_out]


@functools.cache
def ours_with_out() -> dict[str, str]:
    """Each overload of ours that takes outputs, by the name of the one that makes them."""
    found = {}
    for entry in metalops.coverage():
        if entry.status not in ("ours", "replaced") or entry.reason == "refuses 8-bit floats":
            continue
        op = overload_of(entry.name)
        if not outputs_of(op):
            continue
        packet = entry.name.removeprefix("aten::").partition(".")[0]
        for other in getattr(aten, packet).overloads():
            functional = getattr(getattr(aten, packet), other)
            if not functional._schema.is_mutable and inputs_of(functional) == inputs_of(op):
                found[functional.name()] = entry.name
    return found


@functools.cache
def functional_of(name: str):
    return overload_of({out: other for other, out in ours_with_out().items()}[name])


def has_cpu_kernel(name: str) -> bool:
    """Directly, or by a composition."""
    keys = ("CPU", "CompositeImplicitAutograd")
    return any(torch._C._dispatch_has_kernel_for_dispatch_key(name, key) for key in keys)


class Recorder(TorchDispatchMode):
    """Notes the calls of operators that have an overload of ours with outputs."""

    def __init__(self):
        super().__init__()
        self.calls = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = ours_with_out().get(func.name())
        if name is not None:
            calls = self.calls.setdefault(name, {})
            shapes = str(pytree.tree_map_only(torch.Tensor, lambda t: t.shape, (args, kwargs)))
            tensors = [x for x in pytree.tree_leaves(result) if isinstance(x, torch.Tensor)]
            if len(calls) < CALLS and any(t.numel() > 1 for t in tensors):
                copies = pytree.tree_map_only(torch.Tensor, torch.clone, (args, kwargs))
                calls.setdefault(shapes, (copies, [t.clone() for t in tensors]))
        return result


@functools.cache
def calls_of_samples() -> dict:
    """Of each overload some calls of what makes its outputs, and these outputs."""
    recorder = Recorder()

    def run(function, *args, **kwargs):
        with recorder, torch.no_grad(), warnings.catch_warnings(), contextlib.suppress(Exception):
            warnings.simplefilter("ignore")
            function(*args, **kwargs)

    names = {*gather("OPINFOS")}
    for op in op_db:
        if op.name in names and torch.float32 in op.dtypes:
            samples = op.sample_inputs("cpu", torch.float32, set_seed=True)
            for sample in itertools.islice(samples, SAMPLES):
                run(op, sample.input, *sample.args, **sample.kwargs)
    for entry in gather("OPINFO_SAMPLES"):
        dtype = torch.float32 if torch.float32 in entry.dtypes else min(entry.dtypes, key=str)
        for args, options in itertools.islice(entry.calls(dtype), SAMPLES):
            run(entry.op, *args, **options)
    with_out = set(ours_with_out().values())
    for name, args in calls_by_hand().items():
        if name not in with_out:
            continue  # left to torch
        device = "cpu" if has_cpu_kernel(name) else "mps"
        results = functional_of(name)(*to_device(args, device))
        results = [results] if isinstance(results, torch.Tensor) else results
        assert name not in recorder.calls
        recorder.calls[name] = {"": ((args, {}), [result.cpu() for result in results])}
    return recorder.calls


def memory(kind: str, result: torch.Tensor, device: str) -> torch.Tensor:
    """An output for a result of that size and dtype."""
    sizes, dtype = list(result.shape), result.dtype
    if kind == "right size":
        return torch.zeros(sizes, dtype=dtype, device=device)
    if kind == "transposed":
        order = tuple(reversed(range(len(sizes))))
        return torch.zeros(sizes[::-1], dtype=dtype, device=device).permute(order)
    if kind == "every second":
        whole = torch.zeros([2 * size for size in sizes], dtype=dtype, device=device)
        return whole[tuple(slice(None, None, 2) for _ in sizes)]
    if kind == "in the middle":
        whole = torch.zeros([size + 2 for size in sizes], dtype=dtype, device=device)
        return whole[tuple(slice(1, -1) for _ in sizes)]
    if kind == "no elements":
        return torch.zeros(0, dtype=dtype, device=device)
    return torch.zeros([size + 1 for size in sizes] + [2], dtype=dtype, device=device)


KINDS = ("right size", "transposed", "every second", "in the middle", "no elements", "wrong size")
RESIZED = ("no elements", "wrong size")


def write(op, call, results, kind, device):
    """Runs the overload: the layouts of its outputs afterwards, and the outputs; or the error."""
    args, kwargs = to_device(call, device)
    outs = [memory(kind, result, device) for result in results]
    addresses = [out.data_ptr() for out in outs]
    try:
        op(*args, **kwargs, **dict(zip(outputs_of(op), outs, strict=True)))
    except Exception as error:
        return error, []
    layouts = [
        (
            tuple(out.shape),
            [d for n, d in zip(out.shape, out.stride(), strict=True) if n > 1],
            kind in RESIZED or out.data_ptr() == address,
        )
        for out, address in zip(outs, addresses, strict=True)
    ]
    return layouts, outs


def without_cpu_kernel(results, kind):
    """What torch makes of outputs as a rule."""
    outs = [memory("right size" if kind in RESIZED else kind, result, "cpu") for result in results]
    return [
        (tuple(out.shape), [d for n, d in zip(out.shape, out.stride(), strict=True) if n > 1], True)
        for out in outs
    ]


@pytest.fixture
def resizings(capfd):
    """How often torch has warned of one since the last question. Operators called by overload warn in C++, since torch 2.15
    in Python."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")

        def count() -> int:
            text = capfd.readouterr().err + "".join(str(x.message) for x in caught)
            caught.clear()
            return text.count("An output with one or more elements was resized")

        yield count


NAMES = sorted(set(ours_with_out().values()))


def known_calls(name) -> list:
    calls = list(calls_of_samples().get(name, {}).values())
    assert bool(calls) != (name in WITHOUT_CALLS), WITHOUT_CALLS.get(name, "no call is known")
    return calls


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [name for name in NAMES if name not in OTHERWISE])
def test_outputs_lie_as_on_the_cpu(name, kind, resizings):
    op = overload_of(name)
    resizings()
    for call, results in known_calls(name):
        if has_cpu_kernel(name):
            expected, _ = write(op, call, results, kind, "cpu")
            warned = resizings()
        else:
            expected = without_cpu_kernel(results, kind)
            warned = len(results) if kind == "wrong size" else 0
        if name in CONTIGUOUS_ON_THE_CPU and kind == "every second":
            assert isinstance(expected, RuntimeError)
        if name in SILENT_ON_THE_CPU and kind == "wrong size":
            assert warned == 0
            warned = len(results)
        actual, outs = write(op, call, results, kind, "mps")
        refused = isinstance(expected, Exception) and kind not in RESIZED
        if refused and name in CONTIGUOUS_ON_THE_CPU:
            expected = without_cpu_kernel(results, kind)
        if isinstance(expected, Exception):
            assert type(actual) is type(expected), actual
            continue
        assert actual == expected
        assert resizings() == warned
        if torch.Tag.nondeterministic_seeded not in op.tags:
            args, kwargs = to_device(call, "mps")
            made = pytree.tree_leaves(functional_of(name)(*args, **kwargs))
            for out, result in zip(outs, made, strict=True):
                torch.testing.assert_close(out, result, rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("name", OTHERWISE)
def test_outputs_that_lie_otherwise_are_written(name):
    """And they go on lying otherwise than on the CPU, for the reasons given."""
    op = overload_of(name)
    otherwise = False
    for call, results in known_calls(name):
        args, kwargs = to_device(call, "mps")
        made = pytree.tree_leaves(functional_of(name)(*args, **kwargs))
        for kind in KINDS:
            expected, _ = write(op, call, results, kind, "cpu")
            actual, outs = write(op, call, results, kind, "mps")
            otherwise |= repr(actual) != repr(expected)
            assert all(in_place for *_, in_place in actual)
            for out, result in zip(outs, made, strict=True):
                torch.testing.assert_close(out, result, rtol=1e-5, atol=1e-5)
    is_past = TorchVersion(torch.__version__) >= AS_ON_THE_CPU_FROM.get(name, (3,))
    assert otherwise != is_past, OTHERWISE[name]
