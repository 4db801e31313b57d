"""Words of Metal as names: an error that names the word and its place, wherever a name can be; erased, they would leave
a program of another meaning. Where they qualify a type or a function they are no names."""

import pytest
from metalops import msl
from metalops.msl.source.parse import ADDRESS_SPACES, STAGES

HEADER = "#include <metal_stdlib>\nusing namespace metal;\n"
WORDS = (*ADDRESS_SPACES, *STAGES, "half", "bfloat", "ray_data", "object_data")
NAMES = {
    "parameter": "int f(int x, int NAME) { return x + NAME; }",
    "first parameter": "int f(int NAME, int x) { return -NAME; }",
    "reference": "int f(thread int& NAME) { return 1; }",
    "variable": "int f(int x) { int NAME = 3; return x - NAME; }",
    "second variable": "int f(int x) { int y = 1, NAME = 3; return x * y; }",
    "array": "int f(int x) { int NAME[3]; return x; }",
    "loop": "int f(int x) { for (int NAME = 0; NAME < 3; NAME++) x++; return x; }",
    "member": "struct s { int NAME; int x; };",
    "function": "int NAME(int x) { return x; }",
    "type": "struct NAME { int x; };",
    "type parameter": "template <typename NAME> int f(int x) { return x; }",
    "constant parameter": "template <int NAME> int f(int x) { return x; }",
    "namespace": "namespace NAME { int f(int x) { return x; } }",
    "enumerator": "enum e { NAME, other };",
    "alias": "using NAME = int;",
    "typedef": "typedef int NAME;",
    "typedef of an array": "typedef int other, NAME[4];",
    "lambda": "int f(int x) { auto g = [](int NAME) { return 1; }; return g(x); }",
    "macro": "#define SUM(a) (a + NAME)\nint f(int NAME) { return SUM(1); }",
}
QUALIFIERS = """
struct s {
  int x;
  s() thread : x(1) {}
  int get() const device { return x; }
  int get() const thread { return x; }
  int get() const constant;
  thread s& operator=(thread const s& o) thread = default;
};
int s::get() const constant { return x; }
int f(float device* a, device float* device* b, const device float* thread c, threadgroup float (&d)[3],
      float thread (&e)[2], constant ::metal::float4* g, device float*) {
  return is_same<device float*, float device*>::value + int(sizeof(thread float)) + *(thread int*)(&e);
}
static constant float table[] = {1, 2};
auto first(device float* p) -> device float* { return p; }
int second(threadgroup int* p) { return *[](threadgroup int* q) -> threadgroup int* { return q + 1; }(p); }
[[kernel]] void k(device int* out) { out[0] = 1; }
static inline int mesh(int object, int patch) { return object * patch; }
"""


def error_of(text):
    with pytest.raises(SyntaxError) as caught:
        msl.emit_source(HEADER + text + "\nkernel void k(device int* out) { out[0] = 1; }\n")
    return caught.value


@pytest.mark.parametrize("form", NAMES)
def test_a_word_of_metal_is_no_name(form):
    for word in WORDS:
        text = NAMES[form].replace("NAME", word)
        error = error_of(text)
        assert error.filename == "program_source"
        assert error.lineno == 3 + text.startswith("#"), (word, error.msg)
        assert f"{word} is a word of the language; choose another name" in error.msg


def test_words_of_metal_qualify_types_and_functions():
    assert "operator=" in msl.emit_source(HEADER + QUALIFIERS)
