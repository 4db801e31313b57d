"""Times factorisations of single large matrices on an NVIDIA GPU by our kernels, beside torch's (cuSOLVER and MAGMA).

    python benchmarks/gpu_large_linear_algebra.py record large.pickle   # on the software device
    python benchmarks/gpu_large_linear_algebra.py run large.pickle      # on a GPU, without a compiled part of metalops

A large factorisation is many launches, which the host part of its operator makes, and that runs on mps tensors only. So
`record` writes down what the operator does with a matrix: the launches of our kernels, and the calls of torch's own operators
between them (products of matrices, copies). `run` does the same with the same matrix on a GPU, all of it from the matrix on,
and checks the factors there. Ours is timed in CUDA graphs, without what it costs to launch from Python; torch's operators as they are
called. eig asks after each sweep what comes next, and does so here too.
"""

from __future__ import annotations

import argparse
import dataclasses
import pickle
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

EPSILON = 2.0**-23
BOUND = 5
BOUND_OF_EIG = 20
Factors = tuple[Tensor, ...]


# ---- what is measured ------------------------------------------------------------------------------


def _norm(x: Tensor) -> float:
    return torch.linalg.matrix_norm(x, 1).item()


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.complex128) if x.is_complex() else x.double() if x.is_floating_point() else x


def _of_eigh(a: Tensor, values: Tensor, vectors: Tensor) -> Tensor:
    return a @ vectors - vectors * values


def _of_svd(a: Tensor, u: Tensor, values: Tensor, v_adjoint: Tensor) -> Tensor:
    return (u * values) @ v_adjoint - a


def _of_eig(a: Tensor, values: Tensor, vectors: Tensor) -> Tensor:
    return a.to(vectors.dtype) @ vectors - vectors * values


def _of_qr(a: Tensor, q: Tensor, r: Tensor) -> Tensor:
    return q @ r - a


def _of_lu(a: Tensor, factors: Tensor, pivots: Tensor) -> Tensor:
    p, lower, upper = torch.lu_unpack(factors, pivots)
    return p @ lower @ upper - a


def _of_cholesky(a: Tensor, lower: Tensor) -> Tensor:
    return lower @ lower.mH - a


def _of_solve(a: Tensor, x: Tensor) -> Tensor:
    return a @ x - torch.eye(len(a), dtype=a.dtype, device=a.device)


# torch.linalg's own find vectors too where calls are recorded.
def _eigvalsh(a: Tensor) -> Tensor:
    return torch.ops.aten._linalg_eigh(a, "L", False)[0]


def _svdvals(a: Tensor) -> Tensor:
    return torch.ops.aten._linalg_svd(a, False, False)[1]


def _symmetric(a: Tensor) -> Tensor:
    return a + a.mH


def _positive(a: Tensor) -> Tensor:
    return a @ a.mH / len(a) + torch.eye(len(a), dtype=a.dtype)


def _same(a: Tensor) -> Tensor:
    return a


class Case(NamedTuple):
    """make: the matrix, of a random one. difference: of the matrix and the factors, what should be zero."""

    function: Callable[[Tensor], Any]
    make: Callable[[Tensor], Tensor]
    difference: Callable[..., Tensor] | None
    bound: float = BOUND


CASES = {
    "eigh": Case(torch.linalg.eigh, _symmetric, _of_eigh),
    "eigvalsh": Case(_eigvalsh, _symmetric, None),
    "svd": Case(torch.linalg.svd, _same, _of_svd),
    "svdvals": Case(_svdvals, _same, None),
    "eig": Case(torch.linalg.eig, _same, _of_eig, BOUND_OF_EIG),
    "qr": Case(torch.linalg.qr, _same, _of_qr),
    "lu_factor": Case(torch.linalg.lu_factor, _same, _of_lu),
    "cholesky": Case(torch.linalg.cholesky, _positive, _of_cholesky),
    "inv": Case(torch.linalg.inv, _positive, _of_solve),
    "matrix_exp": Case(torch.linalg.matrix_exp, lambda a: a / len(a) ** 0.5, None),
}


def _factors(result: Any) -> Factors:
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)


# ---- recording -------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Place:
    """A tensor in a memory of the trace."""

    memory: int | None  # None: it has no elements
    offset: int  # in elements, as strides are
    dtype: torch.dtype
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    is_conj: bool
    is_neg: bool


@dataclasses.dataclass(frozen=True)
class Call:
    """Of a torch operator: "aten::bmm" and its overload. Arguments have Places for tensors. results: where what it returns
    belongs; None for what it wrote in place."""

    name: str
    overload: str
    args: tuple
    kwargs: dict[str, Any]
    results: tuple[Place | None, ...]


@dataclasses.dataclass
class Recorded:
    """trace: a metalops.trace.Trace whose events may be Calls too."""

    function: str
    matrix: Place
    trace: Any
    factors: tuple[Place, ...]


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """Nested lists, tuples and dicts with each leaf changed."""
    if isinstance(value, (list, tuple)):
        return type(value)(_mapped(one, change) for one in value)
    if isinstance(value, dict):
        return {name: _mapped(one, change) for name, one in value.items()}
    return change(value)


def _tensors(value: Any) -> list[Tensor]:
    found: list[Tensor] = []
    _mapped(value, lambda one: found.append(one) if isinstance(one, Tensor) else None)
    return found


def _written(func: Any, args: tuple, kwargs: dict[str, Any]) -> list[Tensor]:
    """The arguments in place of which an operator puts its results."""
    bound = zip(func._schema.arguments, args, strict=False)
    in_place = [x for a, x in bound if a.alias_info is not None and a.alias_info.is_write]
    named = {a.name for a in func._schema.arguments if a.alias_info and a.alias_info.is_write}
    return _tensors([in_place, [x for name, x in kwargs.items() if name in named]])


# Operators that change no element.
_OF_GEOMETRY = {"aten::as_strided_", "aten::resize_", "aten::_unsafe_view"}
# Where the kernel for mps tensors may be registered.
_KEYS = [
    getattr(torch._C.DispatchKey, name)
    for name in (
        "MPS",
        "CompositeExplicitAutogradNonFunctional",
        "CompositeExplicitAutograd",
        "CompositeImplicitAutograd",
    )
]


class _Operators(TorchDispatchMode):
    """Puts calls of operators that launch nothing of ours into the trace of a recorder."""

    def __init__(self, recorder: Any):
        super().__init__()
        self.recorder = recorder

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        given = _tensors((args, kwargs))
        device = kwargs.get("device")
        made_here = torch.device(device or "cpu").type == "mps"
        if not (all(x.is_mps for x in given) if given else made_here):
            result = func(*args, **kwargs)
            changed = [*_written(func, args, kwargs), *_tensors(result)]
            self.recorder.forget([x for x in changed if x.is_mps])
            return result
        events = self.recorder.trace.events
        for x in given:
            self.recorder.show(x)
        before = len(events)
        with self:
            key = next(key for key in _KEYS if func.has_kernel_for_dispatch_key(key))
            result = func._op_dk(key, *args, **kwargs)
        returned = _tensors(result)
        name, _, overload = func.name().partition(".")
        if name.startswith("aten::empty") or name == "aten::resize_":
            self.recorder.take(returned)
        elif len(events) == before and not func.is_view and name not in _OF_GEOMETRY:
            self._add(name, overload, func, args, kwargs, returned)
        return result

    def _add(self, name, overload, func, args, kwargs, returned) -> None:
        if not returned or not all(x.is_mps for x in returned):
            return
        written = set(map(id, _written(func, args, kwargs)))
        place = self.recorder.place
        self.recorder.trace.events.append(
            Call(
                name,
                overload,
                _mapped(args, lambda x: place(x) if isinstance(x, Tensor) else x),
                _mapped(kwargs, lambda x: place(x) if isinstance(x, Tensor) else x),
                tuple(None if id(x) in written else place(x) for x in returned),
            )
        )
        self.recorder.take(returned)


def _recorder() -> Any:
    from metalops.trace import capture

    class Recorder(capture.Recorder):
        """Keeps what comes from the host, not what kernels and operators leave: another run finds that by itself."""

        def _index(self, x: Tensor) -> int | None:
            storage = x.untyped_storage()
            size = storage.nbytes()
            return self._memory(storage.data_ptr(), {"bytes": size}) if size else None

        def _record_contents(self, index: int | None) -> None:
            if index is not None and index not in self.known:
                super()._record_contents(index)

        def _result(self, index, arguments):
            return None

        def show(self, x: Tensor) -> None:
            self._record_contents(self._index(x))

        def take(self, written: list[Tensor]) -> None:
            """The trace leaves there what is there now."""
            for index in map(self._index, written):
                if index is not None:
                    self.known.setdefault(index, None)

        def forget(self, written: list[Tensor]) -> None:
            for index in map(self._index, written):
                self.known.pop(index, None)

        def place(self, x: Tensor) -> Place:
            at = x.storage_offset()
            return Place(
                self._index(x), at, x.dtype, tuple(x.shape), x.stride(), x.is_conj(), x.is_neg()
            )

    return Recorder(None, capture.run_by_default)


@torch.no_grad()
def record(name: str, n: int, dtype: torch.dtype) -> Recorded:
    from metalops import _host

    case = CASES[name]
    a = case.make(torch.randn(n, n, dtype=dtype)).to("mps")
    case.function(a)  # so that libraries and constants are there
    recorder = _recorder()
    _host.set_launch_hook(recorder.record)
    flavours = _host.set_elementwise_flavour("gpu", "gpu")
    try:
        with _Operators(recorder):
            result = case.function(a)
    finally:
        _host.set_launch_hook(None)
        _host.set_elementwise_flavour(*flavours)
    factors = tuple(recorder.place(x) for x in _factors(result))
    return Recorded(name, recorder.place(a), recorder.trace, factors)


# ---- running ---------------------------------------------------------------------------------------


class Replay:
    """What was recorded, on a device of metalops.trace.replay."""

    def __init__(self, recorded: Recorded, device: Any):
        from metalops.trace import replay
        from metalops.trace.format import Launch, Write

        self.device = device.torch_device
        trace = recorded.trace
        self.recorded = recorded
        self.memories = [replay._zeros(m.bytes, device) for m in trace.memories]
        bare = dataclasses.replace(
            trace, events=[e for e in trace.events if isinstance(e, (Launch, Write))]
        )
        libraries = replay._Libraries(bare, device)
        self.steps: list[tuple[str, Callable[[], object]]] = []
        for event in trace.events:
            if isinstance(event, Write):
                blob = torch.frombuffer(bytearray(trace.blobs[event.contents]), dtype=torch.uint8)
                memory, there = self.memories[event.memory], blob.to(self.device)
                self.steps.append(("write", lambda to=memory, there=there: to.copy_(there)))
            elif isinstance(event, Call):
                self.steps.append((event.name, self._call(event)))
            else:
                arguments = replay._arguments(event, self.memories)
                run = replay.launching(event, libraries.library_of(event), arguments)
                self.steps.append((event.kernel, run))

    def tensor(self, place: Place) -> Tensor:
        if place.memory is None:
            return torch.empty_strided(
                place.sizes, place.strides, dtype=place.dtype, device=self.device
            )
        memory = self.memories[place.memory]
        elements = memory[: memory.numel() // place.dtype.itemsize * place.dtype.itemsize]
        x = elements.view(place.dtype).as_strided(place.sizes, place.strides, place.offset)
        x = x.conj() if place.is_conj else x
        return torch._neg_view(x) if place.is_neg else x

    def _call(self, call: Call) -> Callable[[], object]:
        packet = getattr(torch.ops.aten, call.name.removeprefix("aten::"))
        function = getattr(packet, call.overload or "default")

        def there(value: Any) -> Any:
            if isinstance(value, Place):
                return self.tensor(value)
            return self.device if isinstance(value, torch.device) else value

        args, kwargs = _mapped(call.args, there), _mapped(call.kwargs, there)
        places = [None if p is None else self.tensor(p) for p in call.results]

        def run() -> None:
            for to, x in zip(places, _tensors(function(*args, **kwargs)), strict=True):
                if to is not None:
                    to.copy_(x)

        return run

    @property
    def factors(self) -> Factors:
        return tuple(self.tensor(place) for place in self.recorded.factors)

    def sections(self) -> list[list[Callable[[], object]]]:
        """The steps; of eig those before the sweeps, around a sweep, of a window of it, and behind the sweeps."""
        names = [name for name, _ in self.steps]
        steps = [step for _, step in self.steps]
        chases = [i for i, name in enumerate(names) if name.startswith("eig_large_schur_chase")]
        if not chases:
            return [steps]
        finishes = [i for i, name in enumerate(names) if name.startswith("eig_large_schur_finish")]
        end = max(i for i, name in enumerate(names) if name.startswith("eig_large_schur_begin")) + 1
        chase = chases[0]
        around = max(i for i in finishes if i < chase)
        window = steps[chase : chase + 2]
        return [steps[: finishes[0]], steps[around:chase], window, steps[end:]]

    def runner(
        self, prepare: Callable[[Callable[[], object]], Callable[[], object]]
    ) -> Callable[[], object]:
        """All of it. prepare: what is made of each section first."""

        def together(steps: list[Callable[[], object]]) -> Callable[[], object]:
            def run() -> None:
                for step in steps:
                    step()

            return prepare(run)

        sections = [together(steps) for steps in self.sections()]
        if len(sections) == 1:
            return sections[0]
        from metalops.ops._cuda import kernel_file

        types = kernel_file.header("eig_large")
        launches = self.recorded.trace.launches
        begin = next(
            launch for launch in launches if launch.kernel.startswith("eig_large_schur_begin")
        )
        state = self.memories[begin.arguments[0].memory]

        def run() -> None:
            before, around, window, behind = sections
            before()
            while True:
                around()
                known = types.SchurSweeps.from_buffer_copy(state.cpu().numpy().tobytes())
                if known.high < 0:
                    break
                for _ in range(known.windows):
                    window()
            behind()

        return run

    def times(self) -> dict[str, list[float]]:
        """Milliseconds of each step by its name, alone."""
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(len(self.steps) + 1)]
        marks[0].record()
        for (_, step), mark in zip(self.steps, marks[1:], strict=True):
            step()
            mark.record()
        torch.cuda.synchronize()
        found: dict[str, list[float]] = {}
        for (name, _), begin, end in zip(self.steps, marks, marks[1:], strict=False):
            found.setdefault(name, []).append(begin.elapsed_time(end))
        return found


def captured(call: Callable[[], object]) -> Callable[[], object]:
    """The same in a CUDA graph."""
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def milliseconds(call: Callable[[], object], repeat: int = 5) -> float:
    """The least of several."""
    call()
    times = []
    for _ in range(repeat):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return min(times)


def error(case: Case, a: Tensor, factors: Factors) -> float:
    """Of the factors' product in units of n eps and the matrix' norm; of values, from torch's in float64."""
    a = _wide(a)
    wide = [_wide(x) for x in factors]
    unit = len(a) * EPSILON
    if case.difference is None:
        exact = case.function(a)
        return ((wide[0] - exact).abs().max() / exact.abs().max() / unit).item()
    return _norm(case.difference(a, *wide)) / (unit * _norm(a))


@torch.no_grad()
def run(recorded: Recorded, with_parts: bool) -> None:
    from metalops.trace.replay import CudaDevice

    case = CASES[recorded.function]
    ours = Replay(recorded, CudaDevice())
    for _ in range(2):  # as it was recorded; the first time kernels are compiled
        of_parts = ours.times()
    ours.runner(lambda run: run)()
    a = ours.tensor(recorded.matrix).clone()
    worst = error(case, a, ours.factors)
    longest, name = max((max(times), name) for name, times in of_parts.items())
    of_ours = milliseconds(ours.runner(captured))
    of_torch = milliseconds(lambda: case.function(a))
    label = f"{recorded.function} {len(a)} {str(a.dtype)[6:]}"
    print(
        f"{label:26} {of_ours:9.3f} {of_torch:9.3f} {of_torch / of_ours:6.2f} {worst:8.2f}"
        f" {len(ours.steps):7} {longest:9.3f} {name}",
        flush=True,
    )
    if with_parts:
        slowest = sorted(of_parts.items(), key=lambda part: -sum(part[1]))
        for name, times in slowest[:8]:
            print(f"    {name:30} {len(times):6} times {sum(times):9.3f} ms, most {max(times):.3f}")
    assert worst <= case.bound, f"{label}: an error of {worst}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("record", "run"))
    parser.add_argument("file")
    parser.add_argument("--only", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--complex", action="store_true")
    parser.add_argument("--parts", action="store_true", help="what takes the time")
    options = parser.parse_args()
    if options.what == "record":
        import metalops  # noqa: F401

        torch.manual_seed(0)
        dtype = torch.complex64 if options.complex else torch.float32
        with open(options.file, "wb") as stream:
            for name in options.only:
                found = record(name, options.size, dtype)
                data = zlib.compress(pickle.dumps(found), 1)
                print(
                    f"{name}: {len(found.trace.events)} steps, {len(data) / 1e6:.1f} MB", flush=True
                )
                pickle.dump((name, data), stream)
        return
    print(torch.cuda.get_device_name())
    print(
        f"{'milliseconds':26} {'ours':>9} {'torch':>9} {'times':>6} {'error':>8} {'steps':>7} longest step"
    )
    with open(options.file, "rb") as stream:
        while stream.peek(1):
            name, data = pickle.load(stream)
            if name in options.only:
                run(pickle.loads(zlib.decompress(data)), options.parts)


if __name__ == "__main__":
    main()
