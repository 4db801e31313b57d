"""Atomic types and operations that Metal lacks."""

from __future__ import annotations

import re

from ..analysis.spaces import chain, decayed, spaces_of
from .checked import Checked, ancestor
from .rules import rule

PLAIN = rule(
    "plain-memory", "6.15", "Atomic operations work on atomics, not on plain numbers in memory."
)
TYPE = rule("atomic-type", "2.6", "Atomics are of int, uint, bool, ulong or float.")
OPERATION = rule("atomic-operation", "6.15", "Each atomic type has its own operations.")
ORDER = rule("memory-order", "6.15.1", "Before Metal 3.2 atomics are memory_order_relaxed.")

_TYPES = {
    "int",
    "uint",
    "bool",
    "ulong",
    "float",
    "unsigned int",
    "unsigned",
    "unsigned long",
    "int32_t",
    "uint32_t",
    "uint64_t",
}
_NAMED = {"atomic_int", "atomic_uint", "atomic_bool", "atomic_ulong", "atomic_float"}
_OPERATIONS = re.compile(
    r"atomic_(?:store|load|exchange|compare_exchange_weak|min|max"
    r"|fetch_(?:add|sub|and|or|xor|min|max))_explicit$"
)
_LIKE_AN_OPERATION = re.compile(
    r"atomic_(?:fetch_\w+|store|load|exchange|compare_exchange\w*|min|max)(?:_explicit)?$"
)
# The operations of the types that do not have all of them. ulong has min and max alone.
_ALLOWED = {
    "float": {"store", "load", "exchange", "compare_exchange_weak", "fetch_add", "fetch_sub"},
    "bool": {
        "store",
        "load",
        "exchange",
        "compare_exchange_weak",
        "fetch_and",
        "fetch_or",
        "fetch_xor",
    },
    "ulong": {"min", "max"},
}
_BUILTIN_TYPE = re.compile(
    r"(?:u?char|u?short|u?int|u?long|half|float|bfloat|bool|double|signed|unsigned|size_t"
    r"|u?int(?:8|16|32|64)_t)\d?$"
)


def check(checked: Checked) -> None:
    """Reports violations of the rules of this group."""
    own = {s.name.split("<")[0] for s in checked.program.classes}
    own |= {checked.text(n) for n in checked.source.find("(alias_declaration name: (_) @n)")}
    own |= {
        checked.text(n)
        for n in checked.source.find("(type_definition declarator: (type_identifier) @n)")
    }
    own |= {f.name for f in checked.program.functions}
    if "atomic" not in own:
        for node in checked.source.find("(template_type) @t"):
            _template(checked, node)
    for node in checked.source.find("(type_identifier) @t"):
        name = checked.text(node)
        if (
            name.startswith("atomic_")
            and name not in own | _NAMED
            and _BUILTIN_TYPE.match(name[7:])
        ):
            checked.report(TYPE, node, f"{name} does not exist; {_INSTEAD}")
    variables = _variables(checked)
    for node in checked.source.find("(call_expression) @c"):
        _call(checked, node, own, variables)
    if checked.language < 320:
        for node in checked.source.find("(identifier) @i"):
            name = checked.text(node)
            if name in (
                "memory_order_acquire",
                "memory_order_release",
                "memory_order_acq_rel",
                "memory_order_seq_cst",
            ):
                checked.report(
                    ORDER, node, f"{name} needs Metal 3.2; use memory_order_relaxed and a barrier"
                )


_INSTEAD = "atomics are of int, uint, bool, ulong or float: compare and exchange the bits of one"


def _template(checked: Checked, node) -> None:
    if checked.text(node.child_by_field_name("name")) != "atomic":
        return
    arguments = node.child_by_field_name("arguments").named_children
    if len(arguments) != 1:
        return
    name = checked.text(arguments[0]).removeprefix("metal::")
    if _BUILTIN_TYPE.match(name) and name not in _TYPES:
        checked.report(TYPE, node, f"atomic<{name}> does not exist; {_INSTEAD}")


def _call(checked: Checked, node, own: set[str], variables: dict[str, str]) -> None:
    called = node.child_by_field_name("function")
    while called.type in ("qualified_identifier", "template_function"):
        called = called.child_by_field_name("name")
    if called is None or called.type != "identifier":
        return
    name = checked.text(called)
    if name in own or not _LIKE_AN_OPERATION.match(name):
        return
    if not _OPERATIONS.match(name):
        if _OPERATIONS.match(f"{name}_explicit"):
            instead = f"write {name}_explicit with memory_order_relaxed"
        elif "compare_exchange" in name:
            instead = "use atomic_compare_exchange_weak_explicit in a loop"
        else:
            instead = "use a loop with atomic_compare_exchange_weak_explicit"
        checked.report(OPERATION, node, f"{name} does not exist; {instead}")
        return
    arguments = node.child_by_field_name("arguments").named_children
    kind = _kind(checked, arguments[0], variables) if arguments else None
    if kind is not None and kind.startswith("plain "):
        plain = kind.removeprefix("plain ")
        checked.report(
            PLAIN,
            node,
            f"{name} needs a pointer to atomic<{plain}>, and {checked.text(arguments[0])} is plain "
            f"{plain}; declare it atomic, or cast the pointer",
        )
        return
    operation = name.removeprefix("atomic_").removesuffix("_explicit")
    if kind in _ALLOWED and operation not in _ALLOWED[kind]:
        instead = (
            "it has only atomic_min_explicit and atomic_max_explicit"
            if kind == "ulong"
            else "use a loop with atomic_compare_exchange_weak_explicit"
        )
        checked.report(OPERATION, node, f"{name} does not exist for atomic {kind}; {instead}")
    elif kind == "float" and _is_in_threadgroup(checked, arguments[0]):
        checked.report(
            OPERATION,
            node,
            f"{name} does not exist for atomic float in threadgroup memory; compare and exchange the "
            "bits of an atomic uint",
        )
    elif kind in ("int", "uint") and operation in ("min", "max"):
        checked.report(
            OPERATION,
            node,
            f"{name} exists for atomic ulong only; use atomic_fetch_{operation}_explicit",
        )


def _is_in_threadgroup(checked: Checked, pointer) -> bool:
    """Returns true if a pointer certainly is one to threadgroup memory."""
    return chain(decayed(checked.program.kept(spaces_of).type_of(pointer)))[:1] == ("threadgroup",)


_ATOMIC = re.compile(
    r"\b(?:atomic_(int|uint|bool|float|ulong)\b|atomic\s*<\s*(int|uint|bool|float|ulong)\s*>)"
)


def _kind(checked: Checked, argument, variables) -> str | None:
    """Returns the type of the atomic that a pointer argument points to; "plain T" for an ordinary number."""
    text = checked.text(argument)
    match = _ATOMIC.search(text)
    if match:
        return match[1] or match[2]
    word = re.match(r"[&(]*\s*(\w+)(?!\s*[\w(<])", text)
    function = ancestor(argument, "function_definition")
    if word is None or function is None:
        return None
    return variables.get((function.start_byte, word[1]))


def _variables(checked: Checked) -> dict[tuple[int, str], str]:
    """Returns the types of atomics, and as "plain T" of other numbers, in functions, by function and name."""
    found: dict[tuple[int, str], str] = {}
    for node in checked.source.find("[(parameter_declaration) (declaration)] @d"):
        type_node = node.child_by_field_name("type")
        declarator = node.child_by_field_name("declarator")
        if type_node is None or declarator is None:
            continue
        name = checked.text(type_node).removeprefix("metal::")
        match = _ATOMIC.fullmatch(name)
        function = ancestor(node, "function_definition")
        if function is None:
            continue
        identifier = re.match(r"[*&\s]*(\w+)", checked.source.masked_text(declarator))
        if identifier is None:
            continue
        key = function.start_byte, identifier[1]
        if match is not None:
            found[key] = match[1] or match[2]
        elif key not in found:
            found[key] = f"plain {name}" if _BUILTIN_TYPE.match(name) else ""
        elif found[key] != f"plain {name}":
            found[key] = ""  # another variable of the same name, in another block
    return found
