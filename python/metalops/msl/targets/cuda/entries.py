"""Writes the entry points of kernels on a GPU, each of which computes the thread's position and fetches the arguments,
and a table of the properties that depend on template arguments."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from ...analysis.program import Instance, Kernel, Parameter
from ...dialect import names
from ...dialect.assembly import Piece, in_namespaces, parameter_types
from ...dialect.rewrite import Rewritten
from .sites import Sites

_SUPPORT = names.SUPPORT
_NUMBERS = re.compile(
    r"(?:\b(?:constant|const)\b|\s)*(?:bool|half|float|u?(?:char|short|int|long))[234]?(?:\s|\bconst\b)*\*"
)
HANDLES = ("texture", "sampler")
_OF_THE_GRID = {"thread_position_in_grid", "threads_per_grid", "grid_size", "grid_origin"}


class Entry(NamedTuple):
    """The entry points of a kernel. arguments: the kinds of those that are no builtins, in order:
    "pointer", "numbers" (a pointer to constant numbers, which may be passed with the launch), "value" (a reference to
    constant memory), "reference", "tensor" (of a type that may be a tensor by a handle, or an alias of a pointer),
    "threadgroup", "texture" or "sampler". handles: the names and types of textures and samplers. is_fast: true if the arguments can be passed one by one. is_free: true if threads cannot tell which
    group they are in, so that groups may have any size."""

    number: int
    arguments: tuple[str, ...]
    handles: tuple[tuple[str, str], ...]
    is_fast: bool
    is_free: bool

    @property
    def brings_numbers(self) -> bool:
        """True if there is an entry for which all the constant numbers are passed with the launch."""
        return self.is_fast and "numbers" in self.arguments


def _is_fast(kernel: Kernel) -> bool:
    """Returns true if all arguments are values or pointers; each launch checks alignment and aliasing."""
    return all(
        p.kind == "builtin" or (p.kind == "buffer" and (p.is_pointer or _is_value(p)))
        for p in kernel.parameters
    )


def _is_value(parameter: Parameter) -> bool:
    return parameter.is_reference and "constant" in parameter.type.split()


def _is_numbers(parameter: Parameter) -> bool:
    return "constant" in parameter.type.split() and bool(_NUMBERS.fullmatch(parameter.type.strip()))


def _kind(parameter: Parameter) -> str:
    if parameter.kind != "buffer":
        return parameter.kind
    if _is_value(parameter):
        return "value"
    if not parameter.is_pointer:
        return "reference" if parameter.is_reference else "tensor"
    return "numbers" if _is_numbers(parameter) else "pointer"


class Entries:
    def __init__(self, rewritten: Rewritten, sites: Sites, has_matrices: bool):
        self.has_matrices = has_matrices
        self.rewritten = rewritten
        self.program = rewritten.program
        self.source = rewritten.program.source
        self.edits = rewritten.edits
        self.sites = sites
        self.instances = [i for i in self.program.instances if not i.kernel.unsupported]

    def table(self) -> dict[str, Entry]:
        """Returns the entries by name of the kernel."""
        return {
            i.name: Entry(
                number,
                tuple(_kind(p) for p in i.kernel.parameters if p.kind != "builtin"),
                tuple((p.name or "", p.type) for p in i.kernel.parameters if p.kind in HANDLES),
                _is_fast(i.kernel),
                self._is_free(i),
            )
            for number, i in enumerate(self.instances)
        }

    def _is_free(self, instance: Instance) -> bool:
        kernel = instance.kernel
        return (
            not self.rewritten.calls.synchronises(instance)
            and not kernel.threadgroup_variables
            and all(
                p.kind in ("buffer", *HANDLES)
                or (p.kind == "builtin" and p.attribute in _OF_THE_GRID)
                for p in kernel.parameters
            )
        )

    def pieces(self) -> Iterator[Piece]:
        for number, instance in enumerate(self.instances):
            yield self._instance(number, instance)

    def _instance(self, number: int, instance: Instance) -> Piece:
        kernel = instance.kernel
        expression = self.edits.text_of(*instance.expression)
        takes_site = self.sites.takes_site(kernel.function)
        if instance.signature is None:
            signature = f"decltype(&{expression})"
        else:
            types = parameter_types(self.rewritten, instance.signature)
            if takes_site:
                types.insert(0, f"{names.ABI}::Site")
            signature = f"void (*)({', '.join(types)})"
        types = f"msl_types_{number}"
        values = []
        # Arguments that are passed one by one: declarations of parameters, if any, and values.
        apart, brought = [], []
        limit, text_of_limit = self._limit(number, kernel, expression)
        # Bounds the registers by the number of threads in a group; blocks are whole warps.
        bounds = f"__launch_bounds__(({limit} + 31) / 32 * 32) " if kernel.max_threads else ""
        facts = [limit]
        tensors = []
        handles, entries = [], ["0"]
        for position, p in enumerate(kernel.parameters):
            kind = f"{types}::parameter<{position + takes_site}>"
            if p.kind == "builtin":
                value = f"{_SUPPORT}::builtin<{kind}>::make(msl_place.{p.attribute}(msl_extent))"
                values.append(value)
                apart.append(("", value))
                brought.append(("", value))
                continue
            if p.kind in HANDLES:
                values.append(f"{_SUPPORT}::handle<{kind}>(msl_launch, {' + '.join(entries)})")
                entries.append(f"{_SUPPORT}::entries_of<{kind}>")
                is_on = "1" if p.switch is None else f"bool({p.switch})"
                handles.append(f"{{{p.index}, {is_on}, {_SUPPORT}::texture_argument<{kind}>}}")
                continue
            if _kind(p) == "tensor" and self.program.has_tensors:
                row = f"::msl::msl_impl::tensor_argument_of<{kind}>"
                if p.switch is not None:
                    row = f"bool({p.switch}) ? {row} : {names.ABI}::TensorArgument{{}}"
                tensors.append(row)
            what = "buffer" if p.kind == "buffer" else "threadgroup"
            values.append(f"{_SUPPORT}::{what}<{kind}>(msl_launch, {p.index})")
            facts.append(
                f"{p.index}, {_SUPPORT}::element_bytes<{kind}>, {_SUPPORT}::is_writable<{kind}>"
            )
            name = f"msl_argument_{position}"
            if _is_value(p):
                plain = f"{_SUPPORT}::plain_value<{kind}>::type"
                apart.append((f"const __grid_constant__ {plain} {name}", name))
            else:
                apart.append((f"{kind} __restrict__ {name}", f"{_SUPPORT}::aligned({name})"))
            if _is_numbers(p):
                numbers = f"const __grid_constant__ {_SUPPORT}::Numbers {name}"
                brought.append((numbers, f"{_SUPPORT}::brought<{kind}>({name})"))
            else:
                brought.append(apart[-1])
        declared = _table("TensorArgument", f"msl_tensors_{number}", tensors)
        declared += _table("HandleArgument", f"msl_handles_{number}", handles)
        launch = f"const __grid_constant__ {names.ABI}::Launch msl_launch"
        # Maps of matrices that operations may read: include/msl/cuda/copy_engine.h.
        maps, take_maps = [], ""
        if self.program.has_tensors:
            maps = [f"const __grid_constant__ {names.ABI}::Maps msl_maps"]
            take_maps = f"  {_SUPPORT}::take_maps(msl_maps);\n"
        text = f"""{text_of_limit}typedef {_SUPPORT}::signature<{signature}> {types};
extern "C" __device__ const {names.ABI}::u32 msl_facts_{number}[] = {{{", ".join(facts)}}};
{declared}extern "C" __global__ void {bounds}msl_kernel_{number}({", ".join([launch, *maps])}) {{
{take_maps}  const {names.ABI}::Extent& msl_extent = msl_launch.extent;
  const {_SUPPORT}::Place<false> msl_place(msl_extent);
  if (!msl_place.exists) return;
{self._call(expression, takes_site, values)}}}
"""
        if _is_fast(kernel):

            def call(passed: list[tuple[str, str]]) -> str:
                return self._call(expression, takes_site, [value for _, value in passed])

            fast, brings = f"{bounds}msl_fast_{number}", f"{bounds}msl_brings_{number}"
            last = [(declaration, "") for declaration in maps]
            text += _entry_with([*apart, *last], fast, take_maps + call(apart), is_line=True)
            if brought != apart:
                text += _entry_with(
                    [*brought, *last], brings, take_maps + call(brought), is_line=False
                )
        return Piece(in_namespaces(instance.path, text), instance.offset)

    def _limit(self, number: int, kernel: Kernel, expression: str) -> tuple[str, str]:
        """Returns the limit on a group's threads, as a constant expression, and the declaration that it needs: it may
        depend on the kernel's template parameters."""
        text, (_, begins, arguments) = kernel.max_threads or "0", expression.partition("<")
        if not begins or not re.search(r"[A-Za-z_]", text):
            return text, ""
        header = kernel.function.template_headers[-1]
        parameters = self.edits.text_of(header.start_byte, header.end_byte)
        name = f"msl_limit_{number}"
        declared = f"template {parameters} constexpr {names.ABI}::u32 {name} = {text};\n"
        return f"{name}<{arguments}", declared

    def _call(self, expression: str, takes_site: bool, values: list[str]) -> str:
        """Returns the call of a kernel. With simdgroup matrices it is compiled a second time for full simdgroups of 32
        threads, for which tensor core code need not check the mask."""

        def call(*site: str) -> str:
            return f"{expression}({', '.join([*site, *values])});"

        if not takes_site:
            return f"  {call()}\n"
        if not self.has_matrices:
            return f"  {call('msl_place.site')}\n"
        whole = f"msl_place.site.mask == {names.ABI}::Site{{}}.mask"
        every, some = call(f"{names.ABI}::Site{{}}"), call("msl_place.site")
        return f"  if ({whole}) {{\n    {every}\n  }} else {{\n    {some}\n  }}\n"


def _table(kind: str, name: str, rows: list[str]) -> str:
    """Returns the declaration of a table that the host reads; empty without rows."""
    if not rows:
        return ""
    return f'extern "C" __device__ const {names.ABI}::{kind} {name}[] = {{{", ".join(rows)}}};\n'


def _entry_with(passed: list[tuple[str, str]], name: str, call: str, is_line: bool) -> str:
    """Returns an entry that takes the arguments one by one. passed: declarations and values. name: with the specifiers
    before it. call: of the kernel. is_line: true for one-dimensional grids."""
    extent = f"const __grid_constant__ {names.ABI}::Extent msl_extent"
    parameters = ", ".join([extent, *(declaration for declaration, _ in passed if declaration)])
    return f"""extern "C" __global__ void {name}({parameters}) {{
  const {_SUPPORT}::Place<{str(is_line).lower()}> msl_place(msl_extent);
  if (!msl_place.exists) return;
{call}}}
"""
