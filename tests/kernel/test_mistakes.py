"""What compilers say of mistakes in a user's Metal text lies in that text, in every interface."""

import itertools
import os
import re
import shutil

import metalops
import pytest
import torch
from metalops.kernel.compile import compile_library, generated_text, user_text
from torch import Tensor

_numbers = itertools.count()

# What the text says instead of `x`, an element of a float tensor, in an expression.
EXPRESSIONS = {
    "a name that is nowhere": "x + missing",
    "a function that is nowhere": "expp(x)",
    "a member that is nowhere": "metal::nothing(x)",
    "a member of a number": "x.y",
    "too few arguments": "pow(x)",
    "no operator": "x 2",
    "no operand": "x *",
    "half a choice": "x > 0 ? x",
    "a type for a value": "x + float",
    "a vector for a number": "float4(x)",
    "nothing for a number": "(void)x",
    "an address": "&x",
    "a string": '"abc"',
    "a string without an end": 'x + "abc',
    "no operator of Metal": "x @ 2",
    "a wrong literal": "x + 1.0.0",
    "a call of a number": "x(2)",
    "a call of a macro": "INFINITY(x)",
    "a type that is none": "vec<float, 9>(x)",
    "on the second line": "x +\n  (missing * 2)",
}
STATEMENTS = {
    "no semicolon": "out[i] = x[i]",
    "no semicolon in the middle": "float a = x[i]\nout[i] = a;",
    "no brace": "if (i < 3) { out[i] = x[i];",
    "a brace too many": "out[i] = x[i]; }",
    "no parenthesis": "out[i] = exp(x[i];",
    "a parenthesis too many": "out[i] = exp(x[i]));",
    "declared twice": "int a = 1; float a = 2; out[i] = a;",
    "a type that is nowhere": "flaot a = 1; out[i] = a;",
    "a size that is nowhere": "threadgroup float a[n]; out[i] = a[0];",
    "no end of a condition": "#ifdef FOO\nout[i] = 1;",
    "no beginning of a condition": "out[i] = 1;\n#endif",
    "an error on purpose": "#error wrong\nout[i] = 1;",
    "a header that is nowhere": '#include "nothing.h"\nout[i] = 1;',
    "a value from nowhere to return": "return 1;",
    "a function in a function": "float g(float a) { return a; }\nout[i] = g(1);",
    "several mistakes": "out[i] = one + two;\nout[i] = three;",
}
HEADERS = {
    "a name that is nowhere": "inline float g(float a) { return missing; }",
    "no brace": "inline float g(float a) { return a;",
    "a brace too many": "inline float g(float a) { return a; } }",
    "no semicolon": "struct s { float a; }\ninline float g(float a) { return a; }",
    "a template that does not fit": "template <typename T> float g(T a) { return a.nothing; }",
    "no code": "garbage",
    "a header that is nowhere": "#include <c10/metal/nothing.h>",
    "no end of a condition": "#if 1",
}


def ones():
    return torch.ones(9, device="mps")


def body_of(text):
    """A statement with a mistake; of an expression with one, the statement that has it."""
    return text if "out[i]" in text or "return" in text else "out[i] = " + re.sub(
        r"\bx\b", "x[i]", text
    ) + ";"  # fmt: skip


def call_functor(text="x", **options):
    options["name"] = f"mistakes::m{next(_numbers)}"
    metalops.functor(text=text, **options)(ones())


def call_metal_kernel(body, header=""):
    body = "uint i = thread_position_in_grid.x;\n" + body
    kernel = metalops.metal_kernel("k", ["x"], ["out"], body, header)
    kernel(
        inputs=[ones()],
        output_shapes=[(9,)],
        output_dtypes=[torch.float32],
        grid=(9, 1, 1),
        threadgroup=(9, 1, 1),
    )


def call_torch_metal_kernel(body, helper=None):
    def reference(x: Tensor) -> Tensor:
        return x.clone()

    parameters = [metalops.MetalParameter("i", "uint", "thread_position_in_grid")]
    kernel = metalops.TorchMetalKernel(
        f"m{next(_numbers)}", ["x"], ["out"], body, reference, parameters, helper
    )
    launch = {"threads_per_grid": (9, 1, 1), "threads_per_thread_group": (9, 1, 1)}
    kernel(ones(), **launch, result_shapes=[[9]])


SHADER = "#include <metal_stdlib>\nusing namespace metal;\n"
PARAMETERS = "(device float* x, device float* out, uint i [[thread_position_in_grid]])"


def interfaces():
    """Of every mistake: what calls the interface, and the user's texts by the ends of their labels."""
    for mistake, text in EXPRESSIONS.items():
        yield f"functor: {mistake}", lambda t=text: call_functor(t), {"expression": text}
        yield (
            f"one of two expressions: {mistake}",
            lambda t=text: call_functor(("x", t)),
            {"expression[1]": text},
        )
        yield f"gradient: {mistake}", lambda t=text: call_functor(grad=t), {"grad[0]": text}
    for mistake, text in {**EXPRESSIONS, **STATEMENTS}.items():
        body = body_of(text)
        first = "uint i = thread_position_in_grid.x;\n"
        yield (
            f"metal_kernel: {mistake}",
            lambda b=body: call_metal_kernel(b),
            {"source": first + body},
        )
        yield (
            f"TorchMetalKernel: {mistake}",
            lambda b=body: call_torch_metal_kernel(b),
            {"src": body},
        )
        shader = f"{SHADER}kernel void k{PARAMETERS} {{\n{body}\n}}\n"
        yield (
            f"compile_shader: {mistake}",
            lambda s=shader: torch.mps.compile_shader(s),
            {"program_source": shader},
        )
    for mistake, header in HEADERS.items():
        yield (
            f"functor's header: {mistake}",
            lambda h=header: call_functor("g(x)", header=h),
            {"expression": "g(x)", "header": header},
        )
        body = "out[thread_position_in_grid.x] = g(x[0]);"
        yield (
            f"metal_kernel's header: {mistake}",
            lambda h=header, b=body: call_metal_kernel(b, h),
            {"source": "\n" + body, "header": header},
        )
        yield (
            f"TorchMetalKernel's helper: {mistake}",
            lambda h=header: call_torch_metal_kernel("out[i] = g(x[i]);", h),
            {"src": "out[i] = g(x[i]);", "helper_src": header},
        )


# Of each interface, with the first compiler; all others take minutes.
QUICK = {"a name that is nowhere", "no operand", "a vector for a number", "a brace too many"}
COMPILERS = list(filter(None, map(shutil.which, ("g++", "clang++-19"))))


_PLACE = re.compile(
    r"^(?P<label>[^\n:]+):(?P<line>\d+)(?::(?P<column>\d+))?: error: ", re.MULTILINE
)
CASES = {name: (call, texts) for name, call, texts in interfaces()}


def cases():
    for compiler, case in itertools.product(COMPILERS, CASES):
        quick = compiler == COMPILERS[0] and case.partition(": ")[2] in QUICK
        yield pytest.param(
            compiler,
            case,
            id=f"{os.path.basename(compiler)}: {case}",
            marks=[] if quick else pytest.mark.slow,
        )


@pytest.mark.parametrize(("compiler", "case"), list(cases()))
def test_errors_lie_in_the_users_text(case, compiler, monkeypatch):
    monkeypatch.setenv("CXX", compiler)
    call, texts = CASES[case]
    try:
        call()
    except ValueError:  # refused before it is compiled
        return
    except SyntaxError as error:
        message = error.msg
    else:
        pytest.fail("the mistake was not noticed")
    places = list(_PLACE.finditer(message))
    assert places, message
    for place in places:
        label = place["label"].partition(".")[2] or place["label"]
        assert label in texts, message
        lines = texts[label].split("\n")
        # What an expression lacks at its end is noticed behind it.
        assert 1 <= int(place["line"]) <= len(lines) + label.startswith(("expression", "grad")), (
            message
        )
        if place["column"] and int(place["line"]) <= len(lines):
            assert int(place["column"]) <= len(lines[int(place["line"]) - 1]) + 1, message


def test_an_error_shows_the_line():
    with pytest.raises(SyntaxError) as raised:
        call_metal_kernel("out[i] = x[i] +\n  missing * 2;")
    assert raised.value.text == "  missing * 2;"
    assert raised.value.msg.endswith("\n  missing * 2;\n  ^")


APPLE = """\
program_source:7:3: warning: unused variable 'y'
  int y;
<op>:3:5: error: no matching function for call to 'cast_to'
    c10::metal::cast_to<float>(r);
    ^~~~~~~~~~
op.expression:1:5: error: use of undeclared identifier 'missing'
x + missing
    ^
<op>:9:1: note: in instantiation of function template specialization requested here
<op>:4:5: error: use of undeclared identifier 'r'
"""


def test_what_follows_is_left_out_of_a_text_of_apples_compiler_too():
    def apple(text):
        raise SyntaxError(message)

    message = APPLE
    text = generated_text("op", "int a;") + user_text("op.expression", f"x + missing // {apple}")
    with pytest.raises(SyntaxError) as raised:
        compile_library("op", text, apple)
    lines = raised.value.msg.split("\n")
    assert lines[:3] == APPLE.split("\n")[5:8] and lines[3].startswith("<op>:9:1: note: ")
    assert len(lines) == 4
    message = "<op>:3:5: error: all that there is"
    with pytest.raises(SyntaxError, match="all that there is"):
        compile_library("op", text, apple)
