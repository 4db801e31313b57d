"""Launch plans on CUDA tensors: asks the plan functions of csrc/plans what an operator launches, and runs it. Also calls
the checks of arguments there, on which no device depends.

A plan function is called by name with tensors (None for an absent one) and numbers:

    run("attention_decode", query, out=out, lse=lse, query=query, ...)

The functions are in the compiled parts of the package; where these cannot be used, in a library without torch, which the
package brings. In a source tree that is not built, this library is compiled at its first use and kept in the cache of
compiled kernels.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import struct
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ... import _locks
from . import kernel_file

_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_KEPT = 512  # plans

# ---- the structs of csrc/plans/plan.h and entry.h --------------------------------------------------

_MOST_DIMS = 4
_ALIGNMENT = 64  # View::kMemory
_VIEW = struct.Struct(f"<4i?7xq{2 * _MOST_DIMS}q")
_DEVICE = struct.Struct("<q???5x")

# By the numbers of c10::ScalarType.
_DTYPES = [
    getattr(torch, name)
    for name in (
        *("uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"),
        *("complex32", "complex64", "complex128", "bool", "qint8", "quint8", "qint32", "bfloat16"),
        *("quint4x2", "quint2x4", "bits1x8", "bits2x4", "bits4x2", "bits8", "bits16"),
        *("float8_e5m2", "float8_e4m3fn", "float8_e5m2fnuz", "float8_e4m3fnuz"),
        *("uint16", "uint32", "uint64", *(f"uint{n}" for n in range(1, 8))),
        *(*(f"int{n}" for n in range(1, 8)), "float8_e8m0fnu", "float4_e2m1fn_x2"),
    )
]
_NUMBERS = {dtype: number for number, dtype in enumerate(_DTYPES)}


class _Field(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("kind", ctypes.c_int32), ("offset", ctypes.c_int32)]


class _Entry(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("call_bytes", ctypes.c_int32),
        ("fields_count", ctypes.c_int32),
        ("fields", ctypes.POINTER(_Field)),
        ("defaults", ctypes.c_void_p),
        ("add_steps", ctypes.c_void_p),
    ]


class _View(ctypes.Structure):
    _fields_ = [
        ("buffer", ctypes.c_int32),
        ("type", ctypes.c_int32),
        ("dims", ctypes.c_int32),
        ("alignment", ctypes.c_int32),
        ("is_conj", ctypes.c_bool),
        ("offset", ctypes.c_int64),
        ("sizes", ctypes.c_int64 * _MOST_DIMS),
        ("strides", ctypes.c_int64 * _MOST_DIMS),
    ]


class _Argument(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int32), ("size", ctypes.c_int32), ("value", ctypes.c_void_p)]


class _Grid(ctypes.Structure):
    _fields_ = [
        ("threads", ctypes.c_uint64 * 3),
        ("group", ctypes.c_uint64 * 3),
        ("dims", ctypes.c_int32),
        ("may_shrink", ctypes.c_bool),
    ]


class _Step(ctypes.Structure):
    _fields_ = [
        ("kind", ctypes.c_int32),
        ("arguments_count", ctypes.c_int32),
        ("family", ctypes.c_char_p),
        ("has_products", ctypes.c_bool),
        ("name_parts", ctypes.c_char_p * 8),
        ("name_count", ctypes.c_int32),
        ("grid", _Grid),
        ("arguments", _Argument * 31),
        ("views", _View * 3),
        ("value", ctypes.c_double),
        ("alpha", ctypes.c_double),
        ("beta", ctypes.c_double),
    ]


class _Buffer(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int32),
        ("is_given", ctypes.c_bool),
        ("elements", ctypes.c_int64),
    ]


_LAUNCH, _COPY, _FILL, _PRODUCT = range(4)
_NOTHING, _IN_VIEW, _BYTES, _ERRORS = range(4)
_FIELD_VIEW, _FIELD_FLOAT, _FIELD_INTEGER, _FIELD_BOOL, _FIELD_OPERAND, _FIELD_TEXT, _FIELD_DTYPE, _FIELD_BOOLS = range(8)  # fmt: skip
_FORMATS = {_FIELD_FLOAT: "<d", _FIELD_INTEGER: "<q", _FIELD_BOOL: "<?"}
# plans::ErrorKind; -1 is TooLarge.
_ERRORS_BY_KIND = (RuntimeError, ValueError, NotImplementedError)

# ---- plans -----------------------------------------------------------------------------------------


class Place(NamedTuple):
    """A strided tensor in a buffer of a plan; offset, sizes and strides count elements."""

    buffer: int
    dtype: torch.dtype
    offset: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    is_conj: bool


class Launch(NamedTuple):
    """A launch of a plan. arguments: by the kernel's buffers: Places, bytes, ERRORS or None. group: None leaves it to
    the device."""

    family: str
    kernel: str
    has_products: bool
    grid: tuple[int, ...]
    group: tuple[int, ...] | None
    arguments: tuple[Place | bytes | str | None, ...]


class Copy(NamedTuple):
    to: Place
    source: Place


class Fill(NamedTuple):
    place: Place
    value: float


class Product(NamedTuple):
    """result = beta result + alpha a b, batches of matrices."""

    result: Place
    a: Place
    b: Place
    alpha: float
    beta: float


ERRORS = "errors"  # stands for the buffer in which kernels report errors


class Plan(NamedTuple):
    """given: the number of the caller's tensors, which are the first buffers. memories: dtype and elements of the
    buffers behind them. results: those of them that the caller gets."""

    given: int
    memories: tuple[tuple[torch.dtype, int], ...]
    steps: tuple[Launch | Copy | Fill | Product, ...]
    results: tuple[Place, ...] = ()


class Operand(NamedTuple):
    """A tensor as checks of arguments see it."""

    dtype: torch.dtype
    sizes: tuple[int, ...]


class TooLarge(RuntimeError):
    """The sizes of a call are beyond what its kernels, or the launches of a GPU, can take."""


class Limits(NamedTuple):
    """The device's: plans::Device of csrc/plans/plan.h."""

    multiprocessors: int = 0
    a_thread_for_each_element: bool = False
    has_tensors: bool = False
    has_warpgroups: bool = False


def _place(view: _View) -> Place:
    dims = view.dims
    return Place(
        view.buffer,
        _DTYPES[view.type],
        view.offset,
        tuple(view.sizes[:dims]),
        tuple(view.strides[:dims]),
        view.is_conj,
    )


def _argument(argument: _Argument) -> Place | bytes | str | None:
    if argument.kind == _IN_VIEW:
        return _place(_View.from_address(argument.value))
    if argument.kind == _BYTES:
        return ctypes.string_at(argument.value, argument.size)
    return ERRORS if argument.kind == _ERRORS else None


def _step(step: _Step, kernel: str) -> Launch | Copy | Fill | Product:
    views = step.views
    if step.kind == _COPY:
        return Copy(_place(views[0]), _place(views[1]))
    if step.kind == _FILL:
        return Fill(_place(views[0]), step.value)
    if step.kind == _PRODUCT:
        return Product(*map(_place, views), step.alpha, step.beta)
    grid, dims = step.grid, step.grid.dims
    return Launch(
        step.family.decode(),
        kernel,
        step.has_products,
        tuple(grid.threads[:dims]),
        tuple(grid.group[:dims]) if grid.group[0] else None,
        tuple(_argument(step.arguments[i]) for i in range(step.arguments_count)),
    )


# ---- the library -----------------------------------------------------------------------------------


def _library_path() -> str:
    from ... import _problem
    from ...build import plans
    from ...msl import cache

    if _problem is None:
        from ... import _C

        return _C.__file__
    built = os.path.join(_PACKAGE, plans.NAME)
    if os.path.exists(built):
        return built
    root = kernel_file.root()
    digest = hashlib.sha256()
    for name in (*plans.sources(root), *plans.headers(root)):
        with open(os.path.join(root, name), "rb") as stream:
            digest.update(name.encode() + b"\0" + stream.read())
    key = cache.key_of("plans", digest.hexdigest())
    return cache.lookup(key) or cache.store(key, [], lambda path: plans.build_plans(root, path))


class _Functions:
    """The plan functions of a library."""

    def __init__(self, path: str):
        library = ctypes.CDLL(path)
        pointers = {
            "metalops_plan_entries": ctypes.POINTER(_Entry),
            "metalops_plan_sizes": ctypes.POINTER(ctypes.c_int64),
            "metalops_plan_make": ctypes.c_void_p,
            "metalops_plan_error": ctypes.c_char_p,
            "metalops_plan_error_kind": ctypes.c_int32,
            "metalops_plan_free": None,
            "metalops_plan_steps_count": ctypes.c_int64,
            "metalops_plan_step": ctypes.POINTER(_Step),
            "metalops_plan_kernel": ctypes.c_char_p,
            "metalops_plan_buffers_count": ctypes.c_int64,
            "metalops_plan_buffers": ctypes.POINTER(_Buffer),
            "metalops_plan_results_count": ctypes.c_int64,
            "metalops_plan_results": ctypes.POINTER(_View),
        }
        for name, result in pointers.items():
            getattr(library, name).restype = result
        self._library = library
        here = [_VIEW.size, *map(ctypes.sizeof, (_Argument, _Step, _Buffer)), _DEVICE.size]
        there = library.metalops_plan_sizes()[: len(here)]
        if here != there:
            raise RuntimeError(
                f"{path} is of another version: structs of {there} bytes, not {here}"
            )
        count = ctypes.c_int64()
        entries = library.metalops_plan_entries(ctypes.byref(count))
        self._entries = {entries[i].name.decode(): entries[i] for i in range(count.value)}
        self._fields = {
            name: tuple(
                (f.name.decode(), f.kind, f.offset) for f in entry.fields[: entry.fields_count]
            )
            for name, entry in self._entries.items()
        }
        self._defaults = {
            name: ctypes.string_at(entry.defaults, entry.call_bytes)
            for name, entry in self._entries.items()
        }
        self._plans: OrderedDict[tuple, Plan] = OrderedDict()
        self._lock = _locks.lock()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._entries)

    def fields(self, name: str) -> tuple[tuple[str, int, int], ...]:
        """Returns the name, kind and offset of each field of a plan function's call."""
        return self._fields[name]

    def plan(
        self, name: str, limits: Limits, arguments: dict[str, Tensor | float | None]
    ) -> tuple[Plan, list[Tensor]]:
        """Returns the plan of a call, and its tensors in the order of the first buffers. An argument that is left out, or
        is None, has the call's default: a tensor is absent.

        Raises TooLarge, and TypeError for an argument that the function does not have.
        """
        call = bytearray(self._defaults[name])
        tensors: list[Tensor] = []
        missing = set(arguments)
        for field, kind, offset in self._fields[name]:
            missing.discard(field)
            value = arguments.get(field)
            if value is None:
                continue
            if kind != _FIELD_VIEW:
                struct.pack_into(_FORMATS[kind], call, offset, value)
            else:
                _pack_view(call, offset, len(tensors), value)
                tensors.append(value)
        if missing:
            raise TypeError(f"the plan function {name} has no arguments {sorted(missing)}")
        key = name, limits, bytes(call)
        with self._lock:
            found = self._plans.get(key)
            if found is None:
                found = self._plans[key] = self._make(name, limits, call, len(tensors))
                if len(self._plans) > _KEPT:
                    self._plans.popitem(last=False)
            else:
                self._plans.move_to_end(key)
        return found, tensors

    def check(self, name: str, arguments: dict[str, object]) -> None:
        """Calls a check of arguments; raises what it finds. An argument that is None has the call's default: a tensor is
        absent."""
        call = bytearray(self._defaults[name])
        kept = []  # memory to which the call points
        for field, kind, offset in self._fields[name]:
            value = arguments[field]
            if value is not None:
                kept.append(_pack_argument(call, kind, offset, value))
        self._make(name, Limits(), call, 0)

    def _make(self, name: str, limits: Limits, call: bytearray, given: int) -> Plan:
        library = self._library
        result = library.metalops_plan_make(
            ctypes.byref(self._entries[name]),
            (ctypes.c_char * len(call)).from_buffer(call),
            ctypes.c_int64(given),
            _DEVICE.pack(*limits),
        )
        if result is None:
            kind = library.metalops_plan_error_kind()
            error = TooLarge if kind < 0 else _ERRORS_BY_KIND[kind]
            raise error(library.metalops_plan_error().decode())
        result = ctypes.c_void_p(result)
        try:
            buffers = library.metalops_plan_buffers(result)
            count = library.metalops_plan_buffers_count(result)
            plan = Plan(
                given,
                tuple((_DTYPES[buffers[i].type], buffers[i].elements) for i in range(given, count)),
                tuple(
                    _step(
                        library.metalops_plan_step(result, ctypes.c_int64(i)).contents,
                        library.metalops_plan_kernel(result, ctypes.c_int64(i)).decode(),
                    )
                    for i in range(library.metalops_plan_steps_count(result))
                ),
                tuple(
                    _place(library.metalops_plan_results(result)[i])
                    for i in range(library.metalops_plan_results_count(result))
                ),
            )
        finally:
            library.metalops_plan_free(result)
        return plan


def _pack_argument(call: bytearray, kind: int, offset: int, value: object) -> object:
    """Packs a field of a check's call, and returns the memory to which it points, if any."""
    if kind == _FIELD_OPERAND:
        sizes = (ctypes.c_int64 * len(value.sizes))(*value.sizes)
        about = ctypes.addressof(sizes), len(sizes), _NUMBERS[value.dtype]
        struct.pack_into("<q2i", call, offset, *about)
        return sizes
    if kind == _FIELD_TEXT:
        text = ctypes.create_string_buffer(value.encode())
        struct.pack_into("<2q", call, offset, ctypes.addressof(text), len(text) - 1)
        return text
    if kind == _FIELD_DTYPE:
        struct.pack_into("<i", call, offset, _NUMBERS[value])
    elif kind == _FIELD_BOOLS:
        struct.pack_into(f"<{len(value)}?", call, offset, *value)
    else:
        struct.pack_into(_FORMATS[kind], call, offset, value)
    return None


def _pack_view(call: bytearray, offset: int, buffer: int, x: Tensor) -> None:
    dims = x.dim()
    if dims > _MOST_DIMS:
        raise ValueError(f"a plan takes tensors of at most {_MOST_DIMS} dimensions, not {dims}")
    padding = (0,) * (_MOST_DIMS - dims)
    address = x.data_ptr()
    alignment = min(address & -address, _ALIGNMENT) or _ALIGNMENT
    _VIEW.pack_into(
        *(call, offset, buffer, _NUMBERS[x.dtype], dims, alignment, x.is_conj(), 0),
        *(*x.shape, *padding, *x.stride(), *padding),
    )


@functools.cache
def functions() -> _Functions:
    """Returns the plan functions, which are compiled first if need be."""
    return _Functions(_library_path())


# ---- running ---------------------------------------------------------------------------------------

Launcher = Callable[[Launch, Sequence[Tensor | bytes | str | None]], None]


def run(name: str, like: Tensor, **arguments: Tensor | float | None) -> list[Tensor]:
    """Runs the plan of a call on the GPU of `like`, and returns its results. Raises TooLarge before anything runs."""
    limits = Limits(
        kernel_file.multiprocessors(like),
        has_tensors=kernel_file.has_tensors(),
        has_warpgroups=kernel_file.has_warpgroups(like),
    )
    plan, tensors = functions().plan(name, limits, arguments)
    return execute(plan, tensors, like, lambda launch, values: _launch(launch, values, like))


def execute(plan: Plan, tensors: Sequence[Tensor], like: Tensor, launch: Launcher) -> list[Tensor]:
    """Runs a plan's steps, and returns its results. tensors: the first buffers. like: on the device. launch: runs a kernel; it gets a tensor
    that begins where the kernel's argument does, bytes, ERRORS or None."""
    buffers = [*tensors, *(like.new_empty(n, dtype=dtype) for dtype, n in plan.memories)]

    def tensor(place: Place) -> Tensor:
        x = buffers[place.buffer]
        base = x.conj() if x.is_conj() else x  # memory as it is
        if place.dtype == torch.float32 and x.is_complex():
            base = torch.view_as_real(base)
        if (place.offset, place.sizes, place.strides) != (0, base.shape, base.stride()):
            base = base.as_strided(place.sizes, place.strides, base.storage_offset() + place.offset)
        return base.conj() if place.is_conj else base

    # Where a kernel's argument begins, its sizes and strides do not matter. Making a tensor takes about as long as a
    # launch, and loops launch with the same parts again and again.
    beginnings: dict[tuple[int, int, torch.dtype, bool], Tensor] = {}

    def beginning(place: Place) -> Tensor:
        x = buffers[place.buffer]
        if place.offset == 0 and x.is_conj() == place.is_conj:
            return x
        key = place.buffer, place.offset, place.dtype, place.is_conj
        found = beginnings.get(key)
        if found is None:
            found = beginnings[key] = tensor(place)
        return found

    for step in plan.steps:
        if isinstance(step, Launch):
            launch(step, [beginning(a) if isinstance(a, Place) else a for a in step.arguments])
        elif isinstance(step, Copy):
            tensor(step.to).copy_(tensor(step.source))
        elif isinstance(step, Fill):
            tensor(step.place).fill_(step.value)
        else:
            a, b = tensor(step.a), tensor(step.b)
            tensor(step.result).baddbmm_(a, b, beta=step.beta, alpha=step.alpha)
    return [tensor(place) for place in plan.results]


def _launch(launch: Launch, values: Sequence[Tensor | bytes | str | None], like: Tensor) -> None:
    errors = kernel_file.errors_of(like)
    arguments = [errors if v is ERRORS else 0 if v is None else v for v in values]
    kernel_file.launch(
        launch.family,
        launch.kernel,
        launch.has_products and kernel_file.has_tensors(),
        *(arguments, launch.grid, launch.group),
    )
