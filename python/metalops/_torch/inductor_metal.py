"""Corrections of the Metal code that Inductor writes, on a Mac as on the software device."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .internals import inductor_metal

_metal = inductor_metal()
_BARRIER = "threadgroup_barrier(metal::mem_flags::mem_device);"


def _float_function(name: str) -> Callable[..., str]:
    return staticmethod(lambda *args: f"{name}({', '.join(map(str, args))})")


class Overrides(_metal.Overrides):
    """Functions that torch leaves out of its Metal code, or writes in terms of others that lose their precision."""

    acosh = _float_function("metal::precise::acosh")
    asinh = _float_function("metal::precise::asinh")
    copysign = _float_function("metal::copysign")
    cosh = _float_function("metal::precise::cosh")
    exp2 = _float_function("metal::precise::exp2")
    log10 = _float_function("metal::precise::log10")
    log1p = _float_function("c10::metal::log1p")
    log2 = _float_function("metal::precise::log2")
    nextafter = _float_function("metal::nextafter")
    sinh = _float_function("metal::precise::sinh")

    @staticmethod
    def expm1(x):
        # exp(x) - 1 where that is exact enough; for small x the error of the difference cancels with that of
        # log(exp(x)).
        ops, one = _metal.ops, _metal.ops.constant(1.0, torch.float32)
        exp = ops.exp(x)
        rest = ops.sub(exp, one)
        quotient = ops.truediv(ops.mul(rest, x), ops.log(exp))
        quotient = ops.where(ops.eq(rest, ops.constant(0.0, torch.float32)), x, quotient)
        return ops.where(ops.lt(ops.abs(x), ops.constant(0.5, torch.float32)), quotient, rest)

    @staticmethod
    def hypot(a, b):
        ops, infinity = _metal.ops, _metal.ops.constant(float("inf"), torch.float32)
        a, b = ops.abs(a), ops.abs(b)
        large, small = ops.maximum(a, b), ops.minimum(a, b)
        ratio = ops.truediv(small, large)
        one = ops.constant(1.0, torch.float32)
        result = ops.mul(large, ops.sqrt(ops.add(one, ops.mul(ratio, ratio))))
        result = ops.where(ops.eq(large, ops.constant(0.0, torch.float32)), large, result)
        is_infinite = ops.logical_or(ops.eq(a, infinity), ops.eq(b, infinity))
        return ops.where(is_infinite, infinity, result)

    @staticmethod
    def logical_xor(a, b):
        return f"static_cast<bool>({a}) != static_cast<bool>({b})"

    @staticmethod
    def remainder(a, b):
        if not (a.dtype.is_floating_point or b.dtype.is_floating_point):
            return _metal.Overrides.remainder(a, b)
        ops = _metal.ops
        rest = ops.fmod(a, b)
        return ops.where(_is_of_other_sign(rest, b), ops.add(rest, b), rest)


def _is_of_other_sign(rest, b):
    """Returns true if the remainder of truncating division differs from that of floor division."""
    ops, zero = _metal.ops, _metal.ops.constant(0.0, torch.float32)
    return ops.logical_and(ops.ne(rest, zero), ops.ne(ops.lt(b, zero), ops.lt(rest, zero)))


def floor_divide(a, b):
    """Returns the floor of the quotient of two floating-point values, as in Python and torch: of the exact quotient,
    not of the rounded one, which may be larger."""
    ops, zero, one = _metal.ops, *(_metal.ops.constant(x, torch.float32) for x in (0.0, 1.0))
    rest, rounded = ops.fmod(a, b), ops.truediv(a, b)
    exact = ops.truediv(ops.sub(a, rest), b)
    exact = ops.where(_is_of_other_sign(rest, b), ops.sub(exact, one), exact)
    floor = ops.floor(exact)
    half = ops.constant(0.5, torch.float32)
    floor = ops.where(ops.gt(ops.sub(exact, floor), half), ops.add(floor, one), floor)
    floor = ops.where(ops.ne(exact, zero), floor, ops.copysign(zero, rounded))
    return ops.where(ops.eq(b, zero), rounded, floor)


def trunc_divide(a, b):
    """Returns the quotient of two floating-point values, rounded towards zero."""
    return _metal.ops.trunc(_metal.ops.truediv(a, b))


class Kernel(_metal.Kernel):
    """A kernel in which only one thread of a group stores a result of the whole group.

    In a reduction kernel a group of threads computes each element of the result, and all of its threads compute what
    follows the reduction. Torch lets all of them store that, too, which adds it once for each thread if the store is
    atomic or the kernel reads the buffer it stores to.
    """

    overrides = Overrides

    def __init__(self, tiling, **arguments):
        super().__init__(tiling, **arguments)
        self._stored_once: set[str] = set()

    def store(self, name, index, value, mode=None) -> None:
        if self.inside_reduction or not self.features.is_reduction():
            super().store(name, index, value, mode)
            return
        self._stored_once.add(name)
        self._store_once(name, lambda: super(Kernel, self).store(name, index, value, mode))

    def store_reduction(self, name, index, value) -> None:
        self._store_once(name, lambda: super(Kernel, self).store_reduction(name, index, value))

    def _store_once(self, name: str, store: Callable[[], None]) -> None:
        if self._input_also_written(name) is not None:
            self.stores.writeline(_BARRIER)  # all threads have read the overwritten elements
        stores, self.stores = self.stores, _metal.IndentedBuffer()
        store()
        lines, self.stores = self.stores, stores
        first = " && ".join(f"{tree.name} == 0" for tree in self.range_trees if tree.is_reduction)
        self.stores.splice(lines.map(lambda line: line.with_prefix(f"if ({first}) ")))

    def _input_also_written(self, name: str) -> str | None:
        """Returns the name under which a kernel that writes a buffer read it before, or None."""
        name = _metal.V.graph.scheduler.mutation_real_name.get(name, name)
        return self.args.input_buffers.get(name)

    def codegen_body(self) -> None:
        # The other threads must not read again what one thread stores: all have it in a variable in the scope of the
        # whole kernel.
        once = {k: x for k, x in self.cse.store_cache.items() if k in self._stored_once}
        super().codegen_body()
        self.cse.store_cache.update(once)
        self.cse.invalidated_stores -= once.keys()

    def codegen_kernel(self, name: str = "generated_kernel") -> str:
        code = super().codegen_kernel(name)
        if self.features.is_reduction():
            # Metal's compiler may read constant memory as often and as late as it likes.
            for buffer in self.args.output_buffers:
                read = self._input_also_written(buffer)
                if read is not None:
                    dtype = self.dtype_to_str(_metal.V.graph.get_dtype(buffer))
                    code = code.replace(
                        f"constant {dtype}* {read},", f"device const {dtype}* {read},"
                    )
        return code


class Scheduling(_metal.Scheduling):
    """Generates the kernels above; kernels of the subgraphs of a function get distinct names."""

    kernel_type = Kernel

    def define_kernel(self, src_code, node_schedule, kernel) -> str:
        wrapper = _metal.V.graph.wrapper_code
        if not _metal.V.graph.cpp_wrapper and src_code not in wrapper.src_to_kernel:
            # torch counts anew in each subgraph, and compiles all as one source.
            self._kernel_fn_counter = int(wrapper.next_kernel_suffix())
        return super().define_kernel(src_code, node_schedule, kernel)
