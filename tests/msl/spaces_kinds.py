"""Random programs of many kinds whose meaning depends on address spaces, and what a model of Metal says that each means.

Every use gives an object of a type of its own, `sized<N>`, as in spaces_programs.py: so a program compiles if and only if
each use means what the model says.
"""

import itertools
import random
from dataclasses import dataclass

from .spaces_programs import HEAD, LETTERS, POINTEES, SPACES, pointer_written

VALUES = ("uint", "float")
WRITTEN = {"uint": ("1u", "uint(2)"), "float": ("1.0f", "own_float[0]")}


@dataclass(frozen=True)
class Given:
    """An argument. form: "pointer", "reference" (an object), "pointers" (to a pointer in thread memory) or "value"."""

    form: str
    space: str | None
    pointee: str

    @property
    def type(self):
        """The type of a pointer or of a value."""
        if self.form == "value":
            return self.pointee
        const = "" if self.space == "constant" else "const "
        pointer = f"{const}{self.space} {self.pointee}*"
        return f"{pointer} thread*" if self.form == "pointers" else pointer


@dataclass(frozen=True)
class Taken:
    """A parameter. pointee: None for a parameter of a template."""

    form: str
    space: str | None
    pointee: str | None

    def written(self, number):
        name = self.pointee or f"T{number}"
        if self.form == "value":
            return f"{name} p{number}"
        # Behind two pointers nothing becomes const: arguments in constant memory are not written as const.
        is_const = self.form != "pointers" or self.space != "constant"
        text = f"{'const ' if is_const else ''}{self.space} {name}"
        if self.form == "reference":
            return f"{text}& p{number}"
        return f"{text}* thread* p{number}" if self.form == "pointers" else f"{text}* p{number}"

    def rank(self, given):
        """How it takes an argument: 0, or 1 by a conversion; None if it does not."""
        if self.form != given.form:
            return None
        if self.form == "value":
            return int(self.pointee != given.pointee)
        if self.space != given.space or self.pointee not in (None, given.pointee):
            return None
        return 0


@dataclass(frozen=True)
class Overload:
    parameters: tuple
    size: int

    def declaration(self, name, behind="", before=""):
        names = [f"typename T{n}" for n, p in enumerate(self.parameters) if p.pointee is None]
        head = f"template <{', '.join(names)}> " if names else ""
        written = ", ".join(p.written(n) for n, p in enumerate(self.parameters))
        size = f"sized<{self.size}>"
        return f"{head}{before}{size} {name}({written}){behind} {{ return {size}(); }}"


def meant(overloads, given):
    """The overload that a call means; None if there is none, or no best one."""
    viable = []
    for overload in overloads:
        ranks = [p.rank(g) for p, g in zip(overload.parameters, given, strict=True)]
        if None not in ranks:
            viable.append((overload, ranks))

    def is_better(one, other):
        pairs = list(zip(one[1], other[1], strict=True))
        if any(a > b for a, b in pairs):
            return False
        if any(a < b for a, b in pairs):
            return True
        opened = [
            {n for n, p in enumerate(o.parameters) if p.pointee is None} for o, _ in (one, other)
        ]
        if not opened[0] or not opened[1]:
            return bool(opened[1])
        plain = [[p for p in o.parameters if p.form == "value"] for o, _ in (one, other)]
        return plain[0] == plain[1] and opened[0] < opened[1]

    best = [v for v in viable if all(v is w or is_better(v, w) for w in viable)]
    return best[0][0] if len(best) == 1 else None


class Programs:
    """One program: declarations, the statements of its kernel, and how many uses it has."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.sizes = itertools.count(1)
        self.declarations: dict[str, str] = {}  # by name
        self.lines: list[str] = []
        self.count = 0

    def source(self):
        for number in range(2):
            self._functions(f"f{number}")
        self._call_operators("operators")
        self._members("members")
        self._traits("trait")
        self._comparisons()
        types = ", ".join(f"device {t}* o_{t}, constant {t}* c_{t}" for t in POINTEES)
        memory = [f"threadgroup {t} t_{t}[4]; {t} own_{t}[4] = {{0}};" for t in POINTEES]
        body = "\n  ".join([*memory, *self.lines])
        declared = "\n".join(self.declarations.values())
        return f"{HEAD}{declared}\nkernel void k(device uchar* out, {types}) {{\n  {body}\n}}\n"

    def _declare(self, name, text):
        self.declarations.setdefault(name, text)
        return name

    def _use(self, size, expression, before=()):
        name = f"r{self.count}"
        self.count += 1
        self.lines += [*before, f"sized<{size}> {name} = {expression}; out[0] += {name}.bytes[0];"]

    def _one_of(self, *choices):
        return self.random.choice(choices)

    # ---- overloads -------------------------------------------------------------------------------

    def _overloads(self, *more):
        """Overloads that vary one list of parameters. more: further forms of parameters."""
        first = []
        for _ in range(self._one_of(1, 1, 2, 2, 3)):
            form = self._one_of("pointer", "pointer", "pointer", "reference", "value", *more)
            if form == "value":
                first.append(Taken(form, None, self._one_of(*VALUES)))
            else:
                pointee = (
                    self._one_of(*POINTEES, None) if form == "pointer" else self._one_of(*POINTEES)
                )
                first.append(Taken(form, self._one_of(*SPACES), pointee))
        shapes = {}
        # In C++ a reference to const also takes what is converted, in thread memory: where another parameter is converted,
        # too, a call that Metal understands is an error here, and is left out.
        keeps_references = any(taken.form == "value" for taken in first)
        for _ in range(self._one_of(2, 3, 4, 5)):
            shapes.setdefault(tuple(self._varied(taken, keeps_references) for taken in first))
        return [Overload(shape, next(self.sizes)) for shape in shapes]

    def _varied(self, taken, keeps_references):
        if taken.form == "value":
            return (
                taken if self.random.random() < 0.7 else Taken("value", None, self._one_of(*VALUES))
            )
        space = self._one_of(*SPACES) if self.random.random() < 0.7 else taken.space
        pointee = taken.pointee
        if self.random.random() < 0.3:
            pointee = self._one_of(*POINTEES, *([None] if taken.form == "pointer" else []))
        if keeps_references and taken.form == "reference":
            pointee = taken.pointee
        return Taken(taken.form, space, pointee)

    def _given(self, taken):
        """An argument that mostly suits a parameter."""
        if taken.form == "value":
            return Given("value", None, self._one_of(*VALUES))
        space = taken.space if self.random.random() < 0.8 else self._one_of(*SPACES)
        return Given(taken.form, space, taken.pointee or self._one_of(*POINTEES))

    def _calls(self, overloads, count):
        """Yields (what is meant, arguments) of calls that mean something."""
        for _ in range(count):
            given = [*map(self._given, self._one_of(*overloads).parameters)]
            found = meant(overloads, given)
            if found is not None:
                yield found, given

    def _written(self, given, variable):
        """(statements before it, expression) of an argument."""
        if given.form == "value":
            return [], self._one_of(*WRITTEN[given.pointee])
        base = f"{LETTERS[given.space]}_{given.pointee}"
        pointer = Given("pointer", given.space, given.pointee).type
        if given.form == "reference":
            return self._object(base, pointer, variable)
        if given.form == "pointers":
            text = f"{pointer} {variable}[2] = {{{base}, {base}}};"
            return [text], self._one_of(variable, f"&{variable}[1]", f"{variable} + 1")
        return pointer_written(self.random, base, pointer, variable)

    def _object(self, base, pointer, variable):
        form = self.random.randrange(4)
        if form < 2:
            return [], (f"{base}[1]", f"*({base} + 1)")[form]
        if form == 2:
            return [f"{pointer[:-1]}& {variable} = {base}[2];"], variable
        return [f"{pointer} {variable} = {base};"], f"*{variable}"

    def _arguments(self, given):
        before, written = [], []
        for position, argument in enumerate(given):
            statements, expression = self._written(argument, f"v{self.count}_{position}")
            before += statements
            written.append(expression)
        return before, written

    def _functions(self, name):
        overloads = self._overloads("pointers")
        for overload in overloads:
            self._declare(f"{name} {overload.size}", overload.declaration(name))
        for found, given in self._calls(overloads, 14):
            before, written = self._arguments(given)
            is_handed = all(g.form in ("pointer", "value") for g in given)
            callee = self._through(name, given) if is_handed else name
            if callee.startswith("["):
                variable = f"g{self.count}"
                before.append(f"auto {variable} = {callee};")
                callee = variable
            self._use(found.size, f"{callee}({', '.join(written)})", before)

    def _through(self, name, given):
        """What hands arguments on to a function: itself, a lambda, a class or a template."""
        numbers = range(len(given))
        types = ", ".join(g.type for g in given)
        handed = ", ".join(f"p{n}" for n in numbers)
        autos = ", ".join(f"{self._one_of('auto', 'const auto')} p{n}" for n in numbers)
        body = f"{{ return {name}({handed}); }}"
        form = self._one_of(
            "plain", "lambda", "alike", "passed", "pack", "class", "object", "local"
        )
        if form == "lambda":
            return f"[&]({autos}) {body}"
        if form == "alike":  # a lambda that several calls share
            shared = f"shared_{name}_{len(given)}"
            if not any(line.startswith(f"auto {shared} =") for line in self.lines):
                self.lines.append(f"auto {shared} = [=]({autos}) {body};")
            return shared
        if form == "passed":
            types_ = ", ".join(f"typename P{n}" for n in numbers)
            parameters = ", ".join(f"P{n} p{n}" for n in numbers)
            self._declare(
                f"apply_{len(given)}",
                f"template <typename F, {types_}> auto apply_{len(given)}(F f, {parameters}) "
                f"{{ return f({handed}); }}",
            )
            return f"[&]({autos}) {{ return apply_{len(given)}([]({autos}) {body}, {handed}); }}"
        if form == "pack":
            return self._declare(
                f"of_pack_{name}",
                f"template <typename... P> auto of_pack_{name}(P... p) {{ return {name}(p...); }}",
            )
        if form == "class":
            pack = self._declare(
                f"pack_{name}",
                f"template <typename... P> struct pack_{name} {{ "
                f"static auto of(P... p) {{ return {name}(p...); }} }};",
            )
            return f"{pack}<{types}>::of"
        if form == "object":
            functor = self._declare(
                f"functor_{name}",
                f"struct functor_{name} {{ template <typename... P> "
                f"auto operator()(P... p) const {{ return {name}(p...); }} }};",
            )
            return f"{functor}()"
        if form == "local":
            return self._declare(
                f"local_{name}_{len(given)}",
                f"template <{', '.join(f'typename P{n}' for n in numbers)}> "
                f"auto local_{name}_{len(given)}({', '.join(f'P{n} p{n}' for n in numbers)}) {{ "
                f"auto g = [&]({autos.replace('p', 'q')}) {{ return {name}({handed.replace('p', 'q')}); }}; "
                f"auto h = g({handed}); return h; }}",
            )
        return name

    # ---- members ---------------------------------------------------------------------------------

    def _call_operators(self, name):
        overloads = self._overloads()
        written = " ".join(o.declaration("operator()", " const") for o in overloads)
        self._declare(name, f"struct {name} {{ {written} }};")
        for found, given in self._calls(overloads, 10):
            before, arguments = self._arguments(given)
            form = self._one_of("object", "temporary", "passed")
            if form == "passed" and all(g.form in ("pointer", "value") for g in given):
                numbers = range(len(given))
                applied = self._declare(
                    f"call_{len(given)}",
                    f"template <typename F, {', '.join(f'typename P{n}' for n in numbers)}> "
                    f"auto call_{len(given)}(const thread F& f, {', '.join(f'P{n} p{n}' for n in numbers)}) "
                    f"{{ return f({', '.join(f'p{n}' for n in numbers)}); }}",
                )
                self._use(found.size, f"{applied}({', '.join([f'{name}()', *arguments])})", before)
                continue
            if form == "temporary":
                callee = f"{name}{{}}"
            else:
                callee = f"x{self.count}"
                before.append(f"{name} {callee};")
            self._use(found.size, f"{callee}({', '.join(arguments)})", before)

    def _members(self, name):
        """Member functions qualified by address space, of objects in each."""
        spaces = self.random.sample(SPACES, self._one_of(2, 3, 4))
        sizes = {space: next(self.sizes) for space in spaces}
        written = " ".join(
            f"sized<{size}> get() const {space} {{ return sized<{size}>(); }} "
            f"auto through() const {space} {{ return {self._one_of('get()', 'this->get()', '(*this).get()')}; }}"
            for space, size in sizes.items()
        )
        self._declare(name, f"struct {name} {{ uchar a; {written} }};")
        for space in self.random.choices(spaces, k=6):
            const = "" if space == "constant" else "const "
            pointer = f"{const}{space} {name}*"
            base = f"(({pointer}){LETTERS[space]}_float)"
            called = self._one_of("get()", "through()")
            variable = f"x{self.count}"
            form = self._one_of("->", "*", "[]", "&", "auto", "function")
            before = []
            if form == "->":
                expression = f"{base}->{called}"
            elif form == "*":
                expression = f"(*{base}).{called}"
            elif form == "[]":
                expression = f"{base}[1].{called}"
            elif form == "&":
                before = [f"{pointer[:-1]}& {variable} = *{base};"]
                expression = f"{variable}.{called}"
            elif form == "auto":
                before = [f"auto {variable} = {base} + 1;"]
                expression = f"{variable}->{called}"
            else:
                of = self._declare(
                    f"of_{name}",
                    f"template <typename P> auto of_{name}(P p) {{ return p->get(); }}",
                )
                expression = f"{of}({base})"
            self._use(sizes[space], expression, before)

    # ---- types -----------------------------------------------------------------------------------

    def _traits(self, name):
        """A class template with partial specialisations by address space."""
        patterns = {}
        for _ in range(self._one_of(1, 2, 3)):
            space = self._one_of(*SPACES)
            const = space != "constant" and self.random.random() < 0.3
            patterns[(space, const, None)] = next(self.sizes)
            if self.random.random() < 0.3:
                patterns[(space, const, self._one_of(*POINTEES))] = next(self.sizes)
        other = next(self.sizes)
        lines = [f"template <typename P> struct {name} {{ enum {{ v = {other} }}; }};"]
        for (space, const, pointee), size in patterns.items():
            head = "template <>" if pointee else "template <typename T>"
            type_ = f"{'const ' if const else ''}{space} {pointee or 'T'}*"
            lines.append(f"{head} struct {name}<{type_}> {{ enum {{ v = {size} }}; }};")
        self._declare(name, "\n".join(lines))
        self._declare(
            f"of_{name}",
            f"template <typename P> sized<{name}<P>::v> of_{name}(P p) {{ return sized<{name}<P>::v>(); }}",
        )
        self._declare(
            f"in_{name}",
            f"template <typename P> struct in_{name} {{ P p; auto get() const {{ return sized<{name}<P>::v>(); }} }};",
        )
        for _ in range(8):
            space, pointee = self._one_of(*patterns)[0], self._one_of(*POINTEES)
            if self.random.random() < 0.3:
                space = self._one_of(*SPACES)
            const = space != "constant" and self.random.random() < 0.5
            type_ = f"{'const ' if const else ''}{space} {pointee}*"
            size = self._specialised(patterns, other, space, const, pointee)
            base = f"(({type_}){LETTERS[space]}_{pointee})"
            variable = f"x{self.count}"
            form = self._one_of("named", "decltype", "function", "lambda", "class")
            before = []
            if form == "named":
                expression = f"sized<{name}<{type_}>::v>()"
            elif form == "decltype":
                before = [f"auto {variable} = {base};"]
                expression = f"sized<{name}<decltype({variable})>::v>()"
            elif form == "function":
                expression = f"of_{name}({base})"
            elif form == "lambda":
                before = [
                    f"auto {variable} = [](auto p) {{ return sized<{name}<decltype(p)>::v>(); }};"
                ]
                expression = f"{variable}({base})"
            else:
                expression = f"(in_{name}<{type_}>{{{base}}}).get()"
            self._use(size, expression, before)

    @staticmethod
    def _specialised(patterns, other, space, const, pointee):
        """The specialisation for a type: the one that names most of it."""
        found = [
            ((pattern[2] is not None, pattern[1]), size)
            for pattern, size in patterns.items()
            if pattern[0] == space
            and pattern[2] in (None, pointee)
            and (pattern[1] == const if pattern[2] else pattern[1] <= const)
        ]
        return max(found)[1] if found else other

    def _comparisons(self):
        self._declare(
            "equal",
            "template <typename A, typename B> sized<is_same_v<A, B> ? 1 : 2> equal(A a, B b) "
            "{ return sized<is_same_v<A, B> ? 1 : 2>(); }",
        )
        for _ in range(6):
            sides = [
                (self._one_of("device", "threadgroup"), self._one_of("float", "int")) for _ in "ab"
            ]
            types = [f"{space} {pointee}*" for space, pointee in sides]
            given = [f"({t}){LETTERS[s]}_{p}" for t, (s, p) in zip(types, sides, strict=True)]
            size = 1 if sides[0] == sides[1] else 2
            form = self._one_of("named", "function", "decltype")
            if form == "named":
                text = f"sized<is_same_v<{types[0]}, {types[1]}> ? 1 : 2>()"
                self._use(size, text)
            elif form == "function":
                self._use(size, f"equal({given[0]}, {given[1]})")
            else:
                names = [f"x{self.count}", f"y{self.count}"]
                before = [f"auto {n} = {g};" for n, g in zip(names, given, strict=True)]
                text = (
                    f"sized<is_same<decltype({names[0]}), decltype({names[1]})>::value ? 1 : 2>()"
                )
                self._use(size, text, before)


def program_of(seed):
    """The source of a program, and how many uses it has."""
    made = Programs(seed)
    return made.source(), made.count
