"""A functor's gradient in differentiable operators of torch, read from its Metal expressions.

Derivatives of the gradient, of whatever order and in either mode, are torch's own of this formula. The reader supports
arithmetic, comparisons, conditions, Metal's mathematical functions that torch has too, and functions of the header that
consist of one expression. Expressions with anything else are Unreadable, rather than guessed.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..identifiers import mentioned
from .definition import Definition

# A Python int or bool, or a tensor: of bools, or of floats, as literals and parameters are.
Value = Tensor | int
Expression = Callable[[dict[str, Value]], Value]

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_TOKEN = re.compile(
    r"\s*(?:(?P<float>(?:\d+\.\d*|\.\d+|\d+(?=[eE]))(?:[eE][-+]?\d+)?[fF]?(?![\w.]))"
    r"|(?P<int>0[xX][\da-fA-F]+|\d+)[lL]?(?![\w.])"
    r"|(?P<name>[A-Za-z_]\w*(?:\s*::\s*[A-Za-z_]\w*)*)"
    r"|(?P<sign><=|>=|==|!=|&&|\|\||[-+*/<>!?:(),]))"
)
_FUNCTION = re.compile(
    r"\b(?:inline\s+)?float\s+(?P<name>\w+)\s*\((?P<parameters>[^()]*)\)\s*\{\s*return\b(?P<body>[^;{}]*);\s*\}"
)
_PARAMETER = re.compile(r"\s*(?:const\s+)?float\s+(?:const\s+)?(\w+)\s*")
_PREFIX = re.compile(r"^(?:metal::)?(?:(?:precise|fast)::)?")

_CONSTANTS = {
    "M_E_F": 2.718281828459045,
    "M_LOG2E_F": 1.4426950408889634,
    "M_LOG10E_F": 0.4342944819032518,
    "M_LN2_F": 0.6931471805599453,
    "M_LN10_F": 2.302585092994046,
    "M_PI_F": 3.141592653589793,
    "M_PI_2_F": 1.5707963267948966,
    "M_PI_4_F": 0.7853981633974483,
    "M_1_PI_F": 0.3183098861837907,
    "M_2_PI_F": 0.6366197723675814,
    "M_2_SQRTPI_F": 1.1283791670955126,
    "M_SQRT2_F": 1.4142135623730951,
    "M_SQRT1_2_F": 0.7071067811865476,
    "INFINITY": float("inf"),
    "NAN": float("nan"),
}

# Functions of floats; Metal's in the namespace metal, torch's headers' in c10::metal.
_FUNCTIONS: dict[str, tuple[int, Callable[..., Tensor]]] = {
    **{name: (1, getattr(torch, name)) for name in (
        "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "exp", "exp2", "floor",
        "isfinite", "isinf", "isnan", "log", "log10", "log2", "rsqrt", "sign", "sin", "sinh", "sqrt", "tan",
        "tanh", "trunc",
    )},
    "exp10": (1, lambda x: torch.pow(10.0, x)),
    "fabs": (1, torch.abs),
    "float": (1, lambda x: x),
    "fract": (1, lambda x: x - torch.floor(x)),
    "rint": (1, torch.round),
    # Half-way cases round away from zero; torch's round to even.
    "round": (1, lambda x: torch.trunc(x + torch.copysign(torch.full_like(x, 0.5), x))),
    "saturate": (1, lambda x: torch.clamp(x, 0, 1)),
    "atan2": (2, torch.atan2),
    "copysign": (2, torch.copysign),
    "fmax": (2, torch.maximum),
    "fmin": (2, torch.minimum),
    "max": (2, torch.maximum),
    "min": (2, torch.minimum),
    "pow": (2, torch.pow),
    "powr": (2, torch.pow),
    "clamp": (3, lambda x, low, high: torch.minimum(torch.maximum(x, low), high)),
    "fma": (3, lambda a, b, c: a * b + c),
    "mix": (3, lambda a, b, t: a + (b - a) * t),
    **{f"c10::metal::{name}": (1, getattr(torch.special, name)) for name in (
        "digamma", "erf", "erfc", "erfinv", "i0", "i0e", "i1", "i1e", "sinc",
    )},
    "c10::metal::log_gamma": (1, torch.lgamma),
}  # fmt: skip

_COMPARISONS = {
    "<": torch.lt,
    ">": torch.gt,
    "<=": torch.le,
    ">=": torch.ge,
    "==": torch.eq,
    "!=": torch.ne,
}
_PRECEDENCE = [("||",), ("&&",), ("==", "!="), ("<", ">", "<=", ">="), ("+", "-"), ("*", "/")]


class Unreadable(Exception):
    """The text has no counterpart in torch that is known here; the message says which part."""


def formula(definition: Definition, needed: frozenset[str]) -> Callable | str:
    """Returns the gradients of the inputs as a function of the tensors and of the numbers that the backward operator
    takes, each in one list; or, if there is no such function, the reason. needed: the inputs and parameters that the
    operator takes."""
    if definition.torch_grad is not None:
        return functools.partial(_given, definition)
    try:
        return _Formula(definition, needed)
    except Unreadable as reason:
        return f"it cannot be derived from grad, as {reason}; give {definition.name!r} a torch_grad"


def _given(d: Definition, tensors: Sequence[Tensor], numbers: Sequence[float]) -> list[Tensor]:
    parameters = dict(zip((p.name for p in d.parameters), numbers, strict=False))
    result = d.torch_grad(*tensors, **parameters)
    results = [result] if isinstance(result, Tensor) else list(result)
    if len(results) != len(d.inputs):
        raise ValueError(
            f"{d.name}: torch_grad must return the gradients of {len(d.inputs)} inputs, but returned {len(results)}"
        )
    return results


class _Formula:
    """The formula that is read from the text of grad."""

    def __init__(self, d: Definition, needed: frozenset[str]):
        """Raises Unreadable."""
        if d.complex:
            raise Unreadable("its inputs may be complex")
        functions = _header_functions(d.header)
        self._tensors = (*d.gradient_names, *(x for x in d.inputs if x in needed))
        self._parameters = [p for p in d.parameters if p.name in needed]
        names = {*self._tensors, *(p.name for p in self._parameters)}
        self._outputs: list[tuple[str, Expression]] = []
        if mentioned(" ".join(d.grad)) & set(d.outputs):
            if d.is_struct:
                raise Unreadable("it uses the result of a struct")
            for output, text in zip(d.outputs, d.expressions, strict=True):
                self._outputs.append((output, _Parser(text, names, functions).whole()))
            names |= set(d.outputs)
        self._gradients = [_Parser(text, names, functions).whole() for text in d.grad]

    def __call__(self, tensors: Sequence[Tensor], numbers: Sequence[float]) -> list[Tensor]:
        tensors = torch.broadcast_tensors(*tensors)  # results have the whole shape
        scope: dict[str, Value] = dict(zip(self._tensors, tensors, strict=True))
        for parameter, number in zip(self._parameters, numbers, strict=False):
            is_float = parameter.kind is float
            scope[parameter.name] = _constant(number, tensors[0]) if is_float else number
        scope[""] = tensors[0]  # constants get its device
        scope.update([(output, _float(value(scope), scope)) for output, value in self._outputs])
        return [_float(value(scope), scope).expand_as(tensors[0]) for value in self._gradients]


def _constant(number: float, like: Tensor) -> Tensor:
    return torch.full((), number, dtype=torch.float32, device=like.device)


def _float(value: Value, scope: dict[str, Value]) -> Tensor:
    if not isinstance(value, Tensor):
        return _constant(value, scope[""])
    return value.float() if value.dtype == torch.bool else value


def _number(value: Value) -> Value:
    """Returns the value as an operand of arithmetic, in which bools are integers."""
    if isinstance(value, Tensor):
        return value.float() if value.dtype == torch.bool else value
    return int(value)


def _condition(value: Value) -> Value:
    if isinstance(value, Tensor):
        return value if value.dtype == torch.bool else value != 0
    return bool(value)


def _divide(a: Value, b: Value) -> Value:
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return a / b
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def _where(condition: Expression, yes: Expression, no: Expression) -> Expression:
    """Returns a conditional expression. Each arm is computed from inputs that are 1 where the other arm is chosen, so
    that its values there (log(0), 1 / 0) reach no derivative."""

    def value(scope):
        chosen = _condition(condition(scope))
        if not isinstance(chosen, Tensor):
            return yes(scope) if chosen else no(scope)

        def arm(expression, mine):
            own = {
                name: torch.where(mine, x, 1.0)
                if isinstance(x, Tensor) and x.is_floating_point()
                else x
                for name, x in scope.items()
            }
            return _float(expression(own), scope)

        return torch.where(chosen, arm(yes, chosen), arm(no, ~chosen))

    return value


def _binary(sign: str, left: Expression, right: Expression) -> Expression:
    if sign in ("&&", "||"):
        combine = operator.and_ if sign == "&&" else operator.or_
        return lambda scope: combine(_condition(left(scope)), _condition(right(scope)))
    if sign in _COMPARISONS:
        compare = _COMPARISONS[sign]
        return lambda scope: compare(_float(left(scope), scope), _float(right(scope), scope))
    function = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": _divide}[sign]
    return lambda scope: function(_number(left(scope)), _number(right(scope)))


def _negative(operand: Expression) -> Expression:
    return lambda scope: -_number(operand(scope))


def _not(operand: Expression) -> Expression:
    def value(scope):
        condition = _condition(operand(scope))
        return ~condition if isinstance(condition, Tensor) else not condition

    return value


class _Parser:
    """Parses Metal text into a function of the variables' values."""

    def __init__(self, text: str, names: set[str], functions: dict[str, tuple[int, Callable]]):
        self._names = names
        self._functions = functions
        self._tokens: list[tuple[str, str]] = []
        text = _COMMENT.sub(" ", text).strip()
        at = 0
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None:
                raise Unreadable(f"{text[at:].split()[0]!r} is not known")
            self._tokens.append((match.lastgroup, re.sub(r"\s", "", match.group(match.lastgroup))))
            at = match.end()
        self._tokens.append(("end", "the end"))
        self._at = 0

    def whole(self) -> Expression:
        result = self._ternary()
        self._expect("the end")
        return result

    def _next(self) -> tuple[str, str]:
        self._at += 1
        return self._tokens[self._at - 1]

    def _has(self, *signs: str) -> str:
        """Returns and consumes the next token if it is one of these, else returns ""."""
        text = self._tokens[self._at][1]
        if text not in signs:
            return ""
        self._at += 1
        return text

    def _expect(self, sign: str) -> None:
        if not self._has(sign):
            raise Unreadable(f"{self._tokens[self._at][1]!r} is not known")

    def _ternary(self) -> Expression:
        condition = self._level(0)
        if not self._has("?"):
            return condition
        yes = self._ternary()
        self._expect(":")
        return _where(condition, yes, self._ternary())

    def _level(self, level: int) -> Expression:
        if level == len(_PRECEDENCE):
            return self._unary()
        left = self._level(level + 1)
        while sign := self._has(*_PRECEDENCE[level]):
            left = _binary(sign, left, self._level(level + 1))
        return left

    def _unary(self) -> Expression:
        sign = self._has("-", "+", "!")
        if sign == "-":
            return _negative(self._unary())
        if sign == "!":
            return _not(self._unary())
        return self._unary() if sign else self._primary()

    def _primary(self) -> Expression:
        kind, text = self._next()
        if kind == "float":
            number = float(text.rstrip("fF"))
            return lambda scope: _constant(number, scope[""])
        if kind == "int":
            integer = int(text, 0 if text[:2].lower() == "0x" else 10)
            return lambda scope: integer
        if text == "(":
            inner = self._ternary()
            self._expect(")")
            return inner
        if kind != "name":
            raise Unreadable(f"{text!r} is not known")
        if self._has("("):
            return self._call(text)
        if text in self._names:
            return lambda scope: scope[text]
        if text in ("true", "false"):
            return lambda scope: text == "true"
        if text in _CONSTANTS:
            return lambda scope: _constant(_CONSTANTS[text], scope[""])
        raise Unreadable(f"{text!r} is not known")

    def _call(self, name: str) -> Expression:
        arguments = [self._ternary()]
        while self._has(","):
            arguments.append(self._ternary())
        self._expect(")")
        plain = _PREFIX.sub("", name)
        if plain == "select" and len(arguments) == 3:
            return _where(arguments[2], arguments[1], arguments[0])
        arity, function = self._functions.get(name) or _FUNCTIONS.get(plain) or (0, None)
        if function is None or arity != len(arguments):
            raise Unreadable(f"{name!r} with {len(arguments)} arguments is not known")
        if name in self._functions:
            return lambda scope: function(scope, *(x(scope) for x in arguments))
        return lambda scope: function(*(_float(x(scope), scope) for x in arguments))


def _header_functions(header: str) -> dict[str, tuple[int, Callable]]:
    """Returns the functions of the header, which hide Metal's: those of one expression are callable, the others are
    not."""
    text = rest = _COMMENT.sub(" ", header)
    functions: dict[str, tuple[int, Callable]] = {}
    for match in _FUNCTION.finditer(text):
        parameters = [_PARAMETER.fullmatch(x) for x in match["parameters"].split(",")]
        if not all(parameters):
            continue
        names = [x.group(1) for x in parameters]
        body = _Parser(match["body"], set(names), functions).whole()
        functions[match["name"]] = (len(names), _inlined(names, body))
        rest = rest.replace(match.group(), " ")
    others = mentioned(rest)
    if "define" in others:
        raise Unreadable("its header has macros")
    return functions | {name: (-1, None) for name in others}


def _inlined(names: list[str], body: Expression) -> Callable:
    def function(scope: dict[str, Value], *arguments: Value) -> Value:
        values = [_float(x, scope) for x in arguments]
        return _float(body({**dict(zip(names, values, strict=True)), "": scope[""]}), scope)

    return function
