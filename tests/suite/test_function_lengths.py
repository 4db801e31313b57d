"""No function of kernels/, csrc/ops or csrc/plans has more than LIMIT lines, but for those named here, which must not grow."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIMIT = 80

# By the path and the name, the lines that it has. Split a function into prologue, loop and epilogue before it comes here.
LONGER = {
    "kernels/linalg/ldl.metal: ldl_factor": 133,
    "kernels/linalg/lu.metal: lu_panel": 92,
    "kernels/quantized/quantized_matmul.metal: quantized_matmul_skinny": 148,
}

_IGNORED = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.DOTALL)
_MACRO = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.MULTILINE)
_SCOPE = re.compile(r"\b(?:namespace|struct|class|enum|union|extern)\b[^()=]*$")
_NAME = re.compile(r"([~\w]+|operator[^\s\w(]+)\s*\(")


def _blanked(text):
    """Returns the text with comments, literals and directives as spaces, so that places keep their lines."""
    for pattern in (_IGNORED, _MACRO):
        text = pattern.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)
    return text


def functions(text):
    """Yields (name, lines) of the functions of a C++ source, those inside of others aside."""
    text = _blanked(text)
    scopes, begin = (
        [],
        0,
    )  # what each open brace belongs to; where the declaration before a brace begins
    for found in re.finditer(r"[{};]", text):
        if found[0] == "{":
            declaration = text[begin : found.start()]
            if "function" in scopes or "other" in scopes:
                scopes.append("inner")
            elif _SCOPE.search(declaration):
                scopes.append("scope")
            elif "(" in declaration and (name := _NAME.search(re.sub(r"\[\[.*?\]\]", "", declaration))):  # fmt: skip
                start = begin + len(declaration) - len(declaration.lstrip())
                scopes.append("function")
                first, called = start, name[1]
            else:
                scopes.append("other")
        elif found[0] == "}":
            if scopes and scopes.pop() == "function":
                yield called, text.count("\n", first, found.end()) + 1
        begin = found.end()


def _found():
    return {
        f"{path.relative_to(ROOT).as_posix()}: {name}": lines
        for folder in ("kernels", "csrc/ops", "csrc/plans")
        for path in sorted((ROOT / folder).rglob("*.*"))
        for name, lines in functions(path.read_text(encoding="utf-8"))
        if lines > LIMIT
    }


@pytest.mark.skipif(not (ROOT / "csrc").is_dir(), reason="the sources are not here")
def test_functions_are_short():
    found = _found()
    assert {name: n for name, n in found.items() if n > LONGER.get(name, 0)} == {}
    assert {name: found.get(name) for name, n in LONGER.items() if found.get(name) != n} == {}, (
        "functions that became shorter: take them from the list, or say how long they are"
    )


def test_lines_are_counted():
    body = '  f("}");  // }\n' * 3
    text = f"namespace a {{\nstruct B {{\n  int value = {{1}};\n  template <class T>\n  void f(T x) {{\n{body}  }}\n}};\n}}\n"
    assert list(functions(text)) == [("f", 6)]
    assert list(functions(f"void g() {{\n  auto h = [] {{\n{body}  }};\n}}\n#define M() {{\n")) == [("g", 7)]  # fmt: skip
