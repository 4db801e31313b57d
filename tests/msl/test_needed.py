"""The part of a program that a kernel needs, which is what the compiler gets for a kernel that is compiled alone."""

import random
import re

import pytest
from metalops.msl.analysis.needed import Needed, only_code_tells_errors
from metalops.msl.analysis.program import Program
from metalops.msl.source.parse import Source
from metalops.msl.source.preprocess import preprocess
from metalops.msl.targets.host.emit import emit

HEADER = "#include <metal_stdlib>\nusing namespace metal;\n"
KERNELS = "kernel void k(device float* x) { x[0] = BODY; }\nkernel void other(device float* x) { x[0] = 2; }\n"


def needed(source, *kernels):
    return Needed(Program(Source(source))).text(kernels)


# What is declared, what the kernel says, and the words that must and must not be in the text.
CASES = {
    "a function and what it calls": (
        "float f(); float g() { return 1; } float f() { return g(); } float h() { return 3; }",
        "f()", "f g", "h other",
    ),
    "a class and its members outside of it": (
        "struct A { float v; float get() const; }; float A::get() const { return v; } struct B { float w; };",
        "A{1}.get()", "A get v", "B w",
    ),
    "a template and its specialisations": (
        "template <typename T> struct S { T v; }; template <> struct S<int> { int w; }; template <typename T> struct R {};",
        "S<float>{1}.v", "S v w", "R",
    ),
    "a specialisation of a template of the library": (
        "struct A { float v; }; struct B { float v; };\n"
        "template <> struct numeric_limits<A> { static float max() { return 1; } };\n"
        "template <typename T> struct is_signed<metal::pair<T, B>> { enum { of_b }; };",
        "least<A>()", "A numeric_limits", "B is_signed of_b",
    ),
    "enumerators and the values of constants": (
        "enum E { one = 1, two }; constant float table[2] = {one, two}; constant float rest[1] = {3};",
        "table[0]", "E one table", "rest",
    ),
    "an alias of a class": (
        "typedef struct { float v; } Pair; using Twice = Pair; using Not = float;",
        "Twice{1}.v", "Pair Twice", "Not",
    ),
    "operators whose operands there are": (
        "struct A { float v; }; struct B { float v; }; A operator+(A a, A b) { return a; }\n"
        "B operator*(B a, B b) { return b; } template <typename T> T operator-(T a, A b) { return a; }",
        "(A{1} + A{2}).v", "A operator+ operator-", "B operator*",
    ),
    "what a range loop calls": (
        "struct A { float v[2]; }; thread float* begin(thread A& a) { return a.v; }\n"
        "thread float* end(thread A& a) { return a.v + 2; } float sum() { A a; float s = 0; for (float f : a) s += f; return s; }",
        "sum()", "begin end sum", "other",
    ),
    "namespaces, what is used of them, and their aliases": (
        "namespace n { float f() { return 1; } float g() { return 2; } namespace m { float h() { return 1; } } }\n"
        "namespace short_name = n; using n::g; using n::f;",
        "f() + short_name::m::h()", "n f m h short_name", "g",
    ),
    "function constants": (
        "constant float bias [[function_constant(0)]]; constant float twice = 2 * bias;",
        "1", "bias", "twice",
    ),
    "a kernel that another kernel's name begins with": ("float kk() { return 1; }", "1", "k", "kk"),
}  # fmt: skip


def holds(text, word):
    return re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text) is not None


@pytest.mark.parametrize("case", CASES)
def test_a_kernel_needs(case):
    declared, body, there, not_there = CASES[case]
    source = f"{declared}\n{KERNELS.replace('BODY', body)}"
    text = needed(source, "k")
    assert [w for w in there.split() if not holds(text, w)] == []
    assert [w for w in not_there.split() if holds(text, w)] == []


def test_lines_columns_and_markers_are_kept():
    source = (
        '# 1 "a.h"\nfloat f() {\n  return 1;\n}\n# 7 "a.metal"\n'
        "kernel void a(device float* x) {} kernel void b(device float* x) {\n  x[0] = 1; }\n"
    )
    text = needed(source, "b")
    assert "float f" not in text and "void a" not in text
    assert [line.startswith("#") for line in text.split("\n")] == [
        line.startswith("#") for line in source.split("\n")
    ]
    assert text.index("\n", text.index("kernel void b")) - text.rindex("\n", 0, text.index("kernel void b")) == (
        source.index("\n", source.index("kernel void b")) - source.rindex("\n", 0, source.index("kernel void b"))
    )  # fmt: skip


def test_instantiations_are_needed_one_by_one():
    source = (
        "struct A { float v; }; struct B { float v; };\n"
        "template <typename T> kernel void k(device float* x) { T t; x[0] = t.v; }\n"
        "typedef decltype(k<A>) type_of_k;\n"
        '#define I(T) template [[host_name("k_" #T)]] kernel type_of_k k<T>;\nI(A) I(B)\n'
    )
    text = needed(preprocess(source).text, "k_B")
    assert holds(text, "k<B>") and '"k_" "B"' in text and '"A"' not in text


@pytest.mark.full
def test_what_a_macro_expands_to_on_one_line_stays_short():
    kernels = " ".join(f"kernel void k{i}(device float* x) {{ x[0] = {i}; }}" for i in range(5000))
    text = needed(kernels, "k4999")
    assert holds(text, "k4999") and len(text) < 2000


def random_program(seed):
    """A program of classes, constants, aliases and functions, and what each of them mentions."""
    choose = random.Random(seed)
    mentions: dict[str, list[str]] = {}
    lines = []
    for number in range(40):
        others = choose.sample([*mentions], min(len(mentions), choose.randrange(3)))
        name = f"n{number}"
        mentions[name] = others
        value = " + ".join(["1", *(f"int(sizeof({o}))" for o in others)])
        lines.append(
            choose.choice([
                f"int {name}(int x) {{ return x + {value}; }}",
                f"struct {name} {{ int v[{value}]; }};",
                f"constant int {name} = {value};",
                f"using {name} = metal::array<int, {value}>;",
                f"template <typename T> T {name}(T x) {{ return x * T({value}); }}",
                f"enum {name}_type {{ {name} = {value} }};",
                f"namespace {{ constant int {name}[] = {{{value}}}; }}",
            ])
        )  # fmt: skip
    roots = choose.sample([*mentions], 2)
    body = " + ".join(f"int(sizeof({r}))" for r in roots)
    lines.append(f"kernel void k(device int* x) {{ x[0] = {body}; }}")
    return "\n".join(lines), mentions, roots


@pytest.mark.parametrize("seed", range(20))
def test_the_text_has_what_a_plain_walk_reaches_and_no_more(seed):
    source, mentions, roots = random_program(seed)
    reached: set[str] = set()
    waiting = [*roots]
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += mentions[name]
    text = needed(source, "k")
    assert {name for name in mentions if holds(text, name)} == reached


def test_a_part_of_much_code_has_little_text():
    many = "".join(f"float f{i}(float x) {{ return x + {i}; }}\n" for i in range(500))
    kernels = "".join(f"kernel void k{i}(device float* x) {{ x[0] = f{i}(x[1]); }}\n" for i in range(500))  # fmt: skip
    source = preprocess(HEADER + many + kernels)
    text = needed(source.text, "k7")
    assert holds(text, "f7") and len(text.split()) < 100
    emitted = emit(preprocess(text), ["k7"]).text
    assert holds(emitted, "f7") and not any(holds(emitted, f"f{i}") for i in range(500) if i != 7)


@pytest.mark.parametrize(
    "declared, expected",
    [
        ("float f(float x); float f(float y) { return y; }", False),
        ("float f(float x); float f(int x) { return x; }", True),
        ("struct A { float f() const; }; float A::f() const { return 1; }", False),
        ("struct A { float f() const; };", True),
        ("struct A { A() = default; A(int) = delete; };", False),
        ("struct A { static constexpr constant int n = 1; static const int m = 2; };", False),
        ("struct A { static int n; };", True),
        ("template <typename T> T f(T x); template <> float f(float x) { return x; }", False),
        ("template <typename T> T f(T x);", True),
        ("int f() { throw 1; }", True),
        ("int f(int x) { return *new int(x); }", True),
        ("kernel void declared(device float* x);", False),
    ],
)
def test_errors_that_only_code_tells(declared, expected):
    assert only_code_tells_errors(Program(Source(declared))) is expected
