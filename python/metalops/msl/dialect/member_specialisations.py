"""Specialisations of member functions in their class, `template <> float f(...)`, which g++ rejects.

An overload takes the place of one whose parameters tell it. Where calls name the template arguments, or only the result
differs, the template itself calls the specialisation, which gets a name of its own.
"""

from __future__ import annotations

import re

from ..analysis.program import (
    Function,
    declared_identifier,
    name_of,
    parameter_ranges,
    template_parameters,
)
from ..analysis.spaces import is_static
from .duplicates import scope_of

_TOKEN = re.compile(r"[\w.]+|[^\s\w]")
_SPECIFIERS = {"inline", "static", "constexpr", "const"}


def member_specialisations(rewritten) -> None:
    """Rewrites the specialisations of member functions in their class."""
    program = rewritten.program
    templates: dict[tuple, list[Function]] = {}
    found: list[Function] = []
    for function in program.functions:
        if function.in_class and function.template_headers:
            if function.is_specialisation:
                found.append(function)
            elif len(function.template_headers) == 1:
                key = (scope_of(program, function), function.name)
                templates.setdefault(key, []).append(function)
    of_templates: dict[Function, list[tuple[Function, dict[str, str]]]] = {}
    for function in found:
        for template in templates.get((scope_of(program, function), function.name), ()):
            arguments = _arguments(program.source, template, function)
            if arguments is not None and _is_named(program.source, template, arguments):
                of_templates.setdefault(template, []).append((function, arguments))
                break
        else:
            if not _has_arguments(function):
                of_key = templates.get((scope_of(program, function), function.name), ())
                _blank_header(
                    rewritten, function, any(is_static(program.source, t) for t in of_key)
                )
    for template, specialised in of_templates.items():
        _call_specialisations(rewritten, template, specialised)


def _has_arguments(function: Function) -> bool:
    return name_of(function.declarator).type in ("template_function", "template_method")


def _blank_header(rewritten, function: Function, of_static: bool) -> None:
    """Blanks `template <>`. of_static: true if the template is a static member, as its specialisations are then."""
    source = rewritten.program.source
    header = function.template_headers[-1]
    start = source.masked.rfind("template", 0, header.start_byte)
    rewritten.edits.blank(start, header.end_byte)
    if of_static and not is_static(source, function):
        rewritten.edits.insert(header.end_byte, " static ")


def _arguments(source, template: Function, function: Function) -> dict[str, str] | None:
    """Returns the template arguments of a specialisation by parameter; None if it is another template's, or has others
    than types."""
    parameters = template_parameters(template.template_headers[0])
    if not all(p.is_type and p.identifier is not None for p in parameters):
        return None
    names = [source.masked_text(p.identifier) for p in parameters]
    if any(p.node.type.startswith("variadic") for p in parameters):
        return None
    patterns, actual = _declared(source, template), _declared(source, function)
    if len(patterns) != len(actual):
        return None
    found: dict[str, str] = {}
    if _has_arguments(function):
        written = name_of(function.declarator).child_by_field_name("arguments").named_children
        found = {n: _text(source, a) for n, a in zip(names, written, strict=False)}
    for pattern, tokens in zip(patterns, actual, strict=True):
        if not _match(pattern, tokens, names, found):
            return None
    return found if found.keys() == {*names} else None


def _text(source, node) -> str:
    return " ".join(_TOKEN.findall(source.masked_text(node)))


def _declared(source, function: Function) -> list[list[str]]:
    """Returns the tokens of a function's result and of the types of its parameters."""
    start = max(function.node.start_byte, function.template_headers[-1].end_byte)
    result = _TOKEN.findall(source.masked[start : function.declarator.start_byte])
    found = [[t for t in result if t not in _SPECIFIERS]]
    parameters = function.declarator.child_by_field_name("parameters")
    for node, first, end in parameter_ranges(parameters):
        default = node.child_by_field_name("default_value")
        end = end if default is None else default.start_byte
        identifier = declared_identifier(node.child_by_field_name("declarator"))
        text = source.masked[first:end].rstrip("= \n")
        if identifier is not None:
            text = source.masked[first : identifier.start_byte]
            text += source.masked[identifier.end_byte : end].rstrip("= \n")
        tokens = [t for t in _TOKEN.findall(text) if not t.startswith("__restrict")]
        found.append(tokens if {"*", "&"} & {*tokens} else [t for t in tokens if t != "const"])
    return found


def _match(pattern: list[str], tokens: list[str], names: list[str], found: dict[str, str]) -> bool:
    """Returns true if tokens are those of a pattern with types in the place of parameters, which it adds to found."""
    at = 0
    for index, token in enumerate(pattern):
        if token not in names:
            if tokens[at : at + 1] != [token]:
                return False
            at += 1
            continue
        behind = len(pattern) - index - 1
        count = len(tokens) - at - behind
        if token in found:
            count = len(found[token].split(" "))
        elif count < 1 or any(t in names for t in pattern[index + 1 :]):
            count = 1
        if " ".join(tokens[at : at + count]) != found.setdefault(
            token, " ".join(tokens[at : at + count])
        ):
            return False
        at += count
    return at == len(tokens)


def _is_named(source, template: Function, arguments: dict[str, str]) -> bool:
    """Returns true if calls name the arguments of a template, or cannot but do."""
    parameters = template.declarator.child_by_field_name("parameters")
    text = source.masked_text(parameters)
    if not all(re.search(rf"\b{re.escape(name)}\b", text) for name in arguments):
        return True
    return any(
        source.leaf_at(offset).parent.type in ("template_function", "template_method")
        for offset in source.words_at.get(template.name, ())
    )


def _call_specialisations(rewritten, template: Function, specialised: list) -> None:
    source, edits = rewritten.program.source, rewritten.edits
    parameters = template.declarator.child_by_field_name("parameters")
    given = [
        declared_identifier(node.child_by_field_name("declarator"))
        for node, _, _ in parameter_ranges(parameters)
    ]
    if None in given:
        for function, _ in specialised:
            if not _has_arguments(function):
                _blank_header(rewritten, function, is_static(source, template))
        return
    written = ", ".join(map(source.masked_text, given))
    calls = []
    for number, (function, arguments) in enumerate(specialised):
        name = f"{function.name}_msl_special_{number}"
        _blank_header(rewritten, function, is_static(source, template))
        node = name_of(function.declarator)
        edits.replace(node.start_byte, node.end_byte, name)
        same = " && ".join(f"::msl::metal::is_same_v<{p}, {a}>" for p, a in arguments.items())
        calls.append(f"if constexpr ({same}) return {name}({written}); else ")
    chain = "".join(calls)
    if template.body is not None:
        edits.insert(template.body.start_byte + 1, f" {chain}{{")
        edits.insert(template.body.end_byte - 1, "}")
    else:
        first = next(iter(specialised[0][1]))
        end = template.node.end_byte
        missing = (
            f'static_assert(sizeof({first}) == 0, "the template has no definition for this type");'
        )
        edits.replace(end - 1, end, f" {{ {chain}{missing} }}")
