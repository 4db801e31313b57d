"""Lets a half or bfloat choose among a program's overloads as a number does.

In Metal these are arithmetic types, which convert to float better than to an object of a class or a vector. In C++ they
are classes (half under g++, bfloat everywhere), so that both are conversions by a user, and none is better; and clang's own half
converts to float no better than to int. So overloads between which such an argument chooses get one more, a template,
which takes the arguments as they are and passes half and bfloat on as float.
"""

from __future__ import annotations

from ..analysis.program import declarator_kinds, parameters_of
from ..source.vocabulary import INTEGERS, is_library_function
from . import names

_SMALL = {"half", "bfloat"}
_SCALARS = INTEGERS | {"float"}


def promotions(rewritten) -> None:
    program = rewritten.program
    if not _SMALL & program.source.words_at.keys():
        return
    families: dict[tuple, list] = {}
    for function in program.functions:
        if not function.in_class and function.stage is None:
            families.setdefault((function.path, function.name), []).append(function)
    for (_, name), functions in families.items():
        is_alone = len(functions) < 2 or any(f.template_headers for f in functions)
        if is_alone or not name.isidentifier() or is_library_function(name):
            continue
        lists = [_types(program.source, function) for function in functions]
        if None in lists:
            continue
        counts = dict.fromkeys(map(len, lists))
        choosing = [n for n in counts if _must_choose([x for x in lists if len(x) == n])]
        last = max(functions, key=lambda f: f.node.end_byte)
        added = "".join(_forwarding(name, n) for n in choosing)
        if added:
            rewritten.edits.append(last.node.end_byte, added)


def _types(source, function) -> tuple[str, ...] | None:
    """Returns the names of the types of a function's parameters, "" for pointers; None if there are references, which the
    further overload could not pass on, or default arguments."""
    found = []
    for node, _, _ in parameters_of(source, function):
        declarator = node.child_by_field_name("declarator")
        kinds = declarator_kinds(declarator) if declarator is not None else []
        if node.type != "parameter_declaration" or "reference" in kinds:
            return None
        named = source.node_text(node.child_by_field_name("type"))
        found.append("" if kinds else named.removeprefix("metal::"))
    return tuple(found)


def _must_choose(lists: list[tuple[str, ...]]) -> bool:
    """Returns true if for some parameter a half would convert to one of several types, of which one is a scalar."""
    for types in zip(*lists, strict=True):
        others = {*types} - _SMALL - {""}
        if len(others) > 1 and others & _SCALARS:
            return True
    return False


def _forwarding(name: str, count: int) -> str:
    types = [f"msl_{index}" for index in range(count)]
    taken = ", ".join(f"{t} value{t}" for t in types)
    passed = ", ".join(f"{names.SUPPORT}::promoted(value{t})" for t in types)
    return (
        f" template <{', '.join(f'class {t}' for t in types)},"
        f" class = {names.SUPPORT}::if_promoted<{', '.join(types)}>>"
        f" inline __attribute__((always_inline)) constexpr decltype(auto) {name}({taken})"
        f" {{ return {name}({passed}); }}"
    )
