"""Declarations of a Metal source whose values the host chooses: function constants, and threadgroup memory of the
kernels' arguments."""

from __future__ import annotations

import ast
import functools
import operator
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from .. import msl
from .._textures.argument import HandleArgument, texture_argument
from ..msl.analysis.program import Parameter, Program, declared_identifier
from ..msl.source.preprocess import Preprocessed
from .values import Value, bytes_of

THREADGROUP_BYTES = 32 * 1024  # of an Apple GPU's threadgroup
_IS_DEFINED = re.compile(r"\bis_function_constant_defined\s*\(\s*([\w:\s]+?)\s*\)")
_HANDLE = re.compile(r"(?:const\s+)?(?:metal::)?tensor\s*<.*>\s*$", re.DOTALL)
_WORD = re.compile(r"[A-Za-z_]\w*")
_OPERATIONS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.LShift: operator.lshift,
    ast.BitOr: operator.or_,
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}


@dataclass(frozen=True)
class Constant:
    """A function constant. index: None if its text is no number. type: as written."""

    name: str
    index: int | None
    index_text: str
    type: str


@dataclass
class Declared:
    """The function constants and threadgroup arguments of a source. constants: in order. needed: by kernel, the names
    of the constants without which it is not complete. memory: by kernel, the indices of its threadgroup arguments, and
    their names. switched: by kernel, the indices of those that a function constant switches on. handles: by kernel, the
    arguments that are tensors. textures: by kernel, those that are textures and samplers, with what switches them on, as
    written, or None."""

    constants: list[Constant] = field(default_factory=list)
    needed: dict[str, list[str]] = field(default_factory=dict)
    memory: dict[str, dict[int, str]] = field(default_factory=dict)
    switched: dict[str, set[int]] = field(default_factory=dict)
    handles: dict[str, list[str]] = field(default_factory=dict)
    textures: dict[str, list[tuple[HandleArgument, str | None]]] = field(default_factory=dict)

    def values(self, given: Mapping[int | str, Value] | None) -> dict[int, bytes]:
        """Returns the bytes of the values of constants, given by index or name, by index.

        Raises ValueError for unknown constants and for values that do not fit, TypeError for values of other types.
        """
        found: dict[int, bytes] = {}
        for key, value in (given or {}).items():
            constants = self._meant(key)
            first = constants[0]
            index = key if isinstance(key, int) else first.index
            if len({c.type for c in constants}) > 1 and not isinstance(value, bytes):
                raise TypeError(
                    f"function constant {key!r}: which one it is, is not known here, so it takes bytes"
                )
            found[index] = bytes_of(value, first.type, f"function constant {key!r}")
        return dict(sorted(found.items()))

    def _meant(self, key: int | str) -> list[Constant]:
        """Returns the constants that a name or an index may mean."""
        if isinstance(key, str):
            found = [c for c in self.constants if c.name == key]
            if found and found[0].index is None:
                raise ValueError(
                    f"the index of function constant {key!r} is {found[0].index_text!r}: give its value by that number"
                )
        elif isinstance(key, bool) or not isinstance(key, int):
            raise TypeError(f"a function constant is an index or a name, but got {key!r}")
        else:
            found = [c for c in self.constants if c.index == key]
            found = found or [c for c in self.constants if c.index is None]
        if not found:
            names = ", ".join(f"{c.name} ({c.index_text})" for c in self.constants) or "none"
            raise ValueError(f"the kernel library has no function constant {key!r}; it has {names}")
        return found

    def check_memory(self, given: Mapping[int, int] | None) -> dict[int, int]:
        """Returns the bytes of threadgroup arguments, by index. Raises ValueError for unknown indices and for sizes
        that no threadgroup has, TypeError for non-numbers."""
        sizes = dict(given or {})
        for index, size in sizes.items():
            for what, number in (("index", index), ("size", size)):
                if isinstance(number, bool) or not isinstance(number, int):
                    raise TypeError(
                        f"threadgroup_memory takes {{index: bytes}}, but got the {what} {number!r}"
                    )
            if not any(index in arguments for arguments in self.memory.values()):
                known = sorted({i for arguments in self.memory.values() for i in arguments})
                raise ValueError(
                    f"no kernel has a threadgroup argument {index}; there are {', '.join(map(str, known)) or 'none'}"
                )
            if size <= 0:
                raise ValueError(f"threadgroup argument {index} cannot have {size} bytes")
        for kernel, arguments in self.memory.items():
            total = sum((sizes.get(index, 0) + 15) // 16 * 16 for index in arguments)
            if total > THREADGROUP_BYTES:
                raise ValueError(
                    f"the threadgroup arguments of kernel {kernel!r} take {total} bytes, but a threadgroup has "
                    f"{THREADGROUP_BYTES}"
                )
        return sizes

    def textures_of(self, kernel: str, values: Mapping[int, bytes]) -> list[HandleArgument]:
        """Returns the textures and samplers of a kernel. values: of constants, by index."""
        given = {c.name: values.get(c.index, b"") for c in self.constants}
        # A switch that is more than a constant's name has an unknown value, so that nothing need be bound.
        return [
            argument
            if switch is None or any(given.get(switch.strip(), b""))
            else replace(argument, is_on=False)
            for argument, switch in self.textures.get(kernel, ())
        ]

    def check_complete(self, kernel: str, values: Collection[int], sizes: Collection[int]) -> None:
        """Raises ValueError if a kernel needs a constant or threadgroup memory that was not given."""
        for constant in self.constants:
            if constant.name in self.needed.get(kernel, ()) and constant.index is not None:
                if constant.index not in values:
                    raise ValueError(
                        f"kernel {kernel!r} needs a value of function constant {constant.name!r} (index "
                        f"{constant.index}): give it in `constants`"
                    )
        for index, name in self.memory.get(kernel, {}).items():
            if index not in sizes and index not in self.switched[kernel]:
                raise ValueError(
                    f"kernel {kernel!r} needs the size of its threadgroup argument {name!r} (index {index}): give it in "
                    "`threadgroup_memory`"
                )


def of_program(program: Program) -> Declared:
    """Returns the declarations of a program."""
    source = program.source
    found = Declared()
    initialisers: dict[str, set[str]] = {}  # words in the initialisers of other constants
    for node, _, head in program.declarations:
        attributes = source.attributes_in(head, source.next_code(node.end_byte))
        index = next(
            (a.arguments or "0" for a in attributes if a.name == "function_constant"), None
        )
        for declarator in node.children_by_field_name("declarator"):
            identifier = declared_identifier(declarator)
            if identifier is None:
                continue
            name = source.node_text(identifier)
            if index is None:
                value = declarator.child_by_field_name("value")
                if value is not None:
                    words = _words(source.masked_text(value))
                    initialisers[name] = initialisers.get(name, set()) | words
            else:
                type_text = source.masked_text(node.child_by_field_name("type"))
                found.constants.append(Constant(name, number_in(index), index, type_text))
    for instance in program.instances:
        found.memory[instance.name] = {
            number: parameter.name or ""
            for parameter in instance.kernel.parameters
            if parameter.kind == "threadgroup"
            and (number := number_in(parameter.index)) is not None
        }
        found.switched[instance.name] = {
            number
            for parameter in instance.kernel.parameters
            if parameter.kind == "threadgroup"
            and parameter.switch is not None
            and (number := number_in(parameter.index)) is not None
        }
        found.handles[instance.name] = [
            parameter.name or ""
            for parameter in instance.kernel.parameters
            if parameter.kind == "buffer" and _HANDLE.match(parameter.type)
        ]
        found.textures[instance.name] = [
            (_handle(parameter), parameter.switch)
            for parameter in instance.kernel.parameters
            if parameter.kind in ("texture", "sampler")
        ]
    if found.constants:
        _find_needed(program, found, initialisers)
    return found


def _handle(parameter: Parameter) -> HandleArgument:
    index = number_in(parameter.index)
    named = parameter.name or "", parameter.type, -1 if index is None else index
    return texture_argument(*named) if parameter.kind == "texture" else HandleArgument(*named)


def _find_needed(program: Program, found: Declared, initialisers: dict[str, set[str]]) -> None:
    masked = program.source.masked
    asked = {m.group(1).split(":")[-1].strip() for m in _IS_DEFINED.finditer(masked)}
    needed = {c.name for c in found.constants} - asked
    runs = dict(initialisers)
    for function in program.functions:
        words = _words(program.source.masked_text(function.node))
        runs[function.name] = runs.get(function.name, set()) | words
    for instance in program.instances:
        seen: set[str] = set()
        waiting = [
            word
            for node in (instance.kernel.function.node, instance.signature)
            if node is not None
            for word in _words(program.source.masked_text(node))
        ]
        while waiting:
            word = waiting.pop()
            if word not in seen:
                seen.add(word)
                waiting += runs.get(word, ())
        found.needed[instance.name] = [c.name for c in found.constants if c.name in needed & seen]


@functools.lru_cache(maxsize=64)
def of_source(source: str, options: msl.Options) -> Declared:
    """Returns the declarations of a source text that is compiled with these options. Raises SyntaxError."""
    parsed = preprocessed(source, options).parsed
    return of_program(Program(parsed, forbid=lambda message, offset: None))


@functools.lru_cache(maxsize=2)
def preprocessed(source: str, options: msl.Options) -> Preprocessed:
    """Returns the preprocessed source. The last ones are kept, so that declarations and code are read from one tree."""
    return msl.preprocess_source(source, options=options)


def _words(text: str) -> set[str]:
    return set(_WORD.findall(text))


def number_in(text: str | None) -> int | None:
    """Returns the value of an integer expression, or None for any other text."""
    plain = re.sub(r"(?<=[\dA-Fa-f])[uUlL]+\b", "", text or "").replace("/", "//")
    try:
        return _value(ast.parse(plain.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError):
        return None


def _value(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        return _OPERATIONS[type(node.op)](_value(node.left), _value(node.right))
    if isinstance(node, ast.UnaryOp) and type(node.op) in _OPERATIONS:
        return _OPERATIONS[type(node.op)](_value(node.operand))
    raise ValueError(node)
