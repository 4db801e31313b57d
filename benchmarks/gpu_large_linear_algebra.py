"""Times factorisations of single large matrices on an NVIDIA GPU by our kernels, beside torch's (cuSOLVER and MAGMA).

    python benchmarks/gpu_large_linear_algebra.py record large.pickle   # on the software device
    python benchmarks/gpu_large_linear_algebra.py run large.pickle      # on a GPU, without a compiled part of metalops

Factorisations and solutions are those of metalops.cuda.linalg, inverses solutions for the identity. Exponentials run on mps
tensors only, so `record` writes down what they do with a matrix (metalops.trace.operators), and `run` does the same with the same
matrix on a GPU, all of it from the matrix on. The factors are checked there. Ours is timed in CUDA graphs, without what it costs
to launch from Python, unless it waits for the GPU as torch's operator does: eigh and svd for errors, eig after each sweep. torch's
are timed as they are called.
"""

from __future__ import annotations

import argparse
import pickle
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from metalops.cuda import linalg
from metalops.trace import operators
from torch import Tensor

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


def _eye(a: Tensor) -> Tensor:
    return torch.eye(len(a), dtype=a.dtype, device=a.device)


def _of_solve(a: Tensor, x: Tensor) -> Tensor:
    return a @ x - _eye(a)


def _solved(a: Tensor, b: Tensor) -> Factors:
    """linalg.solve() without its wait for the GPU."""
    return (linalg.lu_solve(*linalg.lu_factor_ex(a)[:2], b),)


def _symmetric(a: Tensor) -> Tensor:
    return a + a.mH


def _positive(a: Tensor) -> Tensor:
    return a @ a.mH / len(a) + torch.eye(len(a), dtype=a.dtype, device=a.device)


def _same(a: Tensor) -> Tensor:
    return a


class Case(NamedTuple):
    """make: the matrix, of a random one. difference: of the matrix and the factors, what should be zero. ours: the same
    function of metalops.cuda.linalg, where there is one. waits: it waits for the GPU, so a CUDA graph cannot hold it."""

    function: Callable[[Tensor], Any]
    make: Callable[[Tensor], Tensor]
    difference: Callable[..., Tensor] | None
    bound: float = BOUND
    ours: Callable[[Tensor], Factors] | None = None
    waits: bool = False


CASES = {
    "eigh": Case(torch.linalg.eigh, _symmetric, _of_eigh, ours=linalg.eigh, waits=True),
    "eigvalsh": Case(
        torch.linalg.eigvalsh, _symmetric, None, ours=lambda a: (linalg.eigvalsh(a),), waits=True
    ),
    "svd": Case(torch.linalg.svd, _same, _of_svd, ours=linalg.svd, waits=True),
    "svdvals": Case(
        torch.linalg.svdvals, _same, None, ours=lambda a: (linalg.svdvals(a),), waits=True
    ),
    "eig": Case(torch.linalg.eig, _same, _of_eig, BOUND_OF_EIG, linalg.eig, waits=True),
    "qr": Case(torch.linalg.qr, _same, _of_qr, ours=linalg.qr),
    "lu_factor": Case(
        torch.linalg.lu_factor, _same, _of_lu, ours=lambda a: linalg.lu_factor_ex(a)[:2]
    ),
    "cholesky": Case(
        torch.linalg.cholesky, _positive, _of_cholesky, ours=lambda a: linalg.cholesky_ex(a)[:1]
    ),
    "inv": Case(torch.linalg.inv, _positive, _of_solve, ours=lambda a: _solved(a, _eye(a))),
    "solve": Case(
        lambda a: torch.linalg.solve(a, a[:, :1]),
        _positive,
        lambda a, x: a @ x - a[:, :1],
        ours=lambda a: _solved(a, a[:, :1]),
    ),
    "matrix_exp": Case(torch.linalg.matrix_exp, lambda a: a / len(a) ** 0.5, None),
}


@torch.no_grad()
def record(name: str, n: int, dtype: torch.dtype) -> operators.Recording:
    from metalops.trace import operators_capture

    case = CASES[name]
    a = case.make(torch.randn(n, n, dtype=dtype)).to("mps")
    case.function(a)  # so that libraries and constants are there
    return operators_capture.record(case.function, a)


# ---- running ---------------------------------------------------------------------------------------


class Timed(operators.Replay):
    """A recording whose parts can be timed."""

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


def report(name: str, a: Tensor, factors: Factors, ours: Callable[[], object], steps: str) -> None:
    """Prints a line of the table. ours: what is timed. steps: what stands behind the error."""
    case = CASES[name]
    worst = error(case, a, factors)
    of_ours = milliseconds(ours)
    of_torch = milliseconds(lambda: case.function(a))
    label = f"{name} {len(a)} {str(a.dtype)[6:]}"
    print(
        f"{label:26} {of_ours:9.3f} {of_torch:9.3f} {of_torch / of_ours:6.2f} {worst:8.2f} {steps}",
        flush=True,
    )
    assert worst <= case.bound, f"{label}: an error of {worst}"


@torch.no_grad()
def run(name: str, n: int, dtype: torch.dtype) -> None:
    """Times a function of metalops.cuda.linalg."""
    case = CASES[name]
    a = case.make(torch.randn(n, n, dtype=dtype, device="cuda"))
    factors = case.ours(a)
    ours = partial(case.ours, a)
    report(name, a, factors, ours if case.waits else captured(ours), "")


@torch.no_grad()
def run_recorded(name: str, recording: operators.Recording, with_parts: bool) -> None:
    from metalops.trace.replay import CudaDevice

    ours = Timed(recording, CudaDevice())
    for _ in range(2):  # as it was recorded; the first time kernels are compiled
        of_parts = ours.times()
    longest, slowest = max((max(times), part) for part, times in of_parts.items())
    steps = f"{len(ours.steps):7} {longest:9.3f} {slowest}"
    a = ours.arguments[0].clone()
    report(name, a, ours.results, captured(ours.run), steps)
    if with_parts:
        parts = sorted(of_parts.items(), key=lambda part: -sum(part[1]))
        for part, times in parts[:8]:
            print(f"    {part:30} {len(times):6} times {sum(times):9.3f} ms, most {max(times):.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("record", "run"))
    parser.add_argument("file")
    parser.add_argument("--only", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--complex", action="store_true")
    parser.add_argument("--parts", action="store_true", help="what takes the time")
    options = parser.parse_args()
    torch.manual_seed(0)
    dtype = torch.complex64 if options.complex else torch.float32
    planned = [name for name in options.only if CASES[name].ours is not None]
    if options.what == "record":
        with open(options.file, "wb") as stream:
            for name in (name for name in options.only if name not in planned):
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
    for name in planned:
        run(name, options.size, dtype)
    with open(options.file, "rb") as stream:
        while stream.peek(1):
            name, data = pickle.load(stream)
            if name in options.only:
                run_recorded(name, pickle.loads(zlib.decompress(data)), options.parts)


if __name__ == "__main__":
    main()
