"""What names in a function mean."""

import pytest
from metalops.msl.analysis.program import Program
from metalops.msl.analysis.scopes import FunctionScopes
from metalops.msl.source.parse import Source


@pytest.fixture
def scopes():
    """The scopes of the last function of a source."""

    def make(text):
        program = Program(Source(text))
        return FunctionScopes(program.source, program.functions[-1].node)

    return make


def _declared(scopes, name):
    return [d for d in scopes.declarations if d.name == name]


def _line(source, node):
    return source.masked.count("\n", 0, node.start_byte)


def test_inner_blocks_hide_what_is_around_them(scopes):
    found = scopes("""void f(device float* out, uint x) {
        out[0] = x;
        { float x = 1; out[1] = x;
          { half x = 2; out[2] = x; }
          out[3] = x; }
        out[4] = x;
    }""")
    lines = [[_line(found.source, u) for u in d.uses] for d in _declared(found, "x")]
    assert lines == [[1, 5], [2, 4], [3]]
    assert [d.type for d in _declared(found, "x")] == ["uint", "float", "half"]
    assert not {"x", "out"} & {found.source.masked_text(n) for n in found.free}


def test_a_variable_is_visible_in_its_own_initialiser(scopes):
    found = scopes("void f(int x) { { int x = x + 1; } }")
    parameter, variable = _declared(found, "x")
    assert (len(parameter.uses), len(variable.uses)) == (0, 1)
    assert found.source.node_text(variable.initialiser) == "x + 1"


def test_variables_of_loops_and_conditions(scopes):
    found = scopes("""void f(array<int, 4> v, int i) {
        for (int i = 0, j = i; i < j; ++i) use(i, j);
        for (auto& v : v) use(v);
        if (int k = g(); k > 0) use(k); else use(k);
        while (int m = g()) use(m);
        use(i, j, k, m);
    }""")
    assert [len(d.uses) for d in _declared(found, "i")] == [1, 4]
    over, element = _declared(found, "v")
    assert (len(over.uses), len(element.uses)) == (1, 1)
    assert element.is_reference and over.is_address_taken
    free = [found.source.masked_text(n) for n in found.free]
    assert [n for n in free if n in "ijkm"] == ["j", "k", "m"]


def test_lambdas_bindings_and_template_parameters(scopes):
    found = scopes("""template <typename T, int N = 3, typename... R> T f(T x) {
        auto [a, b] = g(x);
        auto add = [&, n = x](T x) { return x + n + N; };
        using U = T;
        U y = T(a) + b;
        return add(y);
    }""")
    kinds = {d.name: d.kind for d in found.declarations if d.name != "x"}
    assert kinds == {
        "T": "type", "N": "constant", "R": "type", "a": "binding", "b": "binding",
        "add": "variable", "n": "capture", "U": "type", "y": "variable",
    }  # fmt: skip
    assert _declared(found, "add")[0].lambda_expression == found.lambdas[0]
    assert [len(d.uses) for d in _declared(found, "x")] == [2, 1]
    assert [found.source.masked_text(n) for n in found.free] == ["f", "g"]


def test_template_parameters_of_the_class_around_a_member(scopes):
    found = scopes("template <typename T> struct S { T f(T x) { return T(x); } };")
    assert {found.source.masked_text(n) for n in found.free} == set()


def test_what_is_read_as_a_function_is_a_variable(scopes):
    found = scopes("void f(int a, int b) { T v(a, b); T w(g(a)); use(v, w); }")
    assert [len(d.uses) for name in "abvw" for d in _declared(found, name)] == [2, 1, 1, 1]
    assert _declared(found, "v")[0].initialiser.type == "parameter_list"


def test_facts_of_variables(scopes):
    found = scopes("""void f(device float* out, thread const float& r, constant uint (&shape)[3]) {
        float a[4], *p = a;
        float x = 1, y = 2, z = 3;
        const thread float& alias = x;
        thread float& other = y;
        p = &z;
        x += 1;
        ++a[2];
        s.x = 1;
    }""")
    facts = {d.name: d for d in found.declarations}
    assert {n for n, d in facts.items() if d.is_array} == {"a"}
    assert {n for n, d in facts.items() if d.is_pointer} == {"out", "p"}
    assert {n for n, d in facts.items() if d.is_reference} == {"r", "shape", "alias", "other"}
    assert {n for n, d in facts.items() if d.is_const} == {"r", "alias"}
    assert {n for n, d in facts.items() if d.is_address_taken} == {"y", "z"}
    assert facts["out"].address_spaces == {"device"}
    assert {n: len(d.definitions) for n, d in facts.items() if d.definitions} == {
        "p": 1, "x": 1, "a": 1,
    }  # fmt: skip
