"""The declarations of a Metal program: functions, classes, kernels and their parameters, explicit instantiations,
function constants. A model over the syntax tree; nothing here knows how code is emitted."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from ..source.parse import Attribute, Source, split_arguments, string_value
from ..source.vocabulary import THREAD_ATTRIBUTES

T = TypeVar("T")


@dataclass(eq=False)
class Function:
    """A function declaration or definition at namespace or class scope."""

    name: str
    path: tuple[str, ...]  # enclosing namespaces and classes
    node: object  # outermost node, template header included
    head: int  # where the declaration begins, template headers and leading attributes included
    declarator: object  # the function_declarator
    body: object | None
    template_headers: list
    in_class: bool
    stage: str | None = None  # "kernel", "vertex", ...
    attributes: list[Attribute] = field(default_factory=list)

    @property
    def is_specialisation(self) -> bool:
        """True if it is an explicit specialisation: `template <> ...`."""
        return any(not header.named_children for header in self.template_headers)

    @property
    def is_conversion(self) -> bool:
        """True if it converts its object into another type; its name is that type's text."""
        return self.declarator.type == "abstract_function_declarator"


@dataclass
class Parameter:
    """One parameter of a kernel.

    kind: "buffer", "threadgroup", "texture", "sampler", "builtin", or "unsupported". attribute: the attribute that binds
    it. index: the text of its index in the table of its kind; None until automatic numbering. switch: the function
    constant that switches it on, if one does.
    """

    node: object
    start: int
    end: int
    name: str | None
    type: str
    kind: str
    attribute: str
    index: str | None = None
    is_reference: bool = False
    is_pointer: bool = False
    switch: str | None = None


@dataclass
class ThreadgroupVariable:
    """One variable that a kernel body declares in threadgroup memory."""

    number: int
    declaration: object
    declarator: object
    identifier: object
    space_word: object


@dataclass
class Kernel:
    function: Function
    parameters: list[Parameter]
    threadgroup_variables: list[ThreadgroupVariable] = field(default_factory=list)
    max_threads: str | None = None
    host_name: str | None = None
    unsupported: str | None = None  # why it cannot run on this device
    textures_in_memory: str | None = None  # why it cannot run on CUDA devices
    number: int = 0


@dataclass
class Instance:
    """A kernel as it stands in the library: a plain kernel function, or one explicit instantiation of a template.

    expression: extent of the C++ that names the function. signature: the parameter list node of the instantiation, if
    it gives one.
    """

    kernel: Kernel
    name: str
    expression: tuple[int, int]
    signature: object | None
    path: tuple[str, ...]
    offset: int
    template_arguments: object | None = None


@dataclass
class FunctionConstant:
    name: str
    path: tuple[str, ...]
    index: str


@dataclass(eq=False)
class ClassScope:
    name: str
    path: tuple[str, ...]
    node: object  # outermost node
    head: int
    specifier: object
    template_headers: list
    end: int  # past the ';'


_UNSUPPORTED_ATTRIBUTES = {
    "stage_in",
    "payload",
    "color",
    "imageblock_data",
    "threadgroup_imageblock",
}
_TEXTURES = re.compile(
    r"\b(?:texture(?:1d|2d|cube)(?:_array)?|texture3d|texture_buffer|depth(?:2d|cube)(?:_array)?)\b"
)
_HANDLES = re.compile(rf"{_TEXTURES.pattern}|\bsampler\b")
_MENTIONS_TEXTURES = re.compile(
    r"\b(?:texture(?:\dd|cube|_buffer)|depth(?:2d|cube)|sampler\b|access\b)"
)
_ARRAY_OF_TEXTURES = re.compile(r"\barray\s*<.*,\s*(\d+)\s*>\s*$", re.DOTALL)
_UNSUPPORTED_TYPES = re.compile(
    r"\b(?:(?:texture|depth)2d_ms(?:_array)?"
    r"|intersection_function_table|(?:primitive_|instance_)?acceleration_structure|imageblock"
    r"|command_buffer"
    r"|compute_pipeline_state|render_command)\b"
)
_TENSORS = re.compile(r'(?m)^# \d+ "[^"\n]*\bmsl_tensors"')  # the header was included
# The names that the header declares. torch's c10/metal/common.h includes it, too, since 2.15; kernels without tensors
# must not pay for that.
_NAMES_OF_TENSORS = re.compile(
    r"\b(?:mpp|\w*(?:tensor|extent|numeric_format|packed_numeric)\w*|u?int\db_format|metal_fp\d_\w+|"
    r"execution_(?:thread|simdgroup)\w*)\b"
)
_STAGE_ATTRIBUTES = {"kernel", "vertex", "fragment", "mesh", "object", "intersection"}
_BODIES = {"class_specifier", "struct_specifier", "union_specifier"}
_CLASSES = f"[{' '.join(f'({kind})' for kind in sorted(_BODIES))}] @c"


class ProgramError(Exception):
    """Something in the program that Metal forbids, or that is not supported: a message and the offset it points at.
    other: the offset of something else that the message names, or None."""

    def __init__(self, message: str, offset: int, other: int | None = None):
        super().__init__(message)
        self.message = message
        self.offset = offset
        self.other = other


def _raise(message: str, offset: int) -> None:
    raise ProgramError(message, offset)


class Program:
    """Everything a source declares at namespace and class scope, in order of position."""

    def __init__(self, source: Source, forbid: Callable[[str, int], None] | None = None):
        """forbid: receives what Metal forbids (a message and an offset) and may return; by default it raises
        ProgramError."""
        self.source = source
        self.mentions_textures = any(map(_MENTIONS_TEXTURES.match, source.words_at))
        # Metal 4's, and operations on them.
        self.has_tensors = _TENSORS.search(source.text) is not None and any(
            map(_NAMES_OF_TENSORS.match, source.words_at)
        )
        self._names_handles = any(map(_HANDLES.match, source.words_at))
        self._forbid = forbid or _raise
        self.functions: list[Function] = []
        self.classes: list[ClassScope] = []
        self.kernels: list[Kernel] = []
        self.instances: list[Instance] = []
        self.function_constants: list[FunctionConstant] = []
        self.declarations: list[
            tuple[object, tuple[str, ...], int]
        ] = []  # namespace-scope variables
        self.instantiations: list[tuple[object, tuple[str, ...], int]] = []
        self.namespace_aliases: dict[str, tuple[str, ...]] = {}
        self.left_out: list[Instance] = []  # of the source and not of the program (absent.py)
        self._kept: dict[Callable, object] = {}
        self._walk(source.root.children, (), False, 0)
        self._local_classes()
        self._collect_kernels()
        self._resolve_instantiations()
        self._find_threadgroup_variables()

    def kept(self, make: Callable[[Program], T]) -> T:
        """Returns make(self), made at the first call: what several steps need to know of the declarations, which no step
        changes."""
        if make not in self._kept:
            self._kept[make] = make(self)
        return self._kept[make]

    # ---- structure -------------------------------------------------------------------------------

    def _walk(self, children, path, in_class, start) -> None:
        """Visits declarations. start: where the first one may begin (leading attributes are blanked)."""
        for child in children:
            if child.is_named:
                self._declaration(child, child, path, in_class, start, [])
            start = child.end_byte

    def _declaration(self, node, outer, path, in_class, head, headers) -> None:
        kind = node.type
        if kind == "namespace_definition":
            name = node.child_by_field_name("name")
            names = self._names(name) if name else ("",)
            body = node.child_by_field_name("body")
            if body:
                self._walk(body.children, path + names, False, body.start_byte)
        elif kind in ("linkage_specification", "ERROR", "declaration_list"):
            body = node.child_by_field_name("body") or node
            if kind == "linkage_specification":
                head = node.child_by_field_name("value").end_byte
            is_list = body is node or body.type == "declaration_list"
            self._walk(body.children if is_list else [body], path, in_class, head)
        elif kind == "template_declaration":
            inner = node.named_children[-1]
            headers = [*headers, node.child_by_field_name("parameters")]
            self._declaration(inner, outer, path, in_class, head, headers)
        elif kind == "template_instantiation":
            self.instantiations.append((node, path, head))
        elif kind == "function_definition":
            self._function(
                node, outer, path, in_class, head, headers, node.child_by_field_name("body")
            )
        elif kind in _BODIES:
            self._class(node, outer, path, head, headers)
        elif kind == "type_definition":
            specifier = node.child_by_field_name("type")
            if specifier is not None and specifier.type in _BODIES:
                self._class(specifier, outer, path, head, headers)
        elif kind in ("declaration", "field_declaration"):
            specifier = node.child_by_field_name("type")
            if specifier is not None and specifier.type in _BODIES:
                self._class(specifier, outer, path, head, headers)
            if function_declarator(node.child_by_field_name("declarator")) is not None:
                self._function(node, outer, path, in_class, head, headers, None)
            elif not in_class:
                self.declarations.append((node, path, head))
        elif kind == "namespace_alias_definition":
            alias = node.child_by_field_name("name")
            meant = node.named_children[-1]
            if not node.has_error and alias is not None:
                self.namespace_aliases[self.source.masked_text(alias)] = self._names(meant)
        elif kind == "friend_declaration":
            for inner in node.named_children:
                if inner.type in ("function_definition", "declaration"):
                    self._declaration(inner, outer, path, in_class, head, headers)

    def _names(self, node) -> tuple[str, ...]:
        """Returns the names in a::b::c."""
        return tuple(re.split(r"\s*::\s*", self.source.masked_text(node).strip()))

    def _class(self, specifier, outer, path, head, headers) -> None:
        body = specifier.child_by_field_name("body")
        if body is None:
            return
        name = specifier.child_by_field_name("name")
        text = self.source.masked_text(name) if name else ""
        following = self.source.next_code(outer.end_byte)
        end = outer.end_byte
        if self.source.masked[following : following + 1] == ";":
            end = following + 1
        self.classes.append(ClassScope(text, path, outer, head, specifier, headers, end))
        self._walk(body.children, (*path, f"class {text}"), True, body.start_byte)

    def _local_classes(self) -> None:
        """Visits the classes in function bodies."""
        known = {scope.specifier.start_byte for scope in self.classes}
        for specifier in self.source.find(_CLASSES):
            is_known = specifier.start_byte in known
            if not is_known and specifier.child_by_field_name("body") is not None:
                self._class(specifier, specifier, (), specifier.start_byte, [])

    def _function(self, node, outer, path, in_class, head, headers, body) -> None:
        declarator = function_declarator(node.child_by_field_name("declarator"))
        if declarator is None:
            return
        function = Function(
            last_name(self.source, name_of(declarator)),
            path,
            outer,
            head,
            declarator,
            body,
            headers,
            in_class,
        )
        parameters = declarator.child_by_field_name("parameters")
        limit = body.start_byte if body is not None else outer.end_byte
        function.attributes = self.source.attributes_in(head, parameters.start_byte)
        function.attributes += self.source.attributes_in(parameters.end_byte, limit)
        for word in self.source.words_in(head, parameters.start_byte):
            if word.text in ("kernel", "vertex", "fragment"):
                function.stage = word.text
        for attribute in function.attributes:
            if attribute.name in _STAGE_ATTRIBUTES:
                function.stage = attribute.name
        self.functions.append(function)

    # ---- kernels ---------------------------------------------------------------------------------

    def _collect_kernels(self) -> None:
        for function in self.functions:
            name_node = function.declarator.child_by_field_name("declarator")
            if function.stage != "kernel" or function.body is None or name_node is None:
                continue
            kernel = Kernel(function, self._parameters(function), number=len(self.kernels))
            for attribute in function.attributes:
                if attribute.name == "max_total_threads_per_threadgroup":
                    kernel.max_threads = attribute.arguments
                elif attribute.name == "host_name":
                    kernel.host_name = string_value(attribute.arguments or "")
            for parameter in kernel.parameters:
                if parameter.kind == "unsupported":
                    kernel.unsupported = f"parameter {parameter.name or ''} ({parameter.attribute})"
                elif parameter.kind == "buffer" and self._holds_textures(parameter):
                    kernel.textures_in_memory = (
                        f"parameter {parameter.name or ''} (textures in a buffer)"
                    )
            if not kernel.unsupported:
                self._number_parameters(kernel)
            self.kernels.append(kernel)
            plain = not function.template_headers
            specialised = function.template_headers and all(
                not h.named_children for h in function.template_headers
            )
            if plain or (specialised and kernel.host_name):
                name = kernel.host_name or "::".join([*filter(None, function.path), function.name])
                self.instances.append(
                    Instance(
                        kernel,
                        name,
                        (name_node.start_byte, name_node.end_byte),
                        function.declarator.child_by_field_name("parameters"),
                        function.path,
                        name_node.start_byte,
                    )
                )

    def _parameters(self, function: Function) -> list[Parameter]:
        parameters = []
        for node, start, end in parameter_ranges(
            function.declarator.child_by_field_name("parameters")
        ):
            text = self.source.masked_text(node)
            if text.strip() == "void":
                continue
            parameters.append(self._parameter(node, start, end))
        return parameters

    def _parameter(self, node, start: int, end: int) -> Parameter:
        source = self.source
        attributes = source.attributes_in(start, end)
        by_name = {a.name: a for a in attributes}
        spaces = {w.text for w in source.words_in(start, end)}
        declarator = node.child_by_field_name("declarator")
        identifier = declared_identifier(declarator)
        written = self._type_as_written(start, end, identifier)
        kinds = declarator_kinds(declarator)
        parameter = Parameter(
            node, start, end, source.node_text(identifier) if identifier else None, written, "", ""
        )
        parameter.is_pointer = bool(kinds) and kinds[0] in ("pointer", "array")
        parameter.is_reference = bool(kinds) and kinds[0] == "reference"
        if "function_constant" in by_name:
            parameter.switch = by_name["function_constant"].arguments
        builtin = next((a for a in attributes if a.name in THREAD_ATTRIBUTES), None)
        unsupported = next((a for a in attributes if a.name in _UNSUPPORTED_ATTRIBUTES), None)
        base_type = source.masked[start : declarator.start_byte if declarator else end]
        if builtin:
            parameter.kind, parameter.attribute = "builtin", builtin.name
        elif unsupported:
            parameter.kind, parameter.attribute = "unsupported", unsupported.name
        elif (match := _UNSUPPORTED_TYPES.search(base_type)) and "buffer" not in by_name:
            parameter.kind, parameter.attribute = "unsupported", match.group()
        elif "texture" in by_name or "sampler" in by_name:
            name = "texture" if "texture" in by_name else "sampler"
            parameter.kind, parameter.attribute = name, name
            parameter.index = by_name[name].arguments
        elif "buffer" not in by_name and (match := _TEXTURES.search(base_type)):
            is_handle = not (spaces or parameter.is_pointer or parameter.is_reference)
            parameter.kind = "texture" if is_handle else "unsupported"
            parameter.attribute = "texture" if is_handle else match.group()
        elif not spaces and re.search(r"\bsampler\s*$", base_type):
            parameter.kind, parameter.attribute = "sampler", "sampler"
        elif "threadgroup" in by_name:
            parameter.kind, parameter.attribute = "threadgroup", "threadgroup"
            parameter.index = by_name["threadgroup"].arguments
        elif "buffer" in by_name:
            parameter.kind, parameter.attribute = "buffer", "buffer"
            parameter.index = by_name["buffer"].arguments
        elif "threadgroup" in spaces:
            parameter.kind, parameter.attribute = "threadgroup", "threadgroup"
        elif spaces & {"device", "constant"}:
            parameter.kind, parameter.attribute = "buffer", "buffer"
        elif attributes and attributes[0].name not in ("function_constant", "maybe_unused"):
            parameter.kind, parameter.attribute = "unsupported", attributes[0].name
        elif "threadgroup_imageblock" in spaces:
            parameter.kind, parameter.attribute = "unsupported", "threadgroup_imageblock"
        elif parameter.is_pointer or parameter.is_reference:
            # The address space may hide in a type alias or a template parameter.
            parameter.kind, parameter.attribute = "buffer", "buffer"
        elif function_template_type(source, node):
            parameter.kind, parameter.attribute = "buffer", "buffer"
        else:
            parameter.kind = "unsupported"
            self._forbid(
                "kernel parameter needs an attribute such as [[buffer(n)]] or "
                "[[thread_position_in_grid]]",
                source.next_code(start),
            )
        return parameter

    def _type_as_written(self, start: int, end: int, identifier) -> str:
        text = self.source.text[start:end]
        for item in reversed(self.source.attribute_lists):
            if start <= item.start < end:
                text = text[: item.start - start] + text[item.end - start :]
        if identifier is not None:
            at = identifier.start_byte - start
            blanked_before = sum(
                i.end - i.start
                for i in self.source.attribute_lists
                if start <= i.start < identifier.start_byte
            )
            at -= blanked_before
            text = text[:at] + text[at + identifier.end_byte - identifier.start_byte :]
        text = re.sub(r"\s+", " ", re.sub(r"(?m)^#.*$", "", text)).strip()
        return re.sub(r"\s*([*&])", r" \1", text).replace("* *", "**")

    def _holds_textures(self, parameter: Parameter) -> bool:
        """Returns true if a buffer has handles of textures or samplers as elements, or in structures."""
        if not self._names_handles:
            return False
        seen: set[str] = set()
        waiting = [parameter.type]
        while waiting:
            text = waiting.pop()
            if _HANDLES.search(text):
                return True
            for name in {*re.findall(r"\w+", text)} - seen:
                seen.add(name)
                for scope in self._classes_of_name.get(name, ()):
                    fields = scope.specifier.child_by_field_name("body").named_children
                    waiting += [
                        self.source.masked_text(type_)
                        for f in fields
                        if f.type == "field_declaration"
                        and (type_ := f.child_by_field_name("type"))
                    ]
        return False

    @functools.cached_property
    def _classes_of_name(self) -> dict[str, list[ClassScope]]:
        """Returns the classes by name, specialisations by that of their template."""
        found: dict[str, list[ClassScope]] = {}
        for scope in self.classes:
            found.setdefault(scope.name.split("<")[0].strip(), []).append(scope)
        return found

    def _number_parameters(self, kernel: Kernel) -> None:
        """Gives parameters without an index the lowest free one, in order, as Metal does."""
        for kind in ("buffer", "threadgroup", "texture", "sampler"):
            taken = set()
            for parameter in kernel.parameters:
                if parameter.kind == kind and parameter.index is not None:
                    value = integer_value(parameter.index)
                    if value is not None:
                        taken.update(range(value, value + _indices_of(parameter)))
            following = 0
            for parameter in kernel.parameters:
                if parameter.kind == kind and parameter.index is None:
                    count = _indices_of(parameter)
                    while not taken.isdisjoint(range(following, following + count)):
                        following += 1
                    parameter.index = str(following)
                    taken.update(range(following, following + count))

    def _resolve_instantiations(self) -> None:
        by_name: dict[str, list[Kernel]] = {}
        for kernel in self.kernels:
            by_name.setdefault(kernel.function.name, []).append(kernel)
        for node, path, head in self.instantiations:
            declarator = node.child_by_field_name("declarator")
            if declarator is None:
                continue
            called = function_declarator(declarator, may_be_in_parentheses=True)
            name_node = called.child_by_field_name("declarator") if called else declarator
            while name_node.type == "parenthesized_declarator":
                name_node = name_node.named_children[0]
            signature = called.child_by_field_name("parameters") if called else None
            attributes = self.source.attributes_in(head, name_node.start_byte)
            attributes += self.source.attributes_in(name_node.end_byte, node.end_byte)
            host_name = next((a for a in attributes if a.name == "host_name"), None)
            name = last_name(self.source, name_node)
            candidates = by_name.get(name, [])
            if signature is not None:
                count = len(list(parameter_ranges(signature)))
                candidates = [k for k in candidates if len(k.parameters) == count] or candidates
            candidates = [k for k in candidates if k.function.template_headers] or candidates
            if not candidates:
                if host_name and all(f.name != name for f in self.functions):
                    self._forbid(f"there is no kernel template {name}", name_node.start_byte)
                continue
            kernel = self._visible(candidates, path, name_node)
            host = string_value(host_name.arguments or "") if host_name else None
            arguments = next(
                iter(
                    self.source.find(
                        "(template_function arguments: (template_argument_list) @a)", name_node
                    )
                ),
                None,
            )
            self.instances.append(
                Instance(
                    kernel,
                    host or "::".join([*filter(None, path), self.source.node_text(name_node)]),
                    (name_node.start_byte, name_node.end_byte),
                    signature,
                    path,
                    node.start_byte,
                    arguments,
                )
            )
        self.instances.sort(key=lambda i: i.offset)

    def _visible(self, kernels: list[Kernel], path: tuple[str, ...], name_node) -> Kernel:
        """Returns the kernel, of several of one name, that the name means in the namespace `path`; the first if that
        depends on using-directives."""
        scopes: list[str] = []
        while name_node.type == "qualified_identifier":
            scope = name_node.child_by_field_name("scope")
            if scope is None:
                path = ()  # ::name
            else:
                name = self.source.masked_text(scope).strip()
                scopes += self.namespace_aliases.get(name, (name,))
            name_node = name_node.child_by_field_name("name")
        for count in range(len(path), -1, -1):
            wanted = (*path[:count], *scopes)
            for kernel in kernels:
                if tuple(filter(None, kernel.function.path)) == tuple(filter(None, wanted)):
                    return kernel
        return kernels[0]

    # ---- threadgroup variables -------------------------------------------------------------------

    def _find_threadgroup_variables(self) -> None:
        kernels = {k.function.body.start_byte: k for k in self.kernels}
        for word in self.source.words:
            if word.text != "threadgroup":
                continue
            declaration = self._declaration_of(word)
            if declaration is None:
                continue
            body = declaration
            kernel = None
            while body is not None and kernel is None:
                kernel = kernels.get(body.start_byte) if body.type == "compound_statement" else None
                body = body.parent
            variables = [
                (d, declared_identifier(d))
                for d in declaration.children_by_field_name("declarator")
                if not declarator_kinds(d, True) & {"pointer", "reference", "function"}
            ]
            if not variables:
                continue
            if kernel is None:
                self._forbid(
                    "variable in the threadgroup address space must be declared in a "
                    "kernel function",
                    word.start,
                )
                continue
            for declarator, identifier in variables:
                kernel.threadgroup_variables.append(
                    ThreadgroupVariable(
                        len(kernel.threadgroup_variables), declaration, declarator, identifier, word
                    )
                )

    def _declaration_of(self, word):
        """Returns the local or namespace-scope variable declaration whose base type carries this address space word, or
        None."""
        offset = self.source.next_code(word.end)
        node = self.source.leaf_at(offset)
        while node is not None and node.type not in (
            "declaration",
            "compound_statement",
            "parameter_declaration",
            "type_descriptor",
            "field_declaration",
            "function_definition",
            "optional_parameter_declaration",
            "template_argument_list",
        ):
            node = node.parent
        if node is None or node.type != "declaration":
            return None
        declarator = node.child_by_field_name("declarator")
        if declarator is None or word.start > declarator.start_byte:
            return None
        if self.source.previous_code(word.start) >= node.start_byte:
            # `static threadgroup T x` begins before the word; anything else there belongs to another type.
            between = self.source.masked[node.start_byte : word.start]
            if not re.fullmatch(
                r"(?:\s|static|const|constexpr|volatile|alignas\s*\([^)]*\))*", between
            ):
                return None
        return node

    def skipped(self) -> list[tuple[str, str]]:
        """Returns the names of kernels that are not in the library, with the reasons."""
        return [
            (instance.name, instance.kernel.unsupported)
            for instance in [*self.instances, *self.left_out]
            if instance.kernel.unsupported
        ]


def _indices_of(parameter: Parameter) -> int:
    """Returns how many indices of its table a parameter takes."""
    match = parameter.kind == "texture" and _ARRAY_OF_TEXTURES.search(parameter.type)
    return int(match[1]) if match else 1


# ---- helpers over nodes --------------------------------------------------------------------------


def function_declarator(node, may_be_in_parentheses: bool = False):
    """Returns the function declarator inside pointer and reference declarators, or None for a variable.

    For a conversion function it is an abstract one, which has parameters and no name. may_be_in_parentheses: true if
    `(name)(parameters)` declares a function, as where there are no pointers to functions.
    """
    while node is not None:
        if node.type == "function_declarator":
            inner = node.child_by_field_name("declarator")
            if inner is not None and inner.type == "parenthesized_declarator":
                if may_be_in_parentheses:
                    return node
                return None  # pointer or reference to function
            return node
        if node.type == "operator_cast":
            inner = node.child_by_field_name("declarator")
            while inner is not None and inner.type != "abstract_function_declarator":
                inner = inner.child_by_field_name("declarator") or next(
                    iter(inner.named_children), None
                )
            return inner
        if node.type == "qualified_identifier":  # a conversion function outside of its class
            node = node.child_by_field_name("name")
            continue
        if node.type not in ("pointer_declarator", "reference_declarator", "attributed_declarator"):
            return None
        node = node.child_by_field_name("declarator") or (node.named_children or [None])[-1]
    return None


def declared_identifier(node):
    """Returns the identifier that a declarator declares, or None."""
    while node is not None:
        if node.type in ("identifier", "field_identifier"):
            return node
        if node.type.startswith("abstract_"):
            return None
        following = node.child_by_field_name("declarator")
        if following is None:
            named = [c for c in node.named_children if not c.type.endswith("qualifier")]
            following = named[-1] if named and node.type.endswith("declarator") else None
        node = following
    return None


_KINDS = {
    "pointer_declarator": "pointer",
    "abstract_pointer_declarator": "pointer",
    "reference_declarator": "reference",
    "abstract_reference_declarator": "reference",
    "array_declarator": "array",
    "abstract_array_declarator": "array",
    "function_declarator": "function",
    "abstract_function_declarator": "function",
}


def declarator_kinds(node, as_set: bool = False):
    """Returns what a declarator makes of its base type, from the identifier outwards: pointer, reference, array,
    function."""
    kinds: list[str] = []
    while node is not None:
        if node.type in _KINDS:
            kinds.append(_KINDS[node.type])
        node = _inside(node)
    kinds.reverse()
    return set(kinds) if as_set else kinds


def _inside(declarator):
    """Returns the declarator in a declarator, or None."""
    following = declarator.child_by_field_name("declarator")
    if following is None and declarator.type.endswith("declarator"):
        named = [c for c in declarator.named_children if not c.type.endswith("qualifier")]
        following = named[-1] if named else None
    return following


def name_of(declarator):
    """Returns the node that names a function: an identifier of some kind, or the type of a conversion function."""
    if declarator.type == "abstract_function_declarator":
        node = declarator
        while node is not None and node.type != "operator_cast":
            node = node.parent
        return node.child_by_field_name("type")
    return declarator.child_by_field_name("declarator")


_NAMES_IN = {
    "dependent_name",
    "field_expression",
    "qualified_identifier",
    "template_function",
    "template_method",
}


def name_node(node):
    """Returns the node of the last name in `a::b<c>`, `a.template b<c>` and the like; None for None."""
    while node is not None and node.type in _NAMES_IN:
        node = (
            node.child_by_field_name("field")
            or node.child_by_field_name("name")
            or node.named_children[-1]
        )
    return node


def template_name(node):
    """Returns the node of the name of a template with arguments: a type, a function or a member."""
    return name_node(node.child_by_field_name("name") or node.named_children[0])


def last_name(source: Source, node) -> str:
    """Returns the unqualified name of a function name node, without template arguments."""
    node = name_node(node)
    return "" if node is None else re.sub(r"\s+", "", source.masked_text(node))


def parameter_ranges(parameters):
    """Yields (node, start, end) of each parameter; the range includes blanked attributes around it."""
    start = parameters.start_byte + 1
    node = None
    for child in parameters.children[1:]:
        if child.type in (",", ")", ">"):
            if node is not None:
                yield node, start, child.start_byte
            start, node = child.end_byte, None
        elif child.is_named and child.type != "comment" and node is None:
            node = child


@dataclass(frozen=True)
class TemplateParameter:
    """One parameter of a template. identifier: the node of its name, or None. is_type: true if it stands for types."""

    node: object
    identifier: object | None
    is_type: bool


def template_parameters(header) -> list[TemplateParameter]:
    """Returns the parameters in a template header, the list between `<` and `>`."""
    found = []
    for node, _, _ in parameter_ranges(header):
        is_type = node.type.endswith("type_parameter_declaration")
        name = node.child_by_field_name("name")
        if is_type and name is None:
            name = next((c for c in node.named_children if c.type == "type_identifier"), None)
        elif name is None:
            name = declared_identifier(node.child_by_field_name("declarator"))
        found.append(TemplateParameter(node, name, is_type))
    return found


def parameters_of_lambda(node) -> list:
    """Returns (node, start, end) of each parameter of a lambda_expression (see parameter_ranges)."""
    declarator = node.child_by_field_name("declarator")
    if declarator is None:
        return []
    return [
        p
        for p in parameter_ranges(declarator.child_by_field_name("parameters"))
        if p[0].text != b"void"
    ]


def parameters_of(source: Source, function: Function) -> list:
    """Returns (node, start, end) of each parameter of a function (see parameter_ranges)."""
    parameters = function.declarator.child_by_field_name("parameters")
    return [p for p in parameter_ranges(parameters) if source.masked_text(p[0]).strip() != "void"]


def takes_reference(source: Source, parameter) -> bool:
    """Returns true if a parameter, as parameters_of returns it, is a reference through which the callee may write."""
    node, start, end = parameter
    declarator = node.child_by_field_name("declarator")
    kinds = declarator_kinds(declarator)
    if kinds[:1] != ["reference"]:
        return False
    words = {w.text for w in source.words_in(start, end)}
    if kinds[1:2] == ["pointer"]:  # the pointee may be const
        while declarator.type != "reference_declarator":
            node, declarator = declarator, _inside(declarator)
        words = set()
    qualifiers = {source.node_text(c) for c in node.children if c.type == "type_qualifier"}
    return "const" not in qualifiers and "constant" not in words


def function_template_type(source: Source, parameter) -> bool:
    """Returns true if a parameter's type is a bare name, which may be a template parameter or an alias of a pointer."""
    node = parameter.child_by_field_name("type")
    if node is None:
        return False
    known = re.compile(
        r"(?:u?(?:char|short|int|long)|float|half|bfloat|bool|size_t|u?int(?:8|16|32|64)_t)[234]?$"
    )
    return node.type in (
        "type_identifier",
        "qualified_identifier",
        "template_type",
    ) and not known.match(source.masked_text(node))


def integer_value(text: str) -> int | None:
    """Returns the value of an integer literal with suffix, or None for any other expression."""
    match = re.fullmatch(
        r"\(*\s*(?:(0[xX][\da-fA-F]+|[1-9]\d*)|(0[0-7]*))[uUlL]*\s*\)*", text.strip()
    )
    if match is None:
        return None
    return int(match[1], 0) if match[1] else int(match[2], 8)


__all__ = [
    "Function",
    "FunctionConstant",
    "Instance",
    "Kernel",
    "Parameter",
    "Program",
    "ProgramError",
    "split_arguments",
]


# Initialisers that leave threadgroup memory as it is when a group begins: zero or none.
_ZERO = re.compile(
    r"[\s{}(),]*(?:(?:[A-Za-z_][\w:]*\s*[(){][\s(){]*)?"
    r"(?:0[\dx]*(?:\.0*)?[uUlLfFhH]*|false))?[\s{}(),]*$"
)


def has_zeros(source: Source, declarator) -> bool:
    """Returns true if a variable is initialised with zeros, or not at all."""
    value = declarator.child_by_field_name("value")
    return value is None or bool(_ZERO.match(source.masked_text(value)))


def check_initializer(source: Source, declarator) -> None:
    """Raises ProgramError unless a variable in threadgroup memory is initialised with zeros, or not at all."""
    if not has_zeros(source, declarator):
        raise ProgramError(
            "variable in the threadgroup address space cannot be initialized, except with zero",
            declarator.start_byte,
        )
