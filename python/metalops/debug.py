"""Compares what runs on mps with the CPU, and tells its time and memory; inspects the software mps device, and checks kernels
on it."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import functools
import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from . import _is_software
from ._compare.differences import Difference as Difference
from ._compare.differences import DifferenceError as DifferenceError
from ._compare.differences import Mismatch as Mismatch

if TYPE_CHECKING:
    from torch import nn

    from ._compare.mode import Comparison
    from ._observe.memory import Memory
    from ._observe.profile import Profile
    from .trace.format import Trace


@contextlib.contextmanager
def standins() -> Iterator[dict[str, int]]:
    """Records which operators were served by a stand-in: a CPU kernel in the place of an MPS one.

    Yields a dict that is filled when the block ends: operator overload ("aten::sin.out") to the number of calls. Calls
    of this thread count, and of the autograd threads that work for it. Creating, viewing and copying tensors is the
    device's own work, as on a Mac, and is not recorded. On a Mac there are no stand-ins and the dict stays empty.
    """
    counts: dict[str, int] = {}
    if not _is_software:
        yield counts
        return
    from . import _host

    record = _host.push_stand_in_record()
    try:
        yield counts
    finally:
        _host.pop_stand_in_record()
        counts.update(record.counts())


def compare(
    *,
    share: float = 1.0,
    halt: bool = True,
    path: str | os.PathLike | None = None,
    model: nn.Module | None = None,
    compiled: bool = False,
    most_bytes: int = 2**30,
    seed: int = 0,
) -> Comparison:
    """Runs every operator of mps tensors in the block, or in the decorated function, also on the CPU, and compares the
    results with the tolerances of metalops.testing.

    The reference is computed in float64 where the dtype has an error of its own. Results may also be as far from it as
    those of the CPU in the dtype, times a small factor. Views, in-place operators, out=, autocast and the backward pass
    of autograd are included. The CPU draws other random numbers than mps: of random operators only those properties are
    checked that all results have, and the others are skipped.

    share: of the calls, chosen at random by seed, that are compared. halt: raise DifferenceError at the first call that
    differs; otherwise all are collected in the differences of the Comparison, whose report() says what was found and what
    was not compared. path: of a file for the first call that differs, which `python -m metalops replay` runs again. model:
    the module from which parts have their names, such as "decoder.layers.3.self_attn"; by default the outermost one that
    is called. compiled: compare functions of torch.compile kernel by kernel as Inductor compiles them, anew; by default
    they run uncompiled in the block. most_bytes: of memory on the CPU that a comparison may take; larger calls are skipped.

    Raises ValueError for a share that is not in (0, 1], and OSError if no file can be written at the path.
    """
    from ._compare.mode import Comparison

    return Comparison(share, halt, path, model, compiled, most_bytes, seed)


def profile(*, model: nn.Module | None = None, path: str | os.PathLike | None = None) -> Profile:
    """Times every operator of mps tensors in the block, or in the decorated function, and every kernel that they launch.

    The result's table() says which took longest, with the bytes that they read and write, and the rate; table("module")
    which modules did, table("kernel") which kernels. Views and other operators that compute nothing are left out, as are
    operators of the CPU. Compiled functions stay compiled: their kernels belong to no operator.

    On the software device kernels are timed as the engine runs them; they say nothing about a GPU. On a Mac the time of
    an operator is that of its command buffer: the device is waited for after each one, so that the program takes
    longer than without, and the times of kernels are not known.

    model: the module from which parts have their names; by default the outermost one that is called. path: of a trace that
    is written when the block ends, which https://ui.perfetto.dev opens.

    Raises OSError if no file can be written at the path.
    """
    from ._observe.profile import Profile

    return Profile(model, path)


def memory(*, model: nn.Module | None = None) -> Memory:
    """Follows the memory that operators in the block, or in the decorated function, allocate on mps, until it is freed.

    The result's table() says which operators of which modules made what is alive now, and at the peak; what the allocator
    caches, and what the driver has. snapshot() returns the same at a time, and the difference of two snapshots is the
    growth between them. Memory that an operator allocates and frees within its call, and that of before the block, has no
    known holder.

    model: the module from which parts have their names, and whose parameters and buffers are told apart from other memory; by
    default names are those in the outermost module that is called.
    """
    from ._observe.memory import Memory

    return Memory(model)


def capture(
    path: str | os.PathLike,
    *,
    contents: bool | int = True,
    execute: bool = True,
    gpu: bool = False,
) -> contextlib.AbstractContextManager[Trace]:
    """Records the launches of the block, by any CPU thread, in a file that `python -m metalops replay` runs again, on
    this device or on a GPU: the kernels' sources and constants, grids, arguments, and the contents of memory.

    contents: of memory that kernels read. True: all are recorded. A number: those of allocations of at most so many
    bytes; of others the trace holds only the size and the kind of numbers, and such numbers are generated when it is
    replayed. False: none. execute: False records the launches without running them, for sizes that would take too long
    here; results are then uninitialised memory. gpu: elementwise operators launch what they would on a GPU, several
    elements per thread, where by default the device takes what is best for a CPU.

    Addresses are followed where operators pass them to kernels (lists of tensors), not where a program makes them out
    of Tensor.data_ptr(). A capture inside another records for both. Raises NotImplementedError on a Mac, and OSError,
    before the block begins, if no file can be written at the path.
    """
    from .trace.capture import capture

    return capture(path, contents, execute, gpu)


@dataclasses.dataclass(frozen=True)
class Finding:
    """A problem that a sanitized launch found.

    kind: a short name, such as "heap-buffer-overflow" or "signed-integer-overflow". message: what happened, at which
    line of the Metal source and in which thread. warning: True if it was issued as a SanitizerWarning.
    """

    kind: str
    message: str
    warning: bool = False


class SanitizerError(RuntimeError):
    """A kernel did something that Metal does not define. findings: all that the launch found."""

    def __init__(self, findings: Sequence[Finding]):
        super().__init__("\n\n".join(finding.message for finding in findings))
        self.findings = list(findings)

    def __reduce__(self):
        return type(self), (self.findings,)


class SanitizerWarning(UserWarning):
    """A kernel did something that is most likely wrong."""


@contextlib.contextmanager
def sanitize(
    mode: str | None = None, *, halt: bool = True, seed: int | None = None
) -> Iterator[None]:
    """Runs the kernels launched in the block under the compiler's sanitizer.

    mode: "address" (AddressSanitizer and UndefinedBehaviorSanitizer) or "thread" (ThreadSanitizer); default: the one
    whose runtime this process has. halt: raise SanitizerError at the launch; otherwise kernels continue, and all
    findings are raised at torch.mps.synchronize(), or when the block ends. seed: of the order in which threads run, as
    METALOPS_SANITIZE_SEED; the same launches in the block run in the same orders again. It holds for all threads of the
    process.

    Raises RuntimeError if the process was not started with that sanitizer's runtime: set METALOPS_SANITIZE, or use
    `python -m metalops sanitize`. Without the block, METALOPS_SANITIZE alone puts every launch of the process under the
    sanitizer.
    """
    from .msl.targets.host import sanitizers

    wanted = None if mode is None else sanitizers.mode_of(mode)
    present = sanitizers.loaded() if _is_software else ""
    if not present or wanted not in (None, present):
        name = wanted or "address"
        raise RuntimeError(
            f"metalops.debug.sanitize: this process was started without the runtime of the {name} "
            f"sanitizer. Start it with METALOPS_SANITIZE={name}, or with `python -m metalops "
            f"sanitize --mode {name} SCRIPT`."
        )
    from . import _host

    _prepare_sanitizing()
    mode_before = _host.set_sanitizer(present)
    order_before = _host.check_stream_order(True)
    halt_before = _host.set_sanitizer_halt(halt)
    seed_before = _host.sanitizer_seed()
    if seed is not None:
        _host.set_sanitizer_seed(seed)
    try:
        yield
        if not halt:
            _host.raise_kept_findings()
    finally:
        if seed is not None:
            _host.set_sanitizer_seed(seed_before)
        _host.set_sanitizer_halt(halt_before)
        _host.check_stream_order(order_before)
        _host.set_sanitizer(mode_before)


@contextlib.contextmanager
def check_streams(*, halt: bool = True) -> Iterator[None]:
    """Checks that work of several streams in the block is ordered where it shares memory.

    A launch or operator that reads or writes what another stream has written, or writes what it has read, without an
    event or a wait of the host between the two, raises SanitizerError. With halt=False all findings are raised at
    torch.mps.synchronize(), or when the block ends. Memory that is freed while another stream may use it
    (Tensor.record_stream) is found too, and raised there in any case. It holds for all threads of the process, and needs
    no sanitizer's runtime: the sanitizers turn it on as well.

    Raises RuntimeError on a Mac.
    """
    if not _is_software:
        raise RuntimeError("metalops.debug.check_streams: only the software device checks streams")
    from . import _host

    before = _host.check_stream_order(True)
    halt_before = _host.set_sanitizer_halt(halt)
    try:
        yield
        _host.raise_kept_findings()
    finally:
        _host.set_sanitizer_halt(halt_before)
        _host.check_stream_order(before)


@functools.cache
def _prepare_sanitizing() -> None:
    """Prepares this process for sanitized launches, once."""
    from . import _host
    from .msl.targets.host import sanitizers

    reader = sanitizers.address_reader(sanitizers.host_for(sanitizers.loaded()))
    if reader is not None:
        _host.set_address_reader(reader)
    atexit.register(_fail_at_exit)


def _fail_at_exit() -> None:
    """Shows findings that nobody has waited for, and ends the process with status 1."""
    from . import _host

    findings = _host.take_kept_findings()
    if not findings:
        return
    print(f"metalops.debug.SanitizerError: {SanitizerError(findings)}", file=sys.stderr)
    _host.fail_at_exit()
