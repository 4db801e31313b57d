"""Random structured programs for a simdgroup, and a model of how its lanes run them.

A program is a tree of ifs, loops, switches, conditional expressions and calls of helpers and functors, any of which lanes
take or leave on their own, with simdgroup operations everywhere. Each node can write itself as Metal and run itself for
the lanes of a mask, the way a GPU does: the lanes that diverge in a construct are together again at its end. Where all
threads of the group are, as it happens, they exchange values at threadgroup barriers.

    python -m tests.fuzz.programs [--count N] [--seed N]

runs new ones on the device, prints the first that differs, and exits with status 1 then.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from metalops import msl

LANES = 32
WORD = 0xFFFFFFFF

Mask = int
Values = list[int]  # of all lanes; those of the mask count


def lanes_of(mask: Mask) -> list[int]:
    return [lane for lane in range(LANES) if mask >> lane & 1]


def mask_where(mask: Mask, values: Values) -> Mask:
    return sum(1 << lane for lane in lanes_of(mask) if values[lane])


class Frame:
    """A call: its variables, and the lanes that have left a construct of it."""

    def __init__(self, variables: dict[str, Values]):
        self.variables = variables
        self.results: Values = [0] * LANES
        self.breaks: list[Mask] = []
        self.continues: list[Mask] = []

    def assign(self, name: str, mask: Mask, values: Values) -> None:
        variable = self.variables.setdefault(name, [0] * LANES)
        for lane in lanes_of(mask):
            variable[lane] = values[lane] & WORD


# ---- expressions ---------------------------------------------------------------------------------


@dataclass
class Plain:
    """Without simdgroup operations: the lanes compute it each for itself."""

    text: str
    compute: Callable[..., int]  # of the variables of one lane, by name

    def run(self, mask: Mask, frame: Frame) -> Values:
        result = [0] * LANES
        for lane in lanes_of(mask):
            here = {name: values[lane] for name, values in frame.variables.items()}
            result[lane] = self.compute(here) & WORD
        return result


_OPERATIONS = {
    "simd_sum({})": lambda values: [sum(values)] * len(values),
    "simd_max({})": lambda values: [max(values)] * len(values),
    "simd_broadcast_first({})": lambda values: [values[0]] * len(values),
    "simd_prefix_exclusive_sum({})": lambda values: [sum(values[:i]) for i in range(len(values))],
}


@dataclass
class Operation:
    """A simdgroup operation of the lanes that are there."""

    form: str
    operand: Expression

    @property
    def text(self) -> str:
        return self.form.format(self.operand.text)

    def run(self, mask: Mask, frame: Frame) -> Values:
        values = self.operand.run(mask, frame)
        lanes = lanes_of(mask)
        result = [0] * LANES
        combined = _OPERATIONS[self.form]([values[lane] for lane in lanes]) if lanes else []
        for lane, value in zip(lanes, combined, strict=True):
            result[lane] = value & WORD
        return result


_SHUFFLES = {  # the lane whose value a lane takes; None for its own
    "simd_shuffle(r, ushort({} % 32u))": lambda lane, n: n % 32,
    "simd_shuffle_xor(r, {})": lambda lane, n: lane ^ n,
    "simd_shuffle_down(r, {})": lambda lane, n: lane + n if lane + n < 32 else None,
    "simd_shuffle_up(r, {})": lambda lane, n: lane - n if lane >= n else None,
    "simd_shuffle_rotate_up(r, {})": lambda lane, n: (lane - n) % 32,
    "simd_broadcast(r, {})": lambda lane, n: n,
    "quad_shuffle_xor(r, {} & 3)": lambda lane, n: lane ^ (n & 3),
}


@dataclass
class Shuffle:
    """Of the variable r, whose last value a lane gives that takes no part and has it; others give 0. Where there are no last
    values, as on CUDA, a lane that takes no part gives 0."""

    form: str
    amount: Plain
    has_last_values: ClassVar[bool] = True

    @property
    def text(self) -> str:
        return self.form.format(self.amount.text)

    def run(self, mask: Mask, frame: Frame) -> Values:
        amounts = self.amount.run(mask, frame)
        r = frame.variables["r"]
        result = [0] * LANES
        for lane in lanes_of(mask):
            source = _SHUFFLES[self.form](lane, amounts[lane])
            source = lane if source is None else source
            if self.has_last_values or mask >> source & 1:
                result[lane] = r[source]
        return result


@dataclass
class Choice:
    """condition ? yes : no; or, with `no` or `yes` constant, what && and || make of it."""

    condition: Expression
    yes: Expression
    no: Expression
    form: str = "({} ? {} : {})"

    @property
    def text(self) -> str:
        return self.form.format(self.condition.text, self.yes.text, self.no.text)

    def run(self, mask: Mask, frame: Frame) -> Values:
        taken = mask_where(mask, self.condition.run(mask, frame))
        yes = self.yes.run(taken, frame)
        no = self.no.run(mask & ~taken, frame)
        return [yes[lane] if taken >> lane & 1 else no[lane] for lane in range(LANES)]


@dataclass
class Call:
    """A call of a helper: function(r, lane, shared)."""

    function: Function
    argument: Expression

    @property
    def text(self) -> str:
        return f"{self.function.name}({self.argument.text}, lane, shared)"

    def run(self, mask: Mask, frame: Frame) -> Values:
        argument = self.argument.run(mask, frame)
        return self.function.run(mask, {"r": argument, "lane": frame.variables["lane"]})


@dataclass
class Apply:
    """A functor that a template calls in a loop: `repeat` of HEADER."""

    count: Expression
    body: Block
    result: Expression

    @property
    def text(self) -> str:
        return (
            f"repeat([&](uint k) {{ uint r = k;\n{self.body.text} return {self.result.text}; }}, "
            f"{self.count.text})"
        )

    def run(self, mask: Mask, frame: Frame) -> Values:
        count = self.count.run(mask, frame)
        total = [0] * LANES
        k = 0
        while mask := mask_where(mask, [k < n for n in count]):
            r = [k if mask >> lane & 1 else 0 for lane in range(LANES)]
            inner = Frame({**frame.variables, "r": r, "k": [k] * LANES})
            self.body.run(mask, inner)
            for lane, value in enumerate(self.result.run(mask, inner)):
                total[lane] += value
            k += 1
        return [value & WORD for value in total]


_COMBINATIONS = {
    "({} + {})": lambda a, b: a + b,
    "({} / ({} | 1u))": lambda a, b: a // (b | 1),
    "either({}, {})": lambda a, b: max(a, b),
    "(uint2({}, 1u) * uint2({}, 2u)).x": lambda a, b: a * b,
}


@dataclass
class Both:
    """Two operands that are evaluated in any order."""

    form: str
    left: Expression
    right: Expression

    @property
    def text(self) -> str:
        return self.form.format(self.left.text, self.right.text)

    def run(self, mask: Mask, frame: Frame) -> Values:
        combine = _COMBINATIONS[self.form]
        left, right = self.left.run(mask, frame), self.right.run(mask, frame)
        return [combine(a, b) & WORD for a, b in zip(left, right, strict=True)]


Expression = Plain | Operation | Shuffle | Choice | Call | Apply | Both

# ---- statements: run() returns the lanes that go on behind it -------------------------------------


@dataclass
class Block:
    statements: list

    @property
    def text(self) -> str:
        return "\n".join(s.text for s in self.statements)

    def run(self, mask: Mask, frame: Frame) -> Mask:
        for statement in self.statements:
            if not mask:
                break
            mask = statement.run(mask, frame)
        return mask


@dataclass
class Assign:
    value: Expression

    @property
    def text(self) -> str:
        return f"r = r * 31u + {self.value.text};"

    def run(self, mask: Mask, frame: Frame) -> Mask:
        value = self.value.run(mask, frame)
        r = frame.variables["r"]
        frame.assign("r", mask, [r[lane] * 31 + value[lane] for lane in range(LANES)])
        return mask


@dataclass
class Named:
    """A lambda that is declared, and called by name: of what it captures by value, what is changed before the calls is none
    of its business.

    form: of what it captures. changes: whether it also writes to a variable around it. result: of its r.
    """

    name: str
    form: str
    changes: bool
    early: Expression  # for which it returns at once
    body: Block
    calls: list[Expression]
    between: Expression

    @property
    def text(self) -> str:
        count = "seen += r; " if self.changes else ""
        lines = [
            "uint seen = r, base = r;" if self.changes else "uint base = r;",
            f"auto {self.name} = [{self.form}](uint r) {{",
            f"{count}if ({self.early.text}) return r;",
            self.body.text,
            "return r + base; };",
            f"base = {self.between.text};",
        ]
        calls = [f"r = r * 31u + {self.name}({c.text});" for c in self.calls]
        if len(calls) > 1:  # some lanes make one call, and the others the rest
            calls[0] = f"if (lane % 3u == 0u) {{ {calls[0]} }} else {{"
            calls.append("}")
        lines += [*calls, "r += base;", *(["r = r * 31u + seen;"] if self.changes else [])]
        return "{\n" + "\n".join(lines) + "\n}"

    def run(self, mask: Mask, frame: Frame) -> Mask:
        variables = frame.variables
        before, seen = list(variables["r"]), list(variables["r"])
        base = self.between.run(mask, frame)
        captured = before if self.form.startswith("=") else base

        def call(argument: Expression, some: Mask) -> None:
            r = argument.run(some, frame)
            for lane in lanes_of(some) if self.changes else ():
                seen[lane] += r[lane]
            inner = Frame({**variables, "r": r})
            going = some & ~mask_where(some, self.early.run(some, inner))
            result = list(r)
            self.body.run(going, inner)
            for lane in lanes_of(going):
                result[lane] = inner.variables["r"][lane] + captured[lane]
            r = variables["r"]
            frame.assign("r", some, [r[lane] * 31 + result[lane] for lane in range(LANES)])

        if len(self.calls) == 1:
            call(self.calls[0], mask)
        else:
            first = mask_where(mask, [lane % 3 == 0 for lane in range(LANES)])
            call(self.calls[0], first)
            for argument in self.calls[1:]:
                call(argument, mask & ~first)
        r = variables["r"]
        added = [r[lane] + base[lane] for lane in range(LANES)]
        if self.changes:
            added = [(added[lane] & WORD) * 31 + seen[lane] for lane in range(LANES)]
        frame.assign("r", mask, added)
        return mask


@dataclass
class Exchange:
    """Each lane takes the value of its neighbour, through memory that is `shared` by the simdgroup."""

    text = (
        "shared[lane] = r;\nthreadgroup_barrier(mem_flags::mem_threadgroup);\n"
        "r = r * 31u + shared[lane ^ 1u];\nthreadgroup_barrier(mem_flags::mem_threadgroup);"
    )

    def run(self, mask: Mask, frame: Frame) -> Mask:
        r = frame.variables["r"]
        frame.assign("r", mask, [r[lane] * 31 + r[lane ^ 1] for lane in range(LANES)])
        return mask


@dataclass
class If:
    condition: Expression
    yes: Block
    no: Block | None

    @property
    def text(self) -> str:
        otherwise = f" else {{\n{self.no.text}\n}}" if self.no else ""
        return f"if ({self.condition.text}) {{\n{self.yes.text}\n}}{otherwise}"

    def run(self, mask: Mask, frame: Frame) -> Mask:
        taken = mask_where(mask, self.condition.run(mask, frame))
        rest = mask & ~taken
        after = self.yes.run(taken, frame) if taken else 0
        return after | (self.no.run(rest, frame) if self.no and rest else rest)


@dataclass
class Leave:
    """`if (condition) break;`, continue or return."""

    condition: Expression
    how: str

    @property
    def text(self) -> str:
        return f"if ({self.condition.text}) {{ {self.how} }}"

    def run(self, mask: Mask, frame: Frame) -> Mask:
        leaving = mask_where(mask, self.condition.run(mask, frame))
        if self.how == "break;":
            frame.breaks[-1] |= leaving
        elif self.how == "continue;":
            frame.continues[-1] |= leaving
        else:
            for lane in lanes_of(leaving):
                frame.results[lane] = frame.variables["r"][lane]
        return mask & ~leaving


@dataclass
class Loop:
    kind: str  # for, while, do
    counter: str
    condition: Expression
    body: Block
    step: Expression  # of value 1

    @property
    def text(self) -> str:
        i, condition, body = self.counter, self.condition.text, self.body.text
        count = f"{i} += {self.step.text};"
        if self.kind == "for":
            return f"for (uint {i} = 0; {condition}; {count[:-1]}) {{\n{body}\n}}"
        if self.kind == "while":
            return f"uint {i} = 0;\nwhile ({condition}) {{\n{count}\n{body}\n}}"
        return f"uint {i} = 0;\ndo {{\n{count}\n{body}\n}} while ({condition});"

    def run(self, mask: Mask, frame: Frame) -> Mask:
        frame.assign(self.counter, mask, [0] * LANES)
        frame.breaks.append(0)
        after = 0
        first = True
        while mask:
            if self.kind != "do" or not first:
                again = mask_where(mask, self.condition.run(mask, frame))
                after |= mask & ~again
                mask = again
            first = False
            frame.continues.append(0)
            if self.kind != "for":
                self._count(mask, frame)
            mask = self.body.run(mask, frame) | frame.continues.pop()
            if self.kind == "for":
                self._count(mask, frame)
        return after | frame.breaks.pop()

    def _count(self, mask: Mask, frame: Frame) -> None:
        step = self.step.run(mask, frame)
        before = frame.variables[self.counter]
        frame.assign(self.counter, mask, [before[lane] + step[lane] for lane in range(LANES)])


@dataclass
class Switch:
    """Cases 0 to n - 1, the last of them `default`; some fall through to the next."""

    value: Expression
    cases: list[tuple[Block, bool]]  # and whether it ends with break

    @property
    def text(self) -> str:
        lines = []
        for number, (block, ends) in enumerate(self.cases):
            last = number == len(self.cases) - 1
            lines.append("default: {" if last else f"case {number}: {{")
            lines += [block.text, "}", *(["break;"] if ends else [])]
        return f"switch ({self.value.text}) {{\n" + "\n".join(lines) + "\n}"

    def run(self, mask: Mask, frame: Frame) -> Mask:
        value = self.value.run(mask, frame)
        last = len(self.cases) - 1
        after = running = 0
        for number, (block, ends) in enumerate(self.cases):
            running |= mask_where(mask, [min(v, last) == number for v in value])
            running = block.run(running, frame) if running else 0
            if ends:
                after |= running
                running = 0
        return after | running


# ---- programs ------------------------------------------------------------------------------------


@dataclass
class Function:
    """exchanges: whether all threads must call it."""

    name: str
    body: Block = field(default_factory=lambda: Block([]))
    exchanges: bool = False

    @property
    def text(self) -> str:
        return (
            f"inline uint {self.name}(uint r, uint lane, threadgroup uint* shared) {{\n"
            f"{self.body.text}\nreturn r;\n}}\n"
        )

    def run(self, mask: Mask, variables: dict[str, Values]) -> Values:
        frame = Frame({name: list(values) for name, values in variables.items()})
        for lane in lanes_of(self.body.run(mask, frame)):
            frame.results[lane] = frame.variables["r"][lane]
        return frame.results


HEADER = """\
inline uint either(uint a, uint b) { return max(a, b); }
template <typename F>
inline uint repeat(F f, uint count) {
  uint total = 0;
  for (uint k = 0; k < count; ++k) total += f(k);
  return total;
}
"""


@dataclass
class Program:
    """`kernel`: out[i] = the last helper's result for r = i."""

    name: str
    functions: list[Function]

    @property
    def text(self) -> str:
        return (
            "".join(f.text for f in self.functions)
            + f"kernel void {self.name}(device uint* out, uint i [[thread_position_in_grid]], "
            "uint lane [[thread_index_in_simdgroup]]) {\n"
            f"  threadgroup uint shared[{2 * LANES}];\n"
            f"  out[i] = {self.functions[-1].name}(i, lane, shared + i / {LANES}u * {LANES}u);\n}}\n"
        )

    def run(self, threads: int, has_last_values: bool = True) -> torch.Tensor:
        """What a launch of one threadgroup of so many threads leaves in `out`."""
        Shuffle.has_last_values = has_last_values
        result = []
        for first in range(0, threads, LANES):
            there = min(LANES, threads - first)
            r = [first + lane if lane < there else 0 for lane in range(LANES)]
            variables = {"r": r, "lane": list(range(LANES))}
            result += self.functions[-1].run((1 << there) - 1, variables)[:there]
        return torch.tensor(result, dtype=torch.int64)


class Writer:
    """Makes a program of a seed."""

    def __init__(self, seed: int):
        self.chance = random.Random(seed)
        self.seed = seed
        self.functions: list[Function] = []
        self.counters = 0
        self.statements = 0
        self.all_are_here = False  # all threads of the group, at the place that is being written
        self.exchanges = False
        self.has_lambdas = self.chance.random() < 0.4

    def program(self) -> Program:
        for number in range(self.chance.randint(1, 4)):
            function = Function(f"f{self.seed}_{number}")
            self.statements = self.chance.randint(4, 12)
            self.all_are_here, self.exchanges = True, False
            function.body = self.block(depth=0, in_loop=False, may_return=True)
            function.exchanges = self.exchanges
            self.functions.append(function)
        return Program(f"k{self.seed}", self.functions)

    def plain(self) -> Plain:
        a, b, c = (self.chance.randint(1, 9) for _ in range(3))
        return Plain(f"(r / {a}u + lane * {b}u + {c}u)", lambda v: v["r"] // a + v["lane"] * b + c)

    def condition(self) -> Expression:
        modulus = self.chance.randint(2, 7)
        limit = self.chance.randint(1, modulus)
        of = self.plain()
        plain = Plain(
            f"({of.text} % {modulus}u < {limit}u)",
            lambda v: (of.compute(v) & WORD) % modulus < limit,
        )
        kind = self.chance.random()
        if kind < 0.7:
            return plain
        other = self.operation()
        odd = _Odd(other)
        if kind < 0.85:
            return Choice(plain, odd, _constant(0), "({} && {})")
        return Choice(plain, _constant(1), odd, "({0} || {2})")

    def operation(self) -> Operation | Shuffle:
        if self.chance.random() < 0.3:
            form = self.chance.choice(list(_SHUFFLES))
            count = self.chance.randint(1, 31)
            amount = self.plain() if "% 32u" in form else _constant(count)
            return Shuffle(form, amount)
        return Operation(self.chance.choice(list(_OPERATIONS)), self.plain())

    def value(self, depth: int) -> Expression:
        kind = self.chance.random()
        if kind < 0.5 or depth > 3:
            return self.operation()
        if kind < 0.6:
            return Operation(self.chance.choice(list(_OPERATIONS)), self.value(depth + 1))
        if kind < 0.75:
            return Choice(self.condition(), self.value(depth + 1), self.value(depth + 1))
        if kind < 0.83:
            form = self.chance.choice(list(_COMBINATIONS))
            return Both(form, self.value(depth + 1), self.value(depth + 1))
        callable_by_some = [f for f in self.functions if not f.exchanges]
        if kind < 0.95 and callable_by_some:
            return Call(self.chance.choice(callable_by_some), self.value(depth + 1))
        if depth == 0 and self.has_lambdas:
            body = Block([Assign(self.operation())])
            if self.chance.random() < 0.5:
                body.statements.insert(
                    0, If(self.condition(), Block([Assign(self.operation())]), None)
                )
            return Apply(self.few(), body, self.operation())
        return self.operation()

    def named(self, depth: int) -> Named:
        self.counters += 1
        changes = self.chance.random() < 0.5
        forms = ("=, &seen", "&") if changes else ("=", "&")
        body = self.block_of_some(depth + 2, False, False)
        calls = [self.plain() for _ in range(self.chance.randint(1, 3))]
        return Named(
            f"named{self.counters}",
            self.chance.choice(forms),
            changes,
            self.condition(),
            body,
            calls,
            self.operation(),
        )

    def few(self) -> Plain:
        of, modulus = self.plain(), self.chance.randint(2, 4)
        return Plain(f"({of.text} % {modulus}u)", lambda v: (of.compute(v) & WORD) % modulus)

    def meeting(self, depth: int):
        """What all threads run, though only a run of the program shows that they all do."""
        kind = self.chance.random()
        of = self.plain()
        if kind < 0.4 or depth > 2:
            self.exchanges = True
            return Exchange()
        if kind < 0.55 and any(f.exchanges for f in self.functions):
            self.exchanges = True
            return Assign(Call(self.chance.choice([f for f in self.functions if f.exchanges]), of))
        if kind < 0.7:
            always = Plain(f"(({of.text} | 1u) != 0u)", lambda v: 1)
            never = Plain(f"(({of.text} | 1u) == 0u)", lambda v: 0)
            yes, no = self.block(depth + 1, False, False), self.block(depth + 1, False, False)
            return If(*self.chance.choice(((always, yes, no), (never, no, yes))))
        count = self.chance.randint(1, 3)
        if kind < 0.8:
            cases = [
                (self.block(depth + 1, False, False), self.chance.random() < 0.6) for _ in range(3)
            ]
            return Switch(Plain(f"({of.text} * 0u + {count}u)", lambda v: count), cases)
        counter = self.counter()
        condition = Plain(f"({counter} < {of.text} * 0u + {count}u)", lambda v: v[counter] < count)
        kind = self.chance.choice(("for", "while", "do"))
        return Loop(kind, counter, condition, self.block(depth + 1, False, False), _constant(1))

    def counter(self) -> str:
        self.counters += 1
        return f"i{self.counters}"

    def block_of_some(self, depth: int, in_loop: bool, may_return: bool) -> Block:
        """What threads run that have diverged."""
        before, self.all_are_here = self.all_are_here, False
        block = self.block(depth, in_loop, may_return)
        self.all_are_here = before and not any("return r;" in s.text for s in block.statements)
        return block

    def block(self, depth: int, in_loop: bool, may_return: bool) -> Block:
        return Block(
            [
                self.statement(depth, in_loop, may_return)
                for _ in range(self.chance.randint(1, 4 if depth == 0 else 3))
            ]
        )

    def statement(self, depth: int, in_loop: bool, may_return: bool):
        self.statements -= 1
        kind = self.chance.random()
        if self.statements < 0 or depth > 3 or kind < 0.35:
            return Assign(self.value(0))
        if self.all_are_here and self.chance.random() < 0.4:
            return self.meeting(depth)
        if kind < 0.45 and in_loop:
            return Leave(self.condition(), self.chance.choice(("break;", "continue;")))
        if kind < 0.5 and may_return:
            self.all_are_here = False
            return Leave(self.condition(), "return r;")
        if kind > 0.9 and self.has_lambdas:
            return self.named(depth)
        if kind < 0.7:
            yes = self.block_of_some(depth + 1, in_loop, may_return)
            no = (
                self.block_of_some(depth + 1, in_loop, may_return)
                if self.chance.random() < 0.5
                else None
            )
            return If(self.condition(), yes, no)
        if kind < 0.8:
            cases = [
                (self.block_of_some(depth + 1, False, may_return), self.chance.random() < 0.6)
                for _ in range(self.chance.randint(2, 4))
            ]
            modulus = len(cases) + 1
            of = self.plain()
            value = Plain(f"({of.text} % {modulus}u)", lambda v: (of.compute(v) & WORD) % modulus)
            return Switch(value, cases)
        return self.loop(depth, may_return)

    def loop(self, depth: int, may_return: bool) -> Loop:
        counter = self.counter()
        a, modulus = self.chance.randint(1, 9), self.chance.randint(2, 4)
        condition: Expression = Plain(
            f"({counter} < (lane * {a}u + 1u) % {modulus}u)",
            lambda v: v[counter] < (v["lane"] * a + 1) % modulus,
        )
        if self.chance.random() < 0.2:
            condition = Choice(condition, _NotZero(self.operation()), _constant(0), "({} && {})")
        step: Expression = _constant(1)
        if self.chance.random() < 0.2:
            step = Choice(_NotZero(self.operation()), step, step)
        kind = self.chance.choice(("for", "while", "do"))
        body = self.block_of_some(depth + 1, True, may_return)
        return Loop(kind, counter, condition, body, step)


def _constant(value: int) -> Plain:
    return Plain(f"{value}u", lambda v: value)


@dataclass
class _Odd:
    operation: Operation | Shuffle

    @property
    def text(self) -> str:
        return f"({self.operation.text} % 2u == 1u)"

    def run(self, mask: Mask, frame: Frame) -> Values:
        return [value % 2 for value in self.operation.run(mask, frame)]


@dataclass
class _NotZero:
    """Always true, but an operation all the same."""

    operation: Operation | Shuffle

    @property
    def text(self) -> str:
        return f"(({self.operation.text} | 1u) != 0u)"

    def run(self, mask: Mask, frame: Frame) -> Values:
        self.operation.run(mask, frame)
        return [1] * LANES


def program_of(seed: int) -> Program:
    return Writer(seed).program()


def source_of(programs: list[Program]) -> str:
    return (
        "#include <metal_stdlib>\nusing namespace metal;\n"
        + HEADER
        + "".join(p.text for p in programs)
    )


THREADS = 52  # a whole simdgroup and a part of one


def differences(seeds: list[int]) -> list[tuple[int, str, list[int]]]:
    """Of the programs of these seeds, compiled as one library, those that ran differently from the model on an engine: the
    seed, the engine and the threads with other results."""
    from metalops import _host

    options = msl.Options(optimize=1, engines="all")
    programs = [program_of(seed) for seed in seeds]
    library = _host.Library(str(msl.compile_source(source_of(programs), options=options)))
    engines = {entry["name"]: entry["engines"] for entry in library.kernel_table()}
    result = []
    for seed, program in zip(seeds, programs, strict=True):
        expected = program.run(THREADS)
        for engine in engines[program.name]:
            out = torch.zeros(THREADS, dtype=torch.int32)
            library.launch(program.name, [out], THREADS, THREADS, engine=engine)
            wrong = (out.long() & WORD) != expected
            if wrong.any():
                result.append((seed, engine, wrong.nonzero().flatten().tolist()))
    return result


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.programs")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1000)
    arguments = parser.parse_args()
    seeds = list(range(arguments.seed, arguments.seed + arguments.count))
    for first in range(0, len(seeds), 20):
        for seed, engine, threads in differences(seeds[first : first + 20]):
            print(f"seed {seed} differs from the model on engine {engine} in threads {threads}:")
            print(source_of([program_of(seed)]))
            return 1
    print(f"{len(seeds)} programs run as the model does")
    return 0


if __name__ == "__main__":
    sys.exit(main())
