"""Which functions a call means, and what a kernel comes to: by scope, arguments and types, and not by words."""

import pytest
from metalops.msl.analysis.calls import CallGraph
from metalops.msl.analysis.program import Program, name_node
from metalops.msl.source.parse import Source


def _graph(text):
    return CallGraph(Program(Source(text)))


def _synchronising(text):
    """Names of the kernels that synchronise."""
    graph = _graph(text)
    return {i.name for i in graph.program.instances if graph.synchronises(i)}


def _callees(text, kernel="k"):
    """Of each call in the kernel: the lines (from 0) of the functions that it may mean."""
    graph = _graph(text)
    masked = graph.source.masked
    body = next(f.body for f in graph.program.functions if f.name == kernel)
    calls = graph.source.find("(call_expression) @c", body)
    return {
        graph.source.masked_text(name_node(c.child_by_field_name("function"))): [
            masked.count("\n", 0, f.declarator.start_byte) for f in graph.callees(c)
        ]
        for c in calls
    }


def test_overloads_by_number_of_arguments():
    text = """
    uint total(uint a) { return simd_sum(a); }
    uint total(uint a, uint b, uint c = 0) { return a + b + c; }
    template <typename... T> uint pack(T... x) { return 0; }
    kernel void one(device uint* out) { out[0] = total(1); }
    kernel void two(device uint* out) { out[0] = total(1, 2); }
    kernel void three(device uint* out) { out[0] = total(1, 2, 3) + pack(1, 2); }
    kernel void unknown(device uint* out) { out[0] = total(a < b, c > (d)); }
    template <typename... T> uint spread(T... x) { return total(x...); }
    kernel void packs(device uint* out) { out[0] = spread(1, 2); }
    """
    assert _synchronising(text) == {"one", "unknown", "packs"}


def test_namespaces():
    text = """
    namespace a { uint f() { return simd_sum(1u); } struct S {}; uint g(S s) { return simd_sum(1u); } }
    namespace b { uint f() { return 1; } namespace inner { kernel void in_b(device uint* x) { x[0] = f(); } } }
    namespace c { using namespace a; }
    namespace d = a;
    uint g(uint x) { return x; }
    kernel void calls_a(device uint* x) { x[0] = a::f(); }
    kernel void calls_b(device uint* x) { x[0] = ::b::f(); }
    kernel void calls_alias(device uint* x) { x[0] = d::f(); }
    kernel void calls_through_c(device uint* x) { x[0] = c::f(); }
    kernel void by_type_of_argument(device uint* x) { a::S s; x[0] = g(s); }
    """
    found = _synchronising(text)
    assert found == {"calls_a", "calls_alias", "calls_through_c", "by_type_of_argument"}


def test_a_function_that_stands_below_the_call_does_not_hide_one_above():
    text = """
    uint f() { return simd_sum(1u); }
    namespace n {
      kernel void above(device uint* x) { x[0] = f(); }
      uint f() { return 1; }
      kernel void below(device uint* x) { x[0] = f(); }
    }
    """
    assert _synchronising(text) == {"n::above"}


def test_using_directives_and_declarations():
    text = """
    namespace a { uint f() { return simd_sum(1u); } }
    namespace b { uint g() { return simd_sum(1u); } }
    inline namespace v { uint h() { return simd_sum(1u); } }
    kernel void directive(device uint* x) { using namespace a; x[0] = f(); }
    kernel void declaration(device uint* x) { using b::g; x[0] = g(); }
    kernel void inlined(device uint* x) { x[0] = h(); }
    kernel void none(device uint* x) { x[0] = i(); }
    """
    assert _synchronising(text) == {"directive", "declaration", "inlined"}


def test_variables_and_members_with_the_name_of_a_function():
    text = """
    uint total(uint x) { return simd_sum(x); }
    struct S { uint total, simd_sum; uint sum() { return total + simd_sum; } };
    kernel void variable(device uint* x) { uint total = 1, simdgroup_id = 2; x[0] = total + simdgroup_id; }
    kernel void parameter(device uint* total, uint simd_max [[thread_position_in_grid]]) { total[simd_max] = 1; }
    kernel void member(device uint* x) { S s{1, 2}; x[0] = s.total + s.simd_sum + s.sum(); }
    kernel void in_a_block(device uint* x) { { uint total = 1; x[0] = total; } x[1] = total(1); }
    kernel void lambda(device uint* x) { auto total = [](uint y) { return y; }; x[0] = total(1); }
    """
    assert _synchronising(text) == {"in_a_block"}


def test_members_by_the_type_of_their_object():
    text = """
    struct A { uint f() const { return simd_sum(1u); } uint f(uint x) const { return x; } };
    struct B { uint f() const { return 1; } };
    struct C : A {};
    kernel void a(device uint* x) { A a; x[0] = a.f(); }
    kernel void other_overload(device uint* x) { A a; x[0] = a.f(2); }
    kernel void b(device uint* x) { A a; const thread B& b = B(); x[0] = b.f(); }
    kernel void base(device uint* x) { C c; x[0] = c.f(); }
    kernel void deduced(device uint* x) { auto a = A(); x[0] = a.f(); }
    kernel void deduced_b(device uint* x) { auto b = B{}; x[0] = b.f() + B().f(); }
    template <typename T> kernel void any(device uint* x) { T t; x[0] = t.f(); }
    template [[host_name("any_a")]] kernel void any<A>(device uint*);
    template [[host_name("any_b")]] kernel void any<B>(device uint*);
    """
    assert _synchronising(text) == {"a", "base", "deduced", "any_a"}


def test_members_that_are_defined_outside_of_their_class():
    text = """
    struct A { uint a; uint f(uint x); uint g(uint x) { return f(x); } uint h(uint x); };
    uint A::f(uint x) { return simd_sum(x) + a; }
    uint A::h(uint x) { return x; }
    kernel void object(device uint* x) { A a; x[0] = a.f(1); }
    kernel void inside(device uint* x) { A a; x[0] = a.g(1); }
    kernel void other(device uint* x) { A a; x[0] = a.h(1); }
    """
    assert _synchronising(text) == {"object", "inside"}
    assert _callees(text, "object")["f"] == [2]


def test_functions_that_data_members_point_to():
    text = """
    uint total(uint x) { return simd_sum(x); }
    struct A { uint (*f)(uint); };
    kernel void k(device uint* x) { A a{total}; x[0] = a.f(1); }
    """
    assert _callees(text)["f"] == [1]


def test_functors_and_lambdas():
    text = """
    struct A { uint operator()(uint x) const; };
    uint A::operator()(uint x) const { return simd_sum(x); }
    struct B { uint operator()(uint x) const { return x; } };
    template <typename F> uint apply(F f) { return f(1); }
    template <typename F> uint make() { return F()(1); }
    constant A global = {};
    typedef A Alias;
    kernel void a(device uint* x) { x[0] = apply(A()); }
    kernel void made(device uint* x) { x[0] = make<A>(); }
    kernel void alias(device uint* x) { x[0] = make<Alias>(); }
    kernel void of_namespace(device uint* x) { x[0] = global(1); }
    kernel void other(device uint* x) { B b; x[0] = apply(B()) + b(1); }
    kernel void lambda(device uint* x) { x[0] = apply([](uint y) { return simd_sum(y); }); }
    kernel void plain_lambda(device uint* x) { x[0] = apply([](uint y) { return y; }); }
    """
    assert _synchronising(text) == {"a", "made", "alias", "of_namespace", "lambda"}
    graph = _graph(text)
    synchronising = {f.name for f in graph.program.functions if graph.function_synchronises(f)}
    assert {"apply", "make", "operator()", "a", "lambda"} <= synchronising


def test_functors_that_are_data_members():
    text = """
    struct Add { uint operator()(uint a, uint b) { return a + b; } };
    struct Total { uint operator()(uint a, uint b) { return simd_sum(a) + b; } };
    template <typename T> struct Adds { Add op; uint f(uint a) { return op(a, a); } };
    template <typename T> struct Totals { Total op; uint f(uint a) { return op(a, a); } };
    template <typename T> struct Some { Add op; uint f(uint a) { return op(a, a); } };
    template <> struct Some<uint> { Total op; uint f(uint a) { return op(a, a); } };
    kernel void adds(device uint* x) { Adds<uint> a; x[0] = a.f(1); }
    kernel void totals(device uint* x) { Totals<uint> a; x[0] = a.f(1); }
    kernel void some(device uint* x) { Some<uint> a; x[0] = a.f(1); }
    """
    assert _synchronising(text) == {"totals", "some"}


def test_operators_constructors_and_conversions():
    text = """
    struct A { float v; };
    A operator+(A x, A y) { return {simd_sum(x.v)}; }
    struct B { B(float x) { v = simd_sum(x); } float v; };
    struct C { operator float() const; };
    C::operator float() const { return simd_sum(1.0f); }
    struct D { ~D() { simd_sum(1); } };
    struct E { float operator[](uint i) const { return simd_sum(1.0f); } float f; };
    kernel void plus(device float* x) { A a{1}; x[0] = (a + a).v; }
    kernel void other_plus(device float* x) { x[0] = x[1] + 1; }
    kernel void minus(device float* x) { x[0] = x[1] - 1; }
    kernel void constructor(device float* x) { B b(1); }
    kernel void conversion(device float* x) { C c; x[0] = c; }
    kernel void destructor(device float* x) { D d; }
    kernel void subscript(device float* x) { E e; x[0] = e[0]; }
    kernel void none(device float* x) { x[0] = x[1] * 2; }
    """
    assert _synchronising(text) == {"plus", "constructor", "conversion", "destructor", "subscript"}


def test_a_function_that_is_passed_on():
    text = """
    uint f(uint x) { return simd_sum(x); }
    template <uint (*F)(uint)> uint apply(uint x) { return F(x); }
    kernel void argument(device uint* x) { x[0] = apply<f>(1); }
    kernel void value(device uint* x) { auto g = f; x[0] = g(1); }
    kernel void misread(device uint* x) { x[0] = f<3 + 4>(1); }
    """
    assert _synchronising(text) == {"argument", "value", "misread"}
    assert _callees(text, "value") == {"g": [1]}
    assert _callees(text, "apply") == {"F": [1]}


@pytest.mark.parametrize(
    "type_", ["typename T::type", "typename T::template of<int>", "typename ns::T<2>::type"]
)
@pytest.mark.parametrize("made", ["{}", "{1.0f}", "(static_cast<float>(x))"])
@pytest.mark.parametrize("first", ["", "x, "])
def test_a_statement_is_a_call_whatever_objects_it_makes(type_, made, first):
    text = f"""
    struct other {{ static void add(float, T) {{ simd_sum(1); }}  static void add(T) {{ simd_sum(1); }} }};
    template <typename T> void through(float x) {{
      T::add({first}{type_}{made});
    }}
    kernel void k(device float* x) {{ through<other>(*x); }}
    """
    assert _callees(text, "through")["add"] == [1]
    assert _synchronising(text) == {"k"}


def test_aliases_and_typedefs_of_classes():
    text = """
    typedef struct { uint f() { return simd_sum(1u); } } Typedef;
    struct A { static uint f() { return simd_sum(1u); } };
    struct Traits { using type = A; };
    template <typename T> uint call() { return T::type::f(); }
    kernel void anonymous(device uint* x) { Typedef t; x[0] = t.f(); }
    kernel void of_a_class(device uint* x) { x[0] = call<Traits>(); }
    """
    assert _synchronising(text) == {"anonymous", "of_a_class"}


def test_classes_in_functions():
    text = """
    namespace n {
      uint f() { return simd_sum(1u); }
      kernel void k(device uint* x) { struct L { uint g() { return f(); } } l; x[0] = l.g(); }
    }
    """
    assert _synchronising(text) == {"n::k"}


def test_callees():
    text = """
    uint f(uint x) { return x; }
    uint f(uint x, uint y);
    uint f(uint x, uint y) { return x; }
    struct A { A(uint x) {} uint g() { return 1; } };
    struct B { uint g() { return 1; } };
    template <typename T> kernel void k(device uint* x, T t) { f(1); ::f(1, 2); A(1).g(); t.g(); simd_sum(1); sin(2.0f); }
    """
    graph = _graph(text)
    calls = graph.source.find("(call_expression) @c", graph.program.kernels[0].function.body)
    lines = [
        [text.count("\n", 0, f.declarator.start_byte) for f in graph.callees(call)]
        for call in calls
    ]
    assert lines == [[1], [3], [4], [4], [4, 5], [], []]


def test_which_calls_synchronise():
    text = """
    uint f(uint x) { threadgroup_barrier(mem_flags::mem_none); return x; }
    uint f(uint x, uint y) { return x; }
    kernel void k(device uint* x) {
      auto a = [](uint y) { return simd_sum(y); };
      auto b = [](uint y) { return y; };
      f(1); f(1, 2); a(1); b(1); simd_sum(1u); max(1, 2); simdgroup_load(m, x);
    }
    """
    graph = _graph(text)
    calls = graph.source.find("(call_expression) @c", graph.program.kernels[0].function.body)
    found = [graph.source.masked_text(c) for c in calls if graph.call_synchronises(c)]
    assert found == ["simd_sum(y)", "f(1)", "a(1)", "simd_sum(1u)", "simdgroup_load(m, x)"]


@pytest.mark.parametrize("argument, written", [("x", True), ("2", False)])
def test_arguments_by_reference(argument, written):
    text = f"""
    void f(thread float& x, float y, const thread float& z) {{}}
    kernel void k(device float* out) {{ float x; f(x, {argument}, x); }}
    """
    graph = _graph(text)
    call = next(graph.source.find("(call_expression) @c"))
    assert [graph.takes_reference(call, i) for i in range(3)] == [True, False, False]
