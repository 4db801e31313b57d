"""Random programs whose meaning depends on address spaces, and a model of Metal's overload resolution in plain Python.

Each overload returns a type of its own, `sized<N>`; so a program compiles if and only if each call means the overload
that the model says.
"""

import itertools
import random
from dataclasses import dataclass

SPACES = ("device", "threadgroup", "constant", "thread")
# Begin the names of the pointers that a program has.
LETTERS = {"device": "o", "constant": "c", "threadgroup": "t", "thread": "own"}
POINTEES = ("float", "half", "int")
VALUES = {"uint": ("1u", "uint(2)"), "ushort": ("ushort(1)",), "float": ("1.0f", "own_float[0]")}
HEAD = """
#include <metal_stdlib>
using namespace metal;
template <int N> struct sized { uchar bytes[N]; };
"""


@dataclass(frozen=True)
class Pointer:
    space: str
    pointee: str | None  # None: a template parameter

    def written(self, number):
        return f"const {self.space} {self.pointee or f'T{number}'}* p{number}"


@dataclass(frozen=True)
class Value:
    type: str

    def written(self, number):
        return f"{self.type} p{number}"


@dataclass
class Overload:
    name: str
    parameters: tuple
    size: int

    @property
    def is_template(self):
        return any(isinstance(p, Pointer) and p.pointee is None for p in self.parameters)

    def declaration(self):
        templates = [
            f"typename T{n}"
            for n, p in enumerate(self.parameters)
            if isinstance(p, Pointer) and p.pointee is None
        ]
        head = f"template <{', '.join(templates)}> " if templates else ""
        written = ", ".join(p.written(n) for n, p in enumerate(self.parameters))
        return f"{head}sized<{self.size}> {self.name}({written}) {{ return sized<{self.size}>(); }}"

    def ranks(self, arguments):
        """How it takes arguments, worst conversion last; None if it does not."""
        if len(arguments) != len(self.parameters):
            return None
        found = []
        for parameter, argument in zip(self.parameters, arguments):
            if isinstance(parameter, Value) != isinstance(argument, Value):
                return None
            if isinstance(parameter, Value):
                found.append(int(parameter.type != argument.type))
            elif parameter.space != argument.space:
                return None
            elif parameter.pointee not in (None, argument.pointee):
                return None
            else:
                found.append(0)
        return found


def meant(overloads, arguments):
    """The overload that a call means in Metal; None if there is none, or no best one."""
    viable = [(o, o.ranks(arguments)) for o in overloads if o.ranks(arguments) is not None]

    def is_better(one, other):
        pairs = list(zip(one[1], other[1]))
        if any(a > b for a, b in pairs):
            return False
        if any(a < b for a, b in pairs):
            return True
        if one[0].is_template != other[0].is_template:
            return other[0].is_template
        return _values(one[0]) == _values(other[0]) and _special(one[0]) > _special(other[0])

    best = [v for v in viable if all(v is w or is_better(v, w) for w in viable)]
    return best[0][0] if len(best) == 1 else None


def _values(overload):
    """The parameters that are no pointers: of templates they must be the same, or neither is more special."""
    return [p for p in overload.parameters if isinstance(p, Value)]


def _special(overload):
    """The parameters that name what a template of the same shape leaves open; comparable if one includes the other."""
    return {n for n, p in enumerate(overload.parameters) if getattr(p, "pointee", "") is not None}


def program_of(seed):
    """The source of a program."""
    random_ = random.Random(seed)
    sizes = itertools.count(1)
    functions, calls = [], []
    general = {}  # functions that hand any arguments on, by name
    for family in range(3):
        name = f"f{family}"
        overloads = _family(random_, name, sizes)
        functions += [o.declaration() for o in overloads]
        for _ in range(40):
            arguments = [_argument(random_, p) for p in random_.choice(overloads).parameters]
            found = meant(overloads, arguments)
            if found is not None:
                calls.append((name, found, arguments))
    lines = []
    for number, (name, found, arguments) in enumerate(calls):
        before, written = [], []
        for position, argument in enumerate(arguments):
            statement, expression = _written(random_, argument, f"v{number}_{position}")
            before += statement
            written.append(expression)
        result = f"sized<{found.size}> r{number}"
        form = random_.random()
        if form < 0.2 and all(isinstance(a, Pointer) for a in arguments):
            functions.append(_wrapper(number, name, found, arguments))
            name = f"w{number}"
        elif form < 0.8:
            name = _general(random_, general, name, arguments)
        lines += [
            *before,
            f"{result} = {name}({', '.join(written)}); out[0] += r{number}.bytes[0];",
        ]
    types = ", ".join(f"device {t}* o_{t}, constant {t}* c_{t}" for t in POINTEES)
    memory = [f"threadgroup {t} t_{t}[4]; {t} own_{t}[4] = {{0}};" for t in POINTEES]
    body = "\n  ".join([*memory, *lines])
    return (
        HEAD
        + "\n".join([*functions, *general.values()])
        + f"\nkernel void k(device uchar* out, {types}) {{\n  {body}\n}}\n"
    ), len(calls)


def _family(random_, name, sizes):
    """Overloads that vary one list of parameters."""
    first = []
    for _ in range(random_.randint(1, 3)):
        if random_.random() < 0.65:
            first.append(Pointer(random_.choice(SPACES), random_.choice((*POINTEES, None))))
        else:
            first.append(Value(random_.choice([*VALUES])))
    shapes = {}
    for _ in range(random_.randint(2, 6)):
        shapes.setdefault(tuple(_varied(random_, p) for p in first), None)
    return [Overload(name, shape, next(sizes)) for shape in shapes]


def _varied(random_, parameter):
    if isinstance(parameter, Value):
        return Value(random_.choice([*VALUES])) if random_.random() < 0.5 else parameter
    space = random_.choice(SPACES) if random_.random() < 0.7 else parameter.space
    pointee = random_.choice((*POINTEES, None)) if random_.random() < 0.3 else parameter.pointee
    return Pointer(space, pointee)


def _argument(random_, parameter):
    """An argument that mostly suits a parameter."""
    if isinstance(parameter, Value):
        return Value(random_.choice([*VALUES]))
    space = parameter.space if random_.random() < 0.8 else random_.choice(SPACES)
    return Pointer(space, parameter.pointee or random_.choice(POINTEES))


def _written(random_, argument, variable):
    """(statements before it, expression) of an argument."""
    if isinstance(argument, Value):
        return [], random_.choice(VALUES[argument.type])
    base = f"{LETTERS[argument.space]}_{argument.pointee}"
    const = "" if argument.space == "constant" else "const "
    return pointer_written(random_, base, f"{const}{argument.space} {argument.pointee}*", variable)


def pointer_written(random_, base, type_, variable):
    """Likewise of a pointer of a type, which the program has under the name `base`."""
    form = random_.randrange(7)
    if form < 3:
        return [], (base, f"{base} + 1", f"&{base}[2]")[form]
    if form == 3:
        return [f"auto {variable} = {base} + 1;"], variable
    if form == 4:
        return [f"{type_} {variable} = {base};"], f"({variable})"
    if form == 5:
        return [f"{type_} {variable}[2] = {{{base}, {base}}};"], f"{variable}[1]"
    return [], f"({type_}){base}"


def _general(random_, general, name, arguments):
    """The name of a template that hands on whatever it is given; several calls share it."""
    count, spaces = len(arguments), {getattr(a, "space", None) for a in arguments}
    numbers = range(count)
    types = ", ".join(f"typename P{n}" for n in numbers)
    given = ", ".join(f"p{n}" for n in numbers)
    forms = [
        (
            f"of_{count}_{name}",
            f"template <{types}> auto {{}}({', '.join(f'P{n} p{n}' for n in numbers)}) "
            f"{{{{ return {name}({given}); }}}}",
        ),
        (
            f"by_alias_{count}_{name}",
            f"template <{types}> auto {{}}({', '.join(f'const P{n} p{n}' for n in numbers)}) "
            f"{{{{ P0 q = p0; return {name}({given.replace('p0', 'q', 1)}); }}}}",
        ),
        (
            f"of_all_{name}",
            f"template <typename... P> auto {{}}(P... p) {{{{ return {name}(p...); }}}}",
        ),
        (
            f"of_rest_{name}",
            f"template <typename P, typename... R> auto {{}}(P p, R... rest) "
            f"{{{{ return {name}(p, rest...); }}}}",
        ),
    ]
    if len(spaces) == 1 and None not in spaces:
        space = spaces.pop()
        forms.append(
            (
                f"in_{space}_{name}",
                f"template <typename... P> auto {{}}(const {space} P*... p) "
                f"{{{{ return {name}(p...); }}}}",
            )
        )
    written = ", ".join(map(_type, arguments))
    members = " ".join(f"P{n} q{n};" for n in numbers)
    of_members = ", ".join(f"q{n}" for n in numbers)
    parameters = ", ".join(f"P{n} p{n}" for n in numbers)
    forms += [
        (f"of_{count}_{name}<{written}>", forms[0][1].replace("{}", f"of_{count}_{name}")),
        (
            f"reader_{count}_{name}<{written}>::of",
            f"template <{types}> struct reader_{count}_{name} {{{{ "
            f"static auto of({parameters}) {{{{ return {name}({given}); }}}} }}}};",
        ),
        (
            f"of_object_{count}_{name}",
            f"template <{types}> struct object_{count}_{name} {{{{ {members} "
            f"auto get() const {{{{ return {name}({of_members}); }}}} }}}};\n"
            f"template <{types}> auto {{}}({parameters}) {{{{ "
            f"return object_{count}_{name}<{types.replace('typename ', '')}>{{{{{given}}}}}.get(); }}}}",
        ),
    ]
    name, definition = random_.choice(forms)
    general.setdefault(name.split("<")[0], definition.format(name))
    if "<" in name:
        return name
    if random_.random() < 0.3:
        general.setdefault(
            f"through_{name}",
            f"template <typename... P> auto through_{name}(P... p) {{ return {name}(p...); }}",
        )
        return f"through_{name}"
    return name


def _type(argument):
    """The type of an argument, as a template argument."""
    if isinstance(argument, Value):
        return argument.type
    const = "" if argument.space == "constant" else "const "
    return f"{const}{argument.space} {argument.pointee}*"


def _wrapper(number, name, found, arguments):
    """A function that hands its parameters on."""
    written = ", ".join(a.written(n) for n, a in enumerate(arguments))
    given = ", ".join(f"p{n}" for n in range(len(arguments)))
    return f"sized<{found.size}> w{number}({written}) {{ return {name}({given}); }}"
