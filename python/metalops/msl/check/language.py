"""C++ that Metal leaves out: types, statements, specifiers, and features of later versions."""

from __future__ import annotations

import functools
import re

from ..analysis.program import declarator_kinds, declared_identifier, function_declarator
from ..source.vocabulary import (
    FRAGMENT_FUNCTIONS,
    LIBRARY_WITH_SPACES,
    SYNCHRONISING,
    is_library_function,
)
from .checked import Checked, ancestor, descendants
from .rules import rule

_RESTRICTIONS = "1.5.4"

DOUBLE = rule(
    "double",
    "2.1",
    "double, long double, long long and __int128 do not exist: use float and long.",
)
ARRAY_SIZE = rule(
    "array-size", "2.6", "The size of an array is a constant expression, and no function constant."
)
VECTOR_SIZE = rule(
    "vector-size",
    "2.2",
    "Vectors have 2, 3 or 4 components, from Metal 4.0 on 8 or 16 too as vec<T, N>; matrices have 2 to 4 rows and "
    "columns.",
)
RECURSION = rule(
    "recursion", _RESTRICTIONS, "A function does not call itself, directly or through others."
)
FUNCTION_POINTER = rule(
    "function-pointer",
    _RESTRICTIONS,
    "Functions are passed as functors or through visible_function_table.",
)
VIRTUAL = rule("virtual", _RESTRICTIONS, "There are no virtual functions: use templates.")
NEW_DELETE = rule("new-delete", _RESTRICTIONS, "There is no heap: no new and delete.")
EXCEPTION = rule("exception", _RESTRICTIONS, "There are no exceptions: no try, catch and throw.")
GOTO = rule("goto", _RESTRICTIONS, "There is no goto and there are no labels.")
RTTI = rule("rtti", _RESTRICTIONS, "There is no dynamic_cast and no typeid.")
STD = rule("std", _RESTRICTIONS, "The C++ standard library is not there: use metal_stdlib.")
STORAGE = rule("storage-class", "5.3", "There is no thread_local and no register.")
STATIC_LOCAL = rule("static-local", "5.3", "A variable in a function is not static.")
VARIADIC = rule(
    "variadic-function", _RESTRICTIONS, "Functions do not take '...': use a parameter pack."
)
MAIN = rule("main", _RESTRICTIONS, "No function is called main.")
LAMBDA = rule("lambda", _RESTRICTIONS, "Lambdas need Metal 3.2.")
INIT_STATEMENT = rule(
    "init-statement",
    "1.5",
    "A declaration in front of the condition of an if is an extension before Metal 4.",
    is_suspicion=True,
)
CPP17 = rule("cpp17", "1.5", "if constexpr and the rest of C++17 need Metal 4.")
STRING = rule("string-literal", "6.19", "String literals belong to os_log and to error reporting.")

_ELEMENTS = "bool|char|uchar|short|ushort|int|uint|long|ulong|half|float|bfloat|size_t|ptrdiff_t"
_VECTOR_NAME = re.compile(rf"(?:packed_)?(?:{_ELEMENTS})(?:\d+)(?:x\d+)?$")
_GOOD_VECTOR = re.compile(
    rf"(?:(?:packed_)?(?:{_ELEMENTS})[234]|(?:packed_)?(?:half|float|bfloat)[234]x[234])$"
)
_LONG_DOUBLE = re.compile(r"(?:\d[\d']*\.[\d']*|\.\d|[\d']+[eE]|0[xX][^pP]*[pP]).*[lL]$")
_INT128 = re.compile(r"(?:__u?int128_t|(?:(?:un)?signed )?__int128(?: (?:un)?signed)?)$")
_DOUBLE_NAME = re.compile(r"(?:packed_)?double(?:[1-4](?:x[1-4])?)?$")


def check(checked: Checked) -> None:
    """Reports violations of the rules of this group."""
    group = _Language(checked)
    for node in descendants(checked.source.root):
        handler = group.handlers.get(node.type)
        if handler is not None and checked.wants(node.start_byte):
            handler(node)
    group.functions()
    _Recursion(checked).run()


class _Language:
    def __init__(self, checked: Checked):
        self.checked = checked
        self.source = checked.source
        self.declared = _declared_types(checked)
        self.handlers = {
            "array_declarator": self.array,
            "number_literal": self.number,
            "primitive_type": self.type_name,
            "type_identifier": self.type_name,
            "sized_type_specifier": self.type_name,
            "template_type": self.template_type,
            "template_function": self.template_type,
            "function_declarator": self.function_declarator,
            "abstract_function_declarator": self.function_declarator,
            "virtual": self.simple(
                VIRTUAL, "virtual functions do not exist; make it a template parameter"
            ),
            "virtual_specifier": self.simple(
                VIRTUAL, "virtual functions do not exist; leave this word out"
            ),
            "new_expression": self.simple(
                NEW_DELETE, "new does not exist; use an array of a fixed size"
            ),
            "delete_expression": self.delete,
            "try_statement": self.simple(
                EXCEPTION, "exceptions do not exist; return a value that tells"
            ),
            "throw_statement": self.simple(
                EXCEPTION, "exceptions do not exist; return a value that tells"
            ),
            "goto_statement": self.simple(
                GOTO, "goto does not exist; use a loop with break or continue"
            ),
            "labeled_statement": self.simple(GOTO, "labels do not exist; leave it out"),
            "call_expression": self.call,
            "namespace_identifier": self.namespace,
            "using_declaration": self.using,
            "storage_class_specifier": self.storage_class,
            "variadic_parameter": self.simple(
                VARIADIC, "functions do not take '...'; use a parameter pack or an array"
            ),
            "...": self.ellipsis,
            "lambda_expression": self.lambda_expression,
            "if_statement": self.if_constexpr,
            "structured_binding_declarator": self.cpp17(
                "a structured binding", "name the members one by one"
            ),
            "fold_expression": self.cpp17(
                "a fold expression", "write the recursion over overloads out"
            ),
            "init_statement": self.init_statement,
            "nested_namespace_specifier": self.nested_namespace,
            "string_literal": self.string,
            "raw_string_literal": self.string,
        }

    def simple(self, rule, sentence):
        return lambda node: self.checked.report(rule, node, sentence)

    def cpp17(self, what, instead):
        def handler(node):
            if self.checked.language < 400:
                self.checked.report(CPP17, node, f"{what} needs Metal 4; {instead}")

        return handler

    # ---- types -----------------------------------------------------------------------------------

    def type_name(self, node) -> None:
        name = self.checked.text(node)
        words = name.split()
        if "double" in words or words.count("long") > 1:
            instead = "float" if "double" in words else "long"
            self.checked.report(DOUBLE, node, f"{name} does not exist; use {instead}")
        elif _INT128.match(name) and node.parent.type != "sized_type_specifier":
            self.checked.report(
                DOUBLE, node, f"{name} does not exist; use two numbers of type ulong"
            )
        elif name in self.declared or self._is_elsewhere(node):
            return
        elif _DOUBLE_NAME.match(name):
            self.checked.report(
                DOUBLE, node, f"{name} does not exist; use {name.replace('double', 'float')}"
            )
        elif _VECTOR_NAME.match(name) and not _GOOD_VECTOR.match(name):
            self.checked.report(
                VECTOR_SIZE,
                node,
                f"{name} does not exist; vectors have 2, 3 or 4 components: use an array of them",
            )

    def number(self, node) -> None:
        text = self.checked.text(node)
        if _LONG_DOUBLE.match(text):
            self.checked.report(
                DOUBLE, node, f"{text} is a literal of type long double; write {text[:-1]}"
            )

    def array(self, node) -> None:
        """Reports arrays that function constants size."""
        size = node.child_by_field_name("size")
        for name in descendants(size) if size is not None else ():
            if name.type != "identifier" or self.checked.text(name) not in self.function_constants:
                continue
            if self.checked.calls.scopes_around(name).declaration_of(name) is None:
                self.checked.report(
                    ARRAY_SIZE,
                    name,
                    f"{self.checked.text(name)} is a function constant, whose value is not known when arrays get their "
                    "sizes; make it a template parameter, or the array as large as it may become",
                )
                return

    @functools.cached_property
    def function_constants(self) -> set[str]:
        """The names of function constants and of constants that are computed from them."""
        found: set[str] = set()
        for node, _, head in self.checked.program.declarations:
            attributes = self.source.attributes_in(head, self.source.next_code(node.end_byte))
            is_one = any(a.name == "function_constant" for a in attributes)
            for declarator in node.children_by_field_name("declarator"):
                identifier = declared_identifier(declarator)
                value = declarator.child_by_field_name("value")
                names = [n for n in descendants(value) if n.type == "identifier"] if value else []
                if identifier is not None and (
                    is_one or any(self.checked.text(n) in found for n in names)
                ):
                    found.add(self.checked.text(identifier))
        return found

    def _is_elsewhere(self, node) -> bool:
        """Returns true if a name belongs to a namespace other than metal."""
        parent = node.parent
        if parent.type != "qualified_identifier":
            return False
        scope = parent.child_by_field_name("scope")
        return scope is not None and self.checked.text(scope) != "metal"

    def template_type(self, node) -> None:
        name = self.checked.text(node.child_by_field_name("name"))
        arguments = node.child_by_field_name("arguments").named_children
        if name in self.declared or name not in ("vec", "packed_vec", "matrix"):
            return
        sizes = {"2", "3", "4"}
        if name == "vec" and self.checked.language >= 400:
            sizes |= {"8", "16"}
        for argument in arguments[1:]:
            if argument.type == "number_literal" and self.checked.text(argument) not in sizes:
                kind = (
                    "a matrix has 2 to 4 rows and columns"
                    if name == "matrix"
                    else "a vector has 2, 3 or 4 components"
                )
                self.checked.report(
                    VECTOR_SIZE,
                    argument,
                    f"{self.checked.text(node)} does not exist; {kind}: use an array of them",
                )
                return

    # ---- functions -------------------------------------------------------------------------------

    def function_declarator(self, node) -> None:
        """Reports stored pointers to functions. Apple's compiler accepts them as template arguments and as parameters
        of functions, where inlining dissolves them."""
        inner = node.child_by_field_name("declarator")
        if inner is None or inner.type not in (
            "parenthesized_declarator",
            "abstract_parenthesized_declarator",
        ):
            return
        if not any(
            d.type.endswith(("pointer_declarator", "reference_declarator"))
            for d in descendants(inner)
        ):
            return
        kinds = (
            "parameter_declaration",
            "optional_parameter_declaration",
            "alias_declaration",
            "type_definition",
        )
        holder = ancestor(
            node,
            *kinds,
            "declaration",
            "field_declaration",
            "template_argument_list",
            "type_descriptor",
        )
        if holder is None or holder.type not in ("declaration", "field_declaration"):
            return
        self.checked.report(
            FUNCTION_POINTER,
            node,
            "a pointer to a function cannot be kept; pass a functor as a template argument, or use "
            "visible_function_table",
        )

    def functions(self) -> None:
        for function in self.checked.program.functions:
            if function.name == "main" and not function.in_class and function.stage is None:
                self.checked.report(
                    MAIN,
                    function.declarator,
                    "a function cannot be called main; give it another name",
                )

    def call(self, node) -> None:
        called = node.child_by_field_name("function")
        if called.type == "template_function":
            called = called.child_by_field_name("name")
        name = self.checked.text(called)
        if name in ("dynamic_cast", "typeid"):
            self.checked.report(
                RTTI, node, f"{name} does not exist; let a template parameter carry the type"
            )

    def ellipsis(self, node) -> None:
        if node.parent.type == "parameter_list" and node.parent.parent.type != "catch_clause":
            self.handlers["variadic_parameter"](node)

    def delete(self, node) -> None:
        if node.parent.type != "init_declarator":  # `= delete` of a function
            self.checked.report(NEW_DELETE, node, "delete does not exist; leave it out")

    # ---- names and specifiers --------------------------------------------------------------------

    def namespace(self, node) -> None:
        if self.checked.text(node) == "std" and "std" not in self.declared_namespaces:
            self.checked.report(
                STD, node, "the C++ standard library is not there; use metal:: and metal_stdlib"
            )

    def using(self, node) -> None:
        names = [c for c in node.named_children if self.checked.text(c) == "std"]
        if names and "std" not in self.declared_namespaces:
            self.checked.report(
                STD, names[0], "the C++ standard library is not there; use namespace metal"
            )

    @property
    def declared_namespaces(self) -> set[str]:
        if not hasattr(self, "_namespaces"):
            self._namespaces = {
                self.checked.text(n)
                for n in self.source.find("(namespace_definition name: (_) @n)")
            }
        return self._namespaces

    def storage_class(self, node) -> None:
        word = self.checked.text(node)
        if word in ("thread_local", "register"):
            self.checked.report(
                STORAGE, node, f"{word} does not exist; a variable of a thread needs no such word"
            )
        elif word == "static" and node.parent.type == "declaration":
            function = ancestor(
                node, "function_definition", "lambda_expression", "field_declaration_list"
            )
            if function is not None and function.type != "field_declaration_list":
                self.checked.report(
                    STATIC_LOCAL,
                    node,
                    "a variable in a function cannot be static; move it to namespace scope as "
                    "constant, "
                    "or leave static out",
                )
        elif word == "inline" and self.checked.language < 400 and node.parent.type == "declaration":
            declarator = node.parent.child_by_field_name("declarator")
            if function_declarator(declarator) is None and "function" not in declarator_kinds(
                declarator
            ):
                self.checked.report(
                    CPP17, node, "an inline variable needs Metal 4; leave inline out"
                )

    # ---- versions --------------------------------------------------------------------------------

    def lambda_expression(self, node) -> None:
        if self.checked.language < 320:
            self.checked.report(LAMBDA, node, "a lambda needs Metal 3.2; use a functor")

    def if_constexpr(self, node) -> None:
        if self.checked.language < 400:
            word = next((c for c in node.children if c.type == "constexpr"), None)
            if word is not None:
                self.checked.report(
                    CPP17,
                    word,
                    "if constexpr needs Metal 4; use an overload, or a plain if where both "
                    "branches compile",
                )

    def init_statement(self, node) -> None:
        if node.parent.type == "condition_clause" and self.checked.language < 400:
            self.checked.report(
                INIT_STATEMENT,
                node,
                "Apple's compiler warns of a declaration in front of a condition; put it before the if",
            )

    def nested_namespace(self, node) -> None:
        if node.parent.type == "namespace_definition":
            self.cpp17("namespace a::b", "nest two namespaces")(node)

    # ---- strings ---------------------------------------------------------------------------------

    def string(self, node) -> None:
        """Reports string literals, except arguments of calls that log or report errors, initialisers of constant char
        data, and messages of static_assert."""
        outer = ancestor(
            node,
            "call_expression",
            "static_assert_declaration",
            "linkage_specification",
            "declaration",
            "field_declaration",
            "compound_statement",
            "translation_unit",
        )
        if outer.type in ("static_assert_declaration", "linkage_specification"):
            return
        if outer.type == "call_expression" and self._takes_strings(outer):
            return
        if outer.type in ("declaration", "field_declaration"):
            start = self.source.previous_code(outer.start_byte) + 1
            type_node = outer.child_by_field_name("type")
            words = self.source.words_in(start, node.start_byte)
            if any(w.text == "constant" for w in words) or (
                type_node is not None and self.checked.text(type_node).endswith("os_log")
            ):
                return
        self.checked.report(
            STRING,
            node,
            "a string literal can only be logged with os_log or kept in constant memory; use a "
            "number",
        )

    def _takes_strings(self, call) -> bool:
        called = call.child_by_field_name("function")
        field = called.child_by_field_name("field") or called.child_by_field_name("name") or called
        name = self.checked.text(field).split("<")[0].split("::")[-1]
        if name.startswith(("log", "os_log", "static_assert", "__builtin", "printf")):
            return name != "printf"
        for function in self.checked.program.functions:
            if function.name == name:
                parameters = function.declarator.child_by_field_name("parameters")
                if any(
                    w.text == "constant"
                    for w in self.source.words_in(parameters.start_byte, parameters.end_byte)
                ):
                    return True
        return False


def _declared_types(checked: Checked) -> set[str]:
    """Returns the names of types, aliases and template parameters that the program declares itself."""
    names = {scope.name.split("<")[0] for scope in checked.program.classes}
    for query in (
        "(alias_declaration name: (type_identifier) @n)",
        "(type_definition declarator: (type_identifier) @n)",
        "(type_parameter_declaration (type_identifier) @n)",
        "(enum_specifier name: (type_identifier) @n)",
    ):
        names |= {checked.text(n) for n in checked.source.find(query)}
    return names


def _may_be_of_library(name: str) -> bool:
    """Returns true for the name of a function of metal_stdlib, which an overload in the program may call."""
    names = (LIBRARY_WITH_SPACES, SYNCHRONISING, FRAGMENT_FUNCTIONS)
    return is_library_function(name) or any(name in n for n in names)


class _Recursion:
    """Finds recursion: cycles in the call graph. Only functions whose name has a single definition count, so that an
    overload or another instance of a template is never mistaken for the caller."""

    def __init__(self, checked: Checked):
        self.checked = checked
        types = _declared_types(checked)
        counts: dict[str, list] = {}
        for function in checked.program.functions:
            counts.setdefault(function.name, []).append(function)
        self.functions = {}
        for name, found in counts.items():
            defined = [f for f in found if f.body is not None]
            if len(defined) != 1 or len(found) > 2 or name.startswith("operator"):
                continue
            if name in types or _may_be_of_library(name):
                continue
            if self._is_constexpr(defined[0]):
                continue  # which may be called for constants alone
            if defined[0].stage is not None:
                continue  # a call of that name may mean another function
            if (
                defined[0].declarator.type != "abstract_function_declarator"
            ):  # conversion functions are left out
                self.functions[name] = defined[0]
        self.calls = {name: self._calls(f) for name, f in self.functions.items()}

    def _is_constexpr(self, function) -> bool:
        head = self.checked.source.masked[function.head : function.declarator.start_byte]
        return re.search(r"\bconstexpr\b", head) is not None

    def run(self) -> None:
        for name, calls in self.calls.items():
            for called, node in calls:
                path = self._path(called, name)
                if path is None:
                    continue
                through = "" if called == name else f" through {', '.join(path[:-1])}"
                self.checked.report(
                    RECURSION,
                    node,
                    f"{name} calls itself{through}, and there is no recursion; write a loop",
                )
                break

    def _calls(self, function) -> list[tuple[str, object]]:
        found = []
        for node in self.checked.source.find("(call_expression) @c", function.body):
            called = node.child_by_field_name("function")
            if called.type == "field_expression":
                if self.checked.text(called.child_by_field_name("argument")) not in (
                    "this",
                    "(*this)",
                ):
                    continue
                called = called.child_by_field_name("field")
            if called.type not in ("identifier", "field_identifier"):
                continue  # explicit template arguments: another instance
            name = self.checked.text(called)
            target = self.functions.get(name)
            if (
                target is None
                or _GOOD_VECTOR.match(name)
                or self.checked.calls.scopes_around(node).declaration_of(called) is not None
            ):
                continue
            if target.in_class and target.path != function.path:
                continue
            if target is not function or not self._ends_after_one_step(function, node):
                found.append((name, node))
        return found

    def _ends_after_one_step(self, function, call) -> bool:
        """Returns true if a call is the reflection `if (x < 0) return f(-x);`, which Apple's compiler unrolls: its
        argument cannot be negative again."""
        text = self.checked.source.masked_text
        arguments = call.child_by_field_name("arguments").named_children
        if len(arguments) != 1 or arguments[0].type != "unary_expression":
            return False
        negated = re.fullmatch(r"-\s*(\w+)", text(arguments[0]))
        guard = ancestor(call, "if_statement", "function_definition")
        if negated is None or guard.type != "if_statement":
            return False
        condition = text(guard.child_by_field_name("condition"))
        return bool(
            re.fullmatch(
                rf"\(\s*{negated[1]}\s*<\s*(?:\w+\s*\(\s*)?0?\.?0*f?\s*\)?\s*\)", condition
            )
        )

    def _path(self, start: str, goal: str) -> list[str] | None:
        """Returns the names of a chain of calls from one function to another, both included, or None."""
        waiting = [[start]]
        seen = {start}
        while waiting:
            path = waiting.pop(0)
            if path[-1] == goal:
                return path
            for called, _ in self.calls.get(path[-1], ()):
                if called not in seen:
                    seen.add(called)
                    waiting.append([*path, called])
        return None
