"""The parameters of a function in its group form."""

from __future__ import annotations

import re

from ....analysis.program import declarator_kinds, declared_identifier, takes_reference
from ....analysis.variables import Variable
from ....dialect import names
from .context import FunctionContext
from .rewriter import Rewriter

_S = names.SUPPORT
# A thread's index in its simdgroup (thunks.py), which loops of one simdgroup count.
_LANE = f"(msl_t.index) & {_S}::kSimdMask"
# Types that parameters with a thread's indices and positions may have.
TYPES_OF_BUILTINS = re.compile(r"(?:const )?(?:u?(?:int|short)[234]?|unsigned(?: int)?)")


def is_scalar_builtin(type_text: str) -> bool:
    return bool(TYPES_OF_BUILTINS.fullmatch(type_text)) and not type_text[-1].isdigit()


class Parameters:
    """Decides which parameters are loaded once, and computes those that loops rematerialise."""

    def __init__(self, context: FunctionContext, rewriter: Rewriter, builtins: dict[str, str]):
        """builtins: a thread's indices and positions, by attribute, in terms of `msl_t`."""
        self._parameters = context.parameters
        self._source = context.source
        self._body = context.body
        self._function = context.function
        self._kernel = context.kernel
        self._again = context.again
        self._rewriter = rewriter
        self._builtins = builtins
        self.is_of_simdgroup = False  # true in a loop that a simdgroup runs by itself

    def loaded_once(self, node, start: int, end: int):
        """Returns the name of a parameter that is a reference to an unchanging value, which is read once: a compiler
        would otherwise have to reload it after every store. None for others."""
        declarator = node.child_by_field_name("declarator")
        identifier = declared_identifier(declarator)
        if identifier is None or declarator_kinds(declarator) != ["reference"]:
            return None
        if takes_reference(self._source, (node, start, end)):
            return None
        if self._body.variables.of[identifier.start_byte].is_of_group:
            return None
        name = self._source.node_text(identifier)
        body = self._source.masked_text(self._function.body)
        if re.search(rf"(?<!&)&\s*{name}\b(?!\s*\.)", body):
            return None
        return identifier

    def is_loaded_once(self, variable: Variable) -> bool:
        return self.loaded_once(*self._parameters[self.position_of(variable)]) is not None

    def name_given(self, identifier) -> str:
        return f"msl_given_{self._source.node_text(identifier)}"

    def rematerialised(self, position: int) -> str:
        """Returns the declaration of a parameter that each thread computes for itself."""
        name = declared_identifier(self._parameters[position][0].child_by_field_name("declarator"))
        return (
            f"{self.type_of(position)} {self._source.node_text(name)} = {self.value_of(position)};"
        )

    def type_of(self, position: int) -> str:
        node, start, _ = self._parameters[position]
        identifier = declared_identifier(node.child_by_field_name("declarator"))
        text = self._rewriter.unrenamed(start, identifier.start_byte)
        return " ".join(text.split())

    def attribute(self, position: int) -> str | None:
        """Returns the attribute of a parameter that each thread computes for itself; None for a component of one."""
        if self._kernel is None:
            return self._again[position].attribute
        return self._kernel.parameters[position].attribute

    def value_of(self, position: int) -> str:
        """Returns the value of a parameter that each thread computes for itself."""
        value = self._value_of(position)
        return value.replace(_LANE, "msl_t.lane") if self.is_of_simdgroup else value

    def _value_of(self, position: int) -> str:
        if self._kernel is None:
            return self._again[position].text
        value = self._builtins[self._kernel.parameters[position].attribute]
        type_text = self.type_of(position)
        if is_scalar_builtin(type_text):  # loops that need no more than x need not run row by row
            value = value.split(", ")[0]
        return f"{_S}::builtin<{type_text}>::make({value})"

    def position_of(self, variable: Variable) -> int:
        return next(
            i
            for i, (node, _, _) in enumerate(self._parameters)
            if node.start_byte == variable.declaration.start_byte
        )
