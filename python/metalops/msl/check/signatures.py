"""Rules about kernel functions: results, names, arguments, attributes, and the amount of threadgroup memory that they
declare."""

from __future__ import annotations

import re

from ..analysis.program import (
    Function,
    Kernel,
    declared_identifier,
    name_of,
    template_parameters,
)
from ..analysis.types import FUNCTION, Types
from ..source.parse import Source
from ..source.vocabulary import THREAD_ATTRIBUTES
from .checked import Checked, ancestor
from .constants import Constants
from .rules import rule

RETURN = rule("kernel-return", "5.1.3", "A kernel returns void.")
MEMBER = rule("kernel-member", "5.1", "A kernel is a function at namespace scope.")
CALL = rule("kernel-call", "5.1", "A kernel is not called by another function.")
OVERLOAD = rule("kernel-overload", "1.5.1", "Kernels are not overloaded.")
REDEFINITION = rule(
    "redefinition", "1.5.1", "Overloads differ in the types or address spaces of their parameters."
)
INSTANTIATION = rule(
    "instantiation", "1.5.2", "An explicit instantiation repeats the parameters of its template."
)
DUPLICATE = rule(
    "duplicate-instantiation", "1.5.2", "A template is instantiated once for the same arguments."
)
HOST_NAME = rule("host-name", "5.1.10", "Every kernel has a name of its own.")
INDEX = rule(
    "buffer-index", "5.2.1", "A [[buffer(n)]] has an index from 0 to 30, used once in a kernel."
)
ARGUMENT = rule(
    "kernel-argument",
    "5.2",
    "A kernel argument is a buffer in device or constant memory, or has an attribute.",
)
ATTRIBUTE_TYPE = rule(
    "attribute-type",
    "5.2.3.6",
    "Positions and sizes are uint or ushort, or vectors of up to 3; indices are scalars.",
)
CONSTANT_INDEX = rule(
    "function-constant-index", "5.8.1", "Every function constant has an index of its own."
)
MIXED = rule(
    "mixed-positions",
    "5.2.3.6",
    "Positions and sizes of one kernel have the same number of components.",
)
MEMORY = rule(
    "threadgroup-memory", "4.4", "The threadgroup variables of a kernel take at most 32 KiB."
)

MEMORY_LIMIT = 32 * 1024
_LIMITS = {"buffer": 31, "threadgroup": 31, "texture": 128, "sampler": 16}
_POSITION_TYPES = re.compile(
    r"(?:metal::)?(?:uint|ushort|unsigned int|unsigned short|unsigned|uint32_t|uint16_t)([23]?)$"
)
_INDEX_TYPES = re.compile(
    r"(?:metal::)?(?:uint|ushort|unsigned int|unsigned short|unsigned|uint32_t|uint16_t)$"
)


def check(checked: Checked) -> None:
    """Reports violations of the rules of this group."""
    types = Types(checked.source, checked.program)
    constants = Constants(checked, types)
    for function in checked.program.functions:
        if function.stage == "kernel" and checked.wants(function.node.start_byte):
            _function(checked, function)
    for kernel in checked.program.kernels:
        if checked.wants(kernel.function.node.start_byte):
            _Arguments(checked, types, constants, kernel).run()
            _memory(checked, constants, kernel)
    _names(checked)
    _function_constants(checked, constants)
    _instantiations(checked, types)
    _duplicates(checked)
    _calls(checked)
    _overloads(checked, types)


def _function(checked: Checked, function) -> None:
    outer = function.node
    while outer.type == "template_declaration":
        outer = outer.named_children[-1]
    returned = outer.child_by_field_name("type")
    declarator = outer.child_by_field_name("declarator")
    if returned is not None and (
        checked.text(returned) != "void"
        or declarator.type in ("pointer_declarator", "reference_declarator")
    ):
        checked.report(
            RETURN,
            returned,
            f"the kernel {function.name} returns {checked.text(returned)}; return void and write "
            "to a buffer",
        )
    if function.in_class:
        checked.report(
            MEMBER,
            function.declarator,
            f"the kernel {function.name} is a member of a class; move it out, to a namespace",
        )


class _Arguments:
    """Rules about the parameters of one kernel."""

    def __init__(self, checked: Checked, types: Types, constants: Constants, kernel: Kernel):
        self.checked = checked
        self.types = types
        self.constants = constants
        self.kernel = kernel
        self.declared = {
            node.start_byte: declared.type
            for node, _, declared in types.parameters(kernel.function.declarator)
        }

    def run(self) -> None:
        taken: dict[tuple[str, int], str] = {}
        positions: list[tuple[object, int]] = []
        for parameter in self.kernel.parameters:
            attributes = self.checked.source.attributes_in(parameter.start, parameter.end)
            for attribute in attributes:
                if attribute.name in _LIMITS:
                    self._index(parameter, attribute, taken)
                elif attribute.name in THREAD_ATTRIBUTES:
                    self._builtin(parameter, attribute, positions)
            self._space(parameter, attributes)
        for parameter, components in positions[1:]:
            if components != positions[0][1]:
                first = positions[0][0]
                self.checked.report(
                    MIXED,
                    parameter.node,
                    f"{parameter.name} has {components} component{'s' * (components > 1)} and "
                    f"{first.name} has "
                    f"{positions[0][1]}; declare all positions and sizes of a kernel alike",
                )
                break

    def _index(self, parameter, attribute, taken) -> None:
        kind, limit = attribute.name, _LIMITS[attribute.name]
        if not attribute.arguments:
            self.checked.report(
                INDEX,
                attribute.start,
                f"[[{kind}]] has no index; write [[{kind}(0)]] or another number",
            )
            return
        if any(
            a.name == "function_constant"
            for a in self.checked.source.attributes_in(parameter.start, parameter.end)
        ):
            return
        value = self.constants.value(attribute.arguments)
        if value is None:
            return
        if not 0 <= value < limit:
            self.checked.report(
                INDEX,
                attribute.start,
                f"the {kind} index {value} is out of range; use 0 to {limit - 1}",
            )
        elif (kind, value) in taken:
            self.checked.report(
                INDEX,
                attribute.start,
                f"the {kind} index {value} belongs to {taken[kind, value]} already; give "
                f"{parameter.name or 'this'} "
                "another one",
            )
        else:
            taken[kind, value] = parameter.name or "another argument"

    def _builtin(self, parameter, attribute, positions) -> None:
        type_ = self.declared.get(parameter.node.start_byte)
        if type_ is None or type_.is_open:
            return
        name = type_.name if type_.kind == "value" else type_.written()
        if THREAD_ATTRIBUTES[attribute.name].is_position:
            match = _POSITION_TYPES.match(name)
            if match is None:
                allowed = "uint, uint2, uint3, ushort, ushort2 or ushort3"
            else:
                positions.append((parameter, int(match[1] or 1)))
                return
        elif _INDEX_TYPES.match(name):
            return
        else:
            allowed = "uint or ushort"
        self.checked.report(
            ATTRIBUTE_TYPE,
            parameter.node,
            f"{parameter.name or 'the argument'} is a {name}, which [[{attribute.name}]] does not "
            "take; "
            f"declare it {allowed}",
        )

    def _space(self, parameter, attributes) -> None:
        type_ = self.declared.get(parameter.node.start_byte)
        if type_ is None:
            return
        name = parameter.name or "the argument"
        names = {a.name for a in attributes}
        if type_.kind in ("pointer", "reference"):
            space = type_.target.space
            if space == "thread":
                self._argument(
                    parameter,
                    f"{name} points to thread memory, which no buffer is in; declare it device or "
                    "constant",
                )
            elif "buffer" in names and space == "threadgroup":
                self._argument(
                    parameter,
                    f"{name} is in threadgroup memory and has a buffer index; write "
                    "[[threadgroup(n)]]",
                )
            elif "threadgroup" in names and space in ("device", "constant"):
                self._argument(
                    parameter,
                    f"{name} is in {space} memory and has a threadgroup index; write [[buffer(n)]]",
                )
        elif (table := _table_of(parameter.type)) and (wrong := names & set(_LIMITS) - {table}):
            self._argument(
                parameter,
                f"{name} is a {table} and has a {min(wrong)} index; write [[{table}(n)]]",
            )
        elif type_.is_open or type_.kind == "array":
            return
        elif names & {"buffer", "threadgroup"} and not _is_handle(type_.name):
            kind = "buffer" if "buffer" in names else "threadgroup"
            self._argument(
                parameter,
                f"{name} is a {type_.name} by value, which [[{kind}]] does not take; "
                f"write constant {type_.name}& {parameter.name or ''}".rstrip(),
            )
        elif not attributes and not _is_handle(type_.name):
            self._argument(
                parameter,
                f"{name} has no attribute; write constant {type_.name}& {name} for a value from "
                "the host, or an "
                "attribute such as [[thread_position_in_grid]]",
            )

    def _argument(self, parameter, sentence: str) -> None:
        self.checked.report(ARGUMENT, parameter.node, sentence)


def _table_of(name: str) -> str:
    """Returns the argument table of a texture or sampler type, "texture" or "sampler"; empty for other types."""
    match = re.match(r"(?:metal::)?(?:(texture|depth)(?:\dd|cube|_buffer)\w*\b|(sampler)$)", name)
    return "" if match is None else match[2] or "texture"


def _is_handle(name: str) -> bool:
    return bool(
        re.match(
            r"(?:metal::)?(?:raytracing::)?(?:texture|depth|sampler|visible_function_table"
            r"|intersection_function_table|(?:primitive_|instance_)?acceleration|imageblock"
            r"|command_buffer|tensor|array|render_|compute_)",
            name,
        )
    )


def _names(checked: Checked) -> None:
    """Reports kernels of one library that have the same name."""
    seen: dict[str, object] = {}
    for instance in checked.program.instances:
        first = seen.setdefault(instance.name, instance)
        if first is instance or not checked.wants(instance.offset):
            continue
        kernel = instance.kernel.function
        if (
            first.kernel.function is not kernel
            and not kernel.template_headers
            and instance.kernel.host_name is None
        ):
            continue  # reported by _overloads
        attributes = checked.source.attributes_in(instance.offset, instance.expression[1])
        if not kernel.template_headers:
            attributes += kernel.attributes
        names = [a for a in attributes if a.name == "host_name"]
        place = names[0].start if names else instance.offset
        checked.report(
            HOST_NAME,
            place,
            f"another kernel is called {instance.name} already; give this one another host_name",
        )


def _function_constants(checked: Checked, constants: Constants) -> None:
    """Reports function constants with an index that another one has."""
    taken: dict[int, str] = {}
    for node, _, head in checked.program.declarations:
        end = checked.source.next_code(node.end_byte)
        for attribute in checked.source.attributes_in(head, end):
            if attribute.name != "function_constant" or not attribute.arguments:
                continue
            index = constants.value(attribute.arguments)
            identifier = declared_identifier(node.child_by_field_name("declarator"))
            name = checked.text(identifier) if identifier is not None else "this"
            if index is not None and taken.setdefault(index, name) != name:
                checked.report(
                    CONSTANT_INDEX,
                    attribute.start,
                    f"the function constant {index} is {taken[index]} already; give {name} another index",
                )


def _instantiations(checked: Checked, types: Types) -> None:
    """Reports explicit instantiations whose parameter list fits no template of the name."""
    templates: dict[str, list] = {}
    for kernel in checked.program.kernels:
        if kernel.function.template_headers:
            templates.setdefault(kernel.function.name, []).append(kernel.function.declarator)
    for instance in checked.program.instances:
        function = instance.kernel.function
        if (
            instance.signature is None
            or not function.template_headers
            or function.is_specialisation
        ):
            continue
        if not checked.wants(instance.offset):
            continue
        given = types.parameters(instance.signature.parent)
        problems = [
            _difference(given, types.parameters(template)) for template in templates[function.name]
        ]
        if all(problems):
            place, sentence = problems[0]
            checked.report(INSTANTIATION, place or instance.signature, sentence)


def _duplicates(checked: Checked) -> None:
    """Reports repeated explicit instantiations of one function, under any host names."""
    seen: dict[tuple, object] = {}
    for instance in checked.program.instances:
        function = instance.kernel.function
        if not function.template_headers or function.is_specialisation:
            continue
        name = re.sub(r"\s+", "", checked.source.text[slice(*instance.expression)])
        parameters = (
            None
            if instance.signature is None
            else re.sub(r"\s+", "", checked.source.masked_text(instance.signature))
        )
        first = seen.setdefault(
            (instance.path, function.node.start_byte, name, parameters), instance
        )
        if first is not instance and first.name != instance.name:
            _, line = checked.lines.place(first.offset)
            checked.report(
                DUPLICATE,
                instance.expression[0],
                f"{name} is instantiated at line {line} already, as {first.name}; one kernel "
                "has one host_name",
            )


def _difference(given, wanted) -> tuple | None:
    """Returns (place, sentence) if two parameter lists differ in number or in address spaces."""
    if len(given) != len(wanted):
        return None, (
            f"the template has {len(wanted)} parameters and not {len(given)}; repeat them all, "
            "without names and attributes"
        )
    for (node, _, one), (_, _, other) in zip(given, wanted, strict=True):
        if one.type.kind != other.type.kind or one.type.kind not in ("pointer", "reference"):
            continue
        have, need = one.type.target.space, other.type.target.space
        if have is not None and need is not None and have != need:
            return node, f"the template has {need} and not {have} here; write {need}"
    return None


def _calls(checked: Checked) -> None:
    kernels = {k.function.name: len(k.parameters) for k in checked.program.kernels}
    others = {f.name for f in checked.program.functions if f.stage is None}
    for node in checked.source.find("(call_expression function: (_) @f)"):
        name = node.child_by_field_name("name") if node.type == "template_function" else node
        if name is None or name.type != "identifier" or checked.text(name) not in kernels:
            continue
        arguments = [
            c
            for c in node.parent.child_by_field_name("arguments").named_children
            if c.type != "comment"
        ]
        if checked.text(name) in others or len(arguments) != kernels[checked.text(name)]:
            continue  # may be a function of metal_stdlib
        if (
            ancestor(node, "function_definition") is not None
            and ancestor(node, "template_instantiation") is None
        ):
            checked.report(
                CALL,
                node,
                f"{checked.text(name)} is a kernel, which only the host can call; move its work "
                "into a function "
                "that both call",
            )


def _overloads(checked: Checked, types: Types) -> None:
    """Reports kernels of one name, and functions that are defined twice with the same parameters."""
    kernels: dict[tuple, object] = {}
    definitions: dict[tuple, object] = {}
    for function in checked.program.functions:
        if function.body is None or function.is_specialisation:
            continue
        name = "".join(checked.text(name_of(function.declarator)).split())
        scope = (*function.path, *name.split("::")[:-1])
        if function.stage == "kernel":
            first = kernels.setdefault((scope, function.name), function)
            if (
                first is not function
                and not function.template_headers
                and not first.template_headers
            ):
                checked.report(
                    OVERLOAD,
                    function.declarator,
                    f"there is a kernel {function.name} already, and kernels are not overloaded; "
                    "give this one another name",
                )
            continue
        if function.in_class or function.template_headers or function.stage is not None:
            continue
        if function.name in ("operator()", "operator[]", "operator=", "operator->"):
            continue  # a member of a class that the parser did not recognise
        signature = tuple(
            _signature(checked, declared.type)
            for _, _, declared in types.parameters(function.declarator)
        )
        if None in signature:
            continue
        qualifiers = _qualifiers(checked, function)
        first = definitions.setdefault((scope, function.name, signature, qualifiers), function)
        if first is not function:
            _, line = checked.lines.place(first.node.start_byte)
            checked.report(
                REDEFINITION,
                function.declarator,
                f"{function.name} is defined with the same parameters at line {line} already; "
                "overloads differ in the "
                "types or address spaces of their parameters",
            )


_QUALIFIERS = re.compile(
    r"(?:\s|&|\b(?:const|volatile|noexcept|device|constant|threadgroup|thread)\b)*"
)


def _qualifiers(checked: Checked, function: Function) -> frozenset[str]:
    """Returns the qualifiers of a member function's object, which distinguish overloads. Without an address space it is
    in thread memory."""
    end = function.declarator.child_by_field_name("parameters").end_byte
    written = _QUALIFIERS.match(checked.source.text, end)[0]
    return frozenset(re.findall(r"\w+|&&?", written)) - {"thread", "noexcept"}


def _signature(checked: Checked, type_) -> str | None:
    """Returns a parameter type without qualifiers of the parameter itself, which do not distinguish overloads."""
    if type_.kind in ("pointer", "array", "reference"):
        inner = _signature(checked, type_.target)
        if inner is None:
            return None
        const = "const " if type_.target.is_const and type_.target.space != "constant" else ""
        mark = "&" if type_.kind == "reference" else "*"
        return f"{const}{type_.target.space or 'thread'} {inner}{mark}"
    return None if type_.name in ("", FUNCTION.name, "auto") else type_.name


def has_alternatives(source: Source, kernel: Kernel) -> bool:
    """Returns true if some threadgroup variables of a kernel stand in branches of an if of which its template arguments
    choose one, so that an instance has not all of them."""
    names = {
        source.masked_text(parameter.identifier)
        for header in kernel.function.template_headers
        for parameter in template_parameters(header)
        if parameter.identifier is not None
    }
    for variable in kernel.threadgroup_variables if names else ():
        node = variable.declaration
        while node is not None and node != kernel.function.node:
            node = node.parent
            if node is not None and node.type == "if_statement":
                condition = node.child_by_field_name("condition")
                found = {source.masked_text(n) for n in source.find("(identifier) @n", condition)}
                if found <= names:
                    return True
    return False


def _memory(checked: Checked, constants: Constants, kernel: Kernel) -> None:
    """Checks the total size of threadgroup variables, for each instance of a template."""
    if not kernel.threadgroup_variables or has_alternatives(checked.source, kernel):
        return
    instances = [i for i in checked.program.instances if i.kernel is kernel] or [None]
    for instance in instances:
        names = constants.template_arguments(kernel.function, instance)
        total = 0
        for variable in kernel.threadgroup_variables:
            size = constants.size_of_variable(variable, names)
            if size is None:
                break
            total += size
            if total > MEMORY_LIMIT:
                which = f" as {instance.name}" if instance is not None and names else ""
                checked.report(
                    MEMORY,
                    variable.identifier,
                    f"{checked.text(variable.identifier)} takes the threadgroup memory of "
                    f"{kernel.function.name}{which} "
                    f"to {total} bytes, more than the {MEMORY_LIMIT} there are; make it smaller, "
                    "or reuse another array",
                )
                return
