"""Overloads and specialisations that differ by address space mean what they mean in Metal."""

import re
import shutil

import pytest
import torch
from metalops import msl
from metalops.msl.check import check_source, opencl

from . import spaces_copies, spaces_kinds
from .spaces_gallery import SOURCE, VALUES
from .spaces_programs import program_of

HEADER = "#include <metal_stdlib>\nusing namespace metal;\n"
COMPILERS = ["g++", "clang++-19", "clang++"]


def assert_values(library):
    results = torch.zeros(len(VALUES), dtype=torch.int32)
    buffers = [results, torch.zeros(64), torch.ones(1), torch.zeros(64)]
    library.launch("run", buffers, 1, 1, {}, "auto", 1)
    assert {use: value for use, value in VALUES} == {
        use: value for (use, _), value in zip(VALUES, results.tolist(), strict=True)
    }


@pytest.mark.sampled(2)
@pytest.mark.full
@pytest.mark.parametrize("name", COMPILERS)
def test_the_gallery_gives_the_values_of_metal(bare_program, monkeypatch, name):
    if not shutil.which(name):
        pytest.skip(f"{name} is not installed")
    monkeypatch.setenv("CXX", name)
    assert_values(bare_program(SOURCE).library)


@pytest.mark.full
def test_the_checker_finds_nothing_in_the_gallery():
    assert check_source(SOURCE, language=320) == []


@pytest.mark.full
@pytest.mark.sampled(64)
@pytest.mark.parametrize("name", COMPILERS[:2])
@pytest.mark.parametrize("seed", range(64))
def test_random_programs_mean_what_a_model_of_metal_says(bare_program, monkeypatch, seed, name):
    if not shutil.which(name):
        pytest.skip(f"{name} is not installed")
    monkeypatch.setenv("CXX", name)
    source, calls = program_of(seed)
    assert calls > 10
    library = bare_program(source).library
    out = torch.zeros(1, dtype=torch.uint8)
    library.launch("k", [out, *(torch.zeros(8) for _ in range(6))], 1, 1, {}, "auto", 1)


@pytest.mark.full
@pytest.mark.sampled(32)
@pytest.mark.parametrize("name", COMPILERS[:2])
@pytest.mark.parametrize("seed", range(64))
def test_random_programs_of_many_kinds_mean_what_a_model_of_metal_says(
    bare_program, monkeypatch, seed, name
):
    if not shutil.which(name):
        pytest.skip(f"{name} is not installed")
    monkeypatch.setenv("CXX", name)
    source, uses = spaces_kinds.program_of(seed)
    assert uses > 30
    library = bare_program(source).library
    out = torch.zeros(1, dtype=torch.uint8)
    library.launch("k", [out, *(torch.zeros(8) for _ in range(6))], 1, 1, {}, "auto", 1)


@pytest.mark.full
@pytest.mark.skipif(opencl.find() is None, reason="needs clang 15 or newer")
@pytest.mark.sampled(32)
@pytest.mark.parametrize("seed", range(64))
def test_clang_agrees_with_the_model_of_many_kinds(seed):
    assert check_source(spaces_kinds.program_of(seed)[0], language=320) == []


@pytest.mark.full
@pytest.mark.skipif(opencl.find() is None, reason="needs clang 15 or newer")
@pytest.mark.sampled(64)
@pytest.mark.parametrize("seed", range(64))
def test_clang_agrees_with_the_model(seed):
    """Whose OpenCL mode has overloads by address space, too."""
    assert check_source(program_of(seed)[0]) == []


@pytest.mark.full
@pytest.mark.parametrize("name", spaces_copies.CASES)
def test_templates_have_a_copy_for_each_space_where_their_meaning_depends_on_it(bare_program, name):
    uses = spaces_copies.CASES[name][1]
    out = torch.zeros(len(uses), dtype=torch.int32)
    buffers = [torch.zeros(4), torch.zeros(1), torch.zeros(4), torch.zeros(4, dtype=torch.int32)]
    bare_program(spaces_copies.source_of(name)).launch("k", out, *buffers, grid=1)
    assert dict(zip(uses, out.tolist(), strict=True)) == uses


_F = """
int f(const device float* p) { return 1; }
int f(const threadgroup float* p) { return 2; }
"""

# Declarations, statements of a kernel with `device float* o` and `threadgroup float t[2]`, where the error is, its message.
WRONG = {
    "a class whose arguments a deduction guide gives": (
        _F
        + "template <typename P> struct s { P p; template <typename Q> s(Q q, int) : p(q) {} int g() { return f(p); } };\n"
        + "template <typename Q> s(Q, int) -> s<Q>;",
        "s x(o, 1); o[0] = x.g();",
        "p); }",
        "which overload of f this call means depends on the address space of p",
    ),
    "a parameter of a generic lambda that keeps a state": (
        _F,
        "int n = 0; auto g = [n](auto p) mutable { return f(p + 1) + n++; }; o[0] = g(o) + g(t);",
        "p + 1",
        "depends on the address space of p + 1",
    ),
    "a capture of a generic lambda that does something": (
        _F,
        "int n = 0; auto g = [m = n++](auto p) { return f(p + 1) + m; }; o[0] = g(o) + g(t);",
        "p + 1",
        "depends on the address space of p + 1",
    ),
    "a pack of a generic lambda": (
        _F,
        "auto g = [](auto... p) { return (f(p) + ...); }; o[0] = g(o, t);",
        "p) + ",
        "depends on the address space of p",
    ),
    "a use that is no call": (
        _F + "template <typename F> int g(F h) { return 1; }",
        "o[0] = g(f);",
        "f);",
        "f has overloads that differ by address space; a use of it other than a call",
    ),
    "no overload for the space": (
        _F,
        "float x; o[0] = f(&x);",
        "f(&x)",
        "no overload of f takes arguments in these address spaces",
    ),
    "a call operator that is passed on": (
        "struct s { int operator()(const device float* p) const { return 1; }\n"
        "int operator()(const threadgroup float* q) const { return 2; } };\n"
        "template <typename F> int g(F h) { return 1; }",
        "o[0] = g(&s::operator());",
        "operator());",
        "operator() has overloads that differ by address space; a use of it other than a call",
    ),
    "a template argument of a call operator": (
        _F + "struct s { template <typename P> int operator()() const { P p = 0; return f(p); } };",
        "s x; o[0] = x.template operator()<device float*>();",
        "p); }",
        "depends on the address space of p",
    ),
    "a call operator for other spaces": (
        "struct s { int operator()(const device float* p) const { return 1; }\n"
        "int operator()(const threadgroup float* q) const { return 2; } };",
        "s x; float n; o[0] = x(&n);",
        "x(&n)",
        "no overload of operator() takes arguments in these address spaces",
    ),
    "a constructor": (
        "struct s { int n; s(const device float* p, uint) : n(1) {}\n"
        "s(const threadgroup float* q, ushort) : n(2) {} };",
        "s x(t, 1u); o[0] = x.n;",
        "s(const threadgroup",
        "overloads of s that differ by address space are not supported",
    ),
    "an operator that one space lacks": (
        "struct p { int v; }; struct w { int v; w(int v) : v(v) {} w(p x) : v(x.v) {}\n"
        "int operator*(w r) const device { return w(*this) * r; }\n"
        "int operator*(w r) const { return v * r.v; } int operator*(p r) const { return 7; } };",
        "device w& x = *(device w*)o; o[0] = x * p{2};",
        "operator*(p r) const {",
        "overloads of operator* that differ by address space are not supported",
    ),
    "a number or an object that converts to one": (
        "struct n { operator int() const device { return 1; } };\n"
        "struct s { int v; s(int v) : v(v) {} s(thread const n& x) : v(2) {} };",
        "s x(1); o[0] = x.v;",
        "s(thread const n",
        "overloads of s that differ by address space are not supported",
    ),
    "is_same of a class for an address space": (
        "template <typename P> struct s { P p; };\n"
        "template <typename T> bool g(T x) { return is_same_v<T, s<device float*>>; }",
        "o[0] = g(s<device float*>{o});",
        "is_same_v",
        "the meaning of is_same_v depends on the address space of T",
    ),
    "the first of two errors": (
        _F,
        "int n = 0;\n"
        "auto h = [n](auto p, auto q) mutable { return is_same_v<decltype(p), decltype(q)>; };\n"
        "auto g = [n](auto p) mutable { return f(p + 1); }; o[0] = g(o) + h(o, t);",
        "is_same_v",
        "the meaning of is_same_v depends on the address space of decltype(p)",
    ),
    "is_same under several templates": (
        "template <typename P, typename Q> constant constexpr bool v = is_same_v<P, Q>;\n"
        "template <typename P, typename Q> struct s { static bool of() { return v<Q, P>; } };\n"
        "template <typename A, typename B> bool g(const thread A& a, const thread B& b) { return s<A, B>::of(); }\n"
        "template <typename T> bool f(T a, threadgroup float* b) { return g(a, b); }",
        "o[0] = f(o, t);",
        "is_same_v",
        "the meaning of is_same_v depends on the address space of P",
    ),
}


@pytest.mark.parametrize("about", WRONG)
def test_what_cannot_be_told_is_an_error(about):
    declarations, statements, place, message = WRONG[about]
    kernel = f"kernel void k(device float* o) {{ threadgroup float t[2]; {statements} }}"
    source = f"{HEADER}{declarations}\n{kernel}\n"
    with pytest.raises(SyntaxError, match=re.escape(message)) as caught:
        msl.emit_source(source)
    before = source[: source.index(place)]
    found = caught.value.lineno, caught.value.offset
    assert found == (before.count("\n") + 1, len(before) - before.rfind("\n"))


def test_errors_behind_longer_names_are_where_the_user_wrote_them():
    source = f"{HEADER}{_F}kernel void k(device float* o) {{\n  o[0] = f(o) + f(o) + missing;\n}}\n"
    with pytest.raises(SyntaxError, match="missing") as caught:
        msl.compile_source(source)
    assert (caught.value.lineno, caught.value.offset) == (7, 24)
    assert "f(o) + f(o) + missing" in caught.value.text


def test_functions_with_one_meaning_keep_their_name():
    """As those of torch's headers: one of them remains, whatever its argument is."""
    text = msl.emit_source(
        HEADER
        + """
        template <typename T> T first(const device T* x) { return x[0]; }
        template <typename T> T first(const threadgroup T* y) { return y[0]; }
        template <typename T> T at(device void* p, long n) { return *((device T*)p + n); }
        template <typename T> T at(constant void* p, long n) { return *((constant T*)p + n); }
        template <typename P> float any(P p) { return first(p) + at<float>(p, 1); }
        kernel void k(device float* o) { o[0] = any(o); }
        """
    )
    assert "_in_device" not in text
    assert text.count("first(const") == 1


@pytest.mark.parametrize("around", [("", ""), ("template <int N> struct group {", "};")])
def test_a_call_that_no_overload_takes_is_no_error_in_a_template_that_nothing_instantiates(
    program, around
):
    source = f"""
        {around[0]}
        template <class Op, class T> static float with(threadgroup T& to, threadgroup const T& a, thread const T& b, int i) {{
          return 1;
        }}
        template <class Op, class T> static float with(threadgroup T& to, threadgroup const T& a, threadgroup const T& b, int i) {{
          return 2;
        }}
        template <class T> static float unused(threadgroup T& to, thread const T& a) {{ return with<T, T>(to, a, 3); }}
        {around[1]}
        kernel void k(device float* o) {{
          threadgroup float x, y;
          float z = 0;
          o[0] = {"group<1>::" if around[0] else ""}with<int, float>(x, y, z, 1);
          o[1] = {"group<1>::" if around[0] else ""}with<int, float>(x, y, y, 1);
        }}"""
    out = torch.zeros(2)
    program(source).launch("k", out, grid=1)
    assert out.tolist() == [1, 2]


def test_textures_and_pointers_are_no_overloads_by_address_space():
    text = msl.emit_source(
        HEADER
        + """
        float first(texture2d<float, access::read> t) { return t.read(uint2(0)).x; }
        float first(device float* const thread& p) { return p[0]; }
        kernel void k(texture2d<float, access::read> t, device float* o) { o[0] = first(t) + first(o); }
        """
    )
    assert "first_in" not in text


def test_operators_of_different_classes_are_no_overloads_by_address_space():
    text = msl.emit_source(
        HEADER
        + """
        struct a { float x; };
        struct b { float x; };
        float operator+(const thread a& x, float y) { return x.x + y; }
        float operator+(const device b& x, float y) { return x.x * y; }
        kernel void k(device float* o, device b* y) { a x = {1}; o[0] = (x + 1) + (y[0] + 2); }
        """
    )
    assert text.count("float operator+(const") == 2


def test_operators_of_classes_that_nothing_converts_between_are_no_overloads_by_address_space(
    bare_program,
):
    source = f"""{HEADER}
    template <typename T> struct dual {{
      T value;
      dual() = default;
      explicit dual(const T v) : value(v) {{}}
      dual(const T v, const T) : value(v) {{}}
    }};
    template <typename T> struct interval {{ T low, high; }};
    struct v1 {{ float x; }};
    template <typename A, typename B> interval<A> operator/=(thread interval<A>& x, const B y) {{
      x.low /= y;
      return x;
    }}
    template <typename A, typename B> dual<A> operator/=(thread dual<A>& x, const thread dual<B>& y) {{
      x.value /= y.value;
      return x;
    }}
    v1 operator/=(v1 x, const float y) {{ x.x /= y; return x; }}
    kernel void k(device float* o) {{
      interval<float> a{{8, 9}};
      a /= 2;
      dual<float> d(60.0f), e(2.0f);
      d /= e;
      v1 v{{600}};
      o[0] = a.low + d.value + (v /= 3.0f).x;
    }}
    """
    out = torch.zeros(1)
    bare_program(source).launch("k", out, grid=1)
    assert out.item() == 4 + 30 + 200


def test_operators_of_numbers_and_of_objects_by_value_are_no_overloads_by_address_space(program):
    out = torch.zeros(2)
    program("""
        struct dual { float value, slope; };
        dual operator*(const dual a, const dual b) { return {a.value * b.value, a.value * b.slope + a.slope * b.value}; }
        dual operator*(const thread dual& a, const float b) { return {a.value * b, a.slope * b}; }
        kernel void k(device float* o) {
          dual x{3, 1};
          o[0] = (x * x * x).slope;
          o[1] = (x * 5.0f).value;
        }
    """).launch("k", out, grid=1)
    assert out.tolist() == [27, 15]


def test_objects_of_a_class_template_mean_the_overload_for_it_in_any_address_space(bare_program):
    source = f"""{HEADER}
    template <typename T> struct operand {{ const device T* p; }};
    struct piece {{ float v; }};
    template <typename O, typename L, typename R>
    void mma(thread O& o, thread L& l, thread R& r) {{ o.v += l.v * r.v; }}
    template <typename Out, typename L, typename F>
    void mma(thread Out& o, thread L& l, const operand<F> r) {{ o.v += l.v + r.p[1]; }}
    template <typename R> void run(thread piece& o, R r) {{ piece l{{2}}; mma(o, l, r); }}
    kernel void k(device float* o, device operand<float>* p) {{
      piece a{{1}}, b{{5}};
      run(a, b);
      o[0] = a.v;
      p[0].p = o + 3;
      run(a, p[0]);
      o[1] = a.v;
      mma(a, b, p[0]);
      o[2] = a.v;
    }}
    """
    out = torch.tensor([0.0, 0, 0, 0, 100])
    bare_program(source).launch("k", out, torch.zeros(1, dtype=torch.int64), grid=1)
    assert out.tolist() == [11, 113, 218, 0, 100]


PACKS = """
float f(thread float& a, thread float& b) { return 1; }
float f(device float& a, device float& b) { return 2; }
float g(const device float* p, int i, int more = 0) { return 3 + i + more; }
float g(const threadgroup float* p, int i, int more = 0) { return 5 + i + more; }
"""


def test_packs_of_one_space_and_arguments_before_packs_tell_overloads_apart(program):
    out = torch.zeros(6)
    program(f"""{PACKS}
        template <typename... T> float of_thread(thread T&... x) {{ return f(x...); }}
        template <typename... T> float of_device(device T&... x) {{ return f(x...); }}
        template <typename... T> float first(thread float& a, thread T&... x) {{ return f(a, x...); }}
        template <typename... T> float in(device float* p, T... x) {{ return g(p, x...); }}
        template <typename... T> float within(threadgroup float* p, T... x) {{ return g(p + 1, x...); }}
        kernel void k(device float* o) {{
          threadgroup float t[2];
          float a = 0, b = 0;
          o[0] = of_thread(a, b);
          o[1] = of_device(o[4], o[5]);
          o[2] = first(a, b);
          o[3] = in(o, 10);
          o[4] = within(t, 10);
          o[5] = within(t, 10, 100);
        }}
    """).launch("k", out, grid=1)
    assert out.tolist() == [1, 2, 1, 13, 15, 115]


COPIED = """
int f(const device float* p) { return 1; }
int f(const threadgroup float* p) { return 2; }
int f(int x) { return 3; }
template <typename P> struct of { enum { space = 0 }; };
template <typename T> struct of<device T*> { enum { space = 1 }; };
template <typename T> struct of<threadgroup T*> { enum { space = 2 }; };
template <typename P> int given(P p) { P q = p; return f(q); }
template <typename P> int after(const P p, int n) { return n == 0 ? f(p) : 10 + after(p, n - 1); }
template <typename P, typename Q> int both(const thread P& p, Q q = 4) { return 10 * given(p) + given(q); }
template <typename... T> int all(T... x) { return (f(x) + ... + 0) * 10 + int(sizeof...(x)); }
template <typename... T> int passed(int first, T... x) { return first + all(x...); }
template <typename... T> int in_device(device T*... x) { return (f(x) + ...); }
template <typename P> bool is_floats(P p) { return is_same_v<P, device float*>; }
template <typename P, typename Q> bool same(P p, Q q) { return is_same<P, Q>::value; }
template <typename A, typename B> bool through(A a, B b) { return same(a, b); }
template <typename P> int space_of(P p) { return of<P>::space; }
template <typename P> int rest(P p) { return f(p); }
template <typename P, typename... R> int rest(P p, R... r) { return f(p) + 10 * rest(r...); }
int ends() { return 0; }
template <typename... R> int ends(device float* p, R... r);
template <typename... R> int ends(threadgroup float* p, R... r) { return 2 + 10 * ends(r...); }
template <typename... R> int ends(device float* p, R... r) { return 1 + 10 * ends(r...); }
template <int N, typename P> int times(P p) {
  if constexpr (N == 0) return 0; else return f(p) + 10 * times<N - 1>(p);
}
template <typename A, typename B> int swapped(A a, B b, int n) {
  return n == 0 ? 0 : f(a) + 10 * swapped(b, a, n - 1);
}
template <typename P> int of_decltype(P p) { decltype(p) q = p; auto r = q + 1; return f(r); }
template <typename P> enable_if_t<is_same_v<P, device float*>, int> enabled(P p) { return 1; }
template <typename P> enable_if_t<!is_same_v<P, device float*>, int> enabled(P p) { return 2; }
template <typename P, enable_if_t<of<P>::space == 1, bool> = true> int chosen(P p) { return 1; }
template <typename P, enable_if_t<of<P>::space != 1, bool> = true> int chosen(P p) { return 2; }
int of_object(device float* thread* p) { return 1; }
int of_object(threadgroup float* thread* p) { return 2; }
template <typename P> class reader {
  P p;
 public:
  reader(P q) : p(q) {}
  int read() const { return f(p); }
  int later(int n);
  static int of(P q) { return f(q + 1); }
  P get() const { return p; }
  reader<P> next() const { return reader<P>(p + 1); }
  template <typename Q> int with(Q q) { return f(p) * 10 + f(q); }
  int address() { return of_object(&p); }
};
template <typename Q> int reader<Q>::later(int n) { Q q = p; return f(q) + n; }
using device_floats = device float*;
template <int N, typename P = device_floats> struct many {
  P p[N];
  int read() { int sum = 0; for (int i = 0; i < N; ++i) sum = 10 * sum + f(p[i]); return sum; }
};
template <int N, typename P = device float*> struct scaled { P p; int read() { return N * f(p); } };
template <typename P> struct inner { struct part { P p; int read() { return f(p); } }; part x; };
template <typename P> struct derived : reader<P> {
  derived(P p) : reader<P>(p) {}
  int twice() { return 11 * reader<P>::read(); }
};
struct shared_reader : reader<threadgroup float*> {
  shared_reader(threadgroup float* p) : reader<threadgroup float*>(p) {}
};
struct pair { reader<device float*> a; reader<threadgroup float*> b; };
template <typename R> int read(R r) { return r.read(); }
template <typename P> struct plain { P p; P get() const { return p; } };
template <typename P> struct kind_of { static constexpr constant bool is_device = is_same_v<P, device float*>; };
struct owner {
  int n;
  template <typename P> int member(P p) const { return n * f(p); }
  template <typename P> static P moved(P p) { return f(p) > 0 ? p + 1 : p; }
};
"""


@pytest.mark.sampled(2)
@pytest.mark.full
@pytest.mark.parametrize("name", COMPILERS[:2])
def test_templates_that_get_pointers_to_several_spaces(program, monkeypatch, name):
    """They have a copy for each, where their meaning depends on it."""
    if not shutil.which(name):
        pytest.skip(f"{name} is not installed")
    monkeypatch.setenv("CXX", name)
    cases = {
        "given(o) + 10 * given(t) + 100 * given(7)": 321,
        "after(o, 2) + 100 * after(t + 1, 0)": 221,
        "both(d, s) + 100 * both(s, d)": 2112,
        "all(o, s, 4) + 1000 * all(s) + all()": 63 + 21000,
        "passed(1000, t + 0, o)": 1032,
        "in_device(o, o + 1)": 2,
        "is_floats(o) + 10 * is_floats(s) + 100 * is_floats(i)": 1,
        "through(o, d) + 10 * through(o, s) + 100 * through(s, s) + 1000 * through(o, i)": 101,
        "space_of(o) + 10 * space_of(s) + 100 * space_of(i) + 1000 * space_of(5)": 121,
        "(owner{5}).member(o) + 100 * (owner{7}).member(s)": 1405,
        "f(owner::moved(d)) + 10 * f(owner::moved(s))": 21,
        "given<device float*>(o) + 10 * given<threadgroup float*>(t) + 100 * given<int>(7)": 321,
        "both<device float*>(d, s) + 100 * both<threadgroup float*, device float*>(s, d)": 2112,
        "rest(o, s, 4) + 1000 * rest(s)": 2321,
        "ends(o, s, d) + 1000 * ends(s, s)": 22121,
        "times<2>(o) + 100 * times<2>(s)": 2211,
        "swapped(o, s, 3)": 121,
        "of_decltype(o) + 10 * of_decltype(s)": 21,
        "enabled(o) + 10 * enabled(s) + 100 * chosen(o) + 1000 * chosen(s)": 2121,
        "reader<device float*>(o).read() + 10 * reader<threadgroup float*>(t).read()": 21,
        "reader<int>(4).read() + 10 * reader<device_floats>(o).read()": 13,
        "reader<device float*>(o).later(5) + 10 * reader<threadgroup float*>(s).later(5)": 76,
        "reader<device float*>::of(o) + 10 * reader<threadgroup float*>::of(s)": 21,
        "f(reader<device float*>(o).get()) + 10 * f(reader<threadgroup float*>(s).get())": 21,
        "reader<threadgroup float*>(s).next().read()": 2,
        "reader<device float*>(o).with(s) + 100 * reader<threadgroup float*>(s).with(7)": 2312,
        "reader<device float*>(o).address() + 10 * reader<threadgroup float*>(s).address()": 21,
        "many<2, device float*>{{o, o}}.read() + 100 * many<2, threadgroup float*>{{s, s}}.read()": 2211,
        "scaled<1>{o}.read() + 10 * scaled<2, threadgroup float*>{s}.read()": 41,
        "inner<device float*>{{o}}.x.read() + 10 * inner<threadgroup float*>{{s}}.x.read()": 21,
        "derived<device float*>(o).twice() + 100 * derived<threadgroup float*>(s).twice()": 2211,
        "shared_reader(s).read()": 2,
        "(pair{{o}, {s}}).b.read() + 10 * read((pair{{o}, {s}}).a)": 12,
        "f(plain<device float*>{o}.p) + 10 * f(plain<threadgroup float*>{s}.get())": 21,
        "kind_of<device float*>::is_device + 10 * kind_of<threadgroup float*>::is_device": 1,
        "is_same_v<plain<device float*>, plain<threadgroup float*>>": 0,
        "is_same_v<plain<device float*>, plain<device_floats>>": 1,
    }
    lines = " ".join(f"r[{n}] = {expression};" for n, expression in enumerate(cases))
    p = program(f"""{COPIED}
        kernel void k(device int* r, device float* o, device int* i) {{
          threadgroup float t[4];
          device float* d = o;
          threadgroup float* s = t;
          {lines}
        }}""")
    out = torch.zeros(len(cases), dtype=torch.int32)
    p.launch("k", out, torch.zeros(4), torch.zeros(4, dtype=torch.int32), grid=1)
    assert dict(zip(cases, out.tolist(), strict=True)) == cases


def test_the_pointee_of_a_template_may_be_const_in_any_space(program):
    """So that const tells constant memory from other memory only where no parameter of a template stands for it."""
    out = torch.zeros(8, dtype=torch.int32)
    program("""
        using constant_floats = const float;
        template <typename T> int g(device T* p) { return 1; }
        template <typename T> int g(constant T* p) { return 2; }
        template <typename T> int f(device T* p) { return 1; }
        template <typename T> int f(constant T* p) { return 2; }
        template <typename T> int r(thread T& p) { return 3; }
        template <typename T> int r(constant T& p) { return 4; }
        kernel void k(device int* o, const device float* d, constant float* c) {
          const float x = 1;
          o[0] = f(d); o[1] = f(c); o[2] = f(o); o[3] = r(x); o[4] = r(*c);
          o[5] = g<const int>(o); o[6] = g<constant_floats>((device float*)o); o[7] = g<float>(c);
        }
    """).launch("k", out, torch.zeros(1), torch.zeros(1), grid=1)
    assert out.tolist() == [1, 2, 1, 3, 4, 1, 1, 2]


ELEMENT = """
template <typename T> struct element { using type = T; };
template <typename T> struct element<device T*> { using type = T; };
template <typename T> struct element<const device T*> { using type = T; };
template <typename T> struct element<threadgroup T*> { using type = T; };
template <typename T> using element_t = typename element<T>::type;
template <typename P> void put(P p, int i) { p[i] = element_t<P>(7.5); }
"""


def test_specialisations_that_are_alike_serve_template_parameters(program):
    out = torch.zeros(4)
    program(f"""{ELEMENT}
        kernel void k(device float* o) {{
          threadgroup int t[2];
          put(o, 0);
          put((threadgroup int*)t, 1);
          o[1] = t[1];
          o[2] = element_t<float>(2.5);
          o[3] = sizeof(element_t<device uchar*>);
        }}
    """).launch("k", out, grid=1)
    assert out.tolist() == [7.5, 7, 2.5, 1]


@pytest.mark.parametrize(
    "statement",
    [
        "float t[2]; put((thread float*)t, 0);",
        "float t[2]; put(t, 0);",
        "o[0] = sizeof(element_t<thread uchar*>);",
        "o[0] = sizeof(element<constant uchar*>::type);",
    ],
)
def test_pointers_to_other_spaces_than_those_of_alike_specialisations_are_errors(statement):
    with pytest.raises(SyntaxError, match="element is not specialised for pointers to"):
        msl.emit_source(f"{HEADER}{ELEMENT}kernel void k(device float* o) {{ {statement} }}")


def test_templates_that_use_their_parameter_get_pointers_to_other_spaces(program):
    """Those for which they have no specialisation."""
    out = torch.zeros(9)
    program("""
        template <typename T> struct held { T p; int kind() { return 1; } };
        template <typename T> struct held<device T*> { device T* p; int kind() { return 2; } };
        template <typename T> struct held<const threadgroup T*> { uint i; int kind() { return 3; } };
        template <typename T, int N> struct many { T p[N]; int kind() { return 4; } };
        template <typename T, int N> struct many<device T*, N> { device T* p[N]; int kind() { return 5; } };
        template <typename T, int N> struct many<threadgroup T*, N> { uint p[N]; int kind() { return 6; } };
        float read(held<constant float*> x) { return x.p[0] + x.kind(); }
        float read(held<device float*> x) { return x.p[0] + x.kind(); }
        kernel void k(device float* o, constant float& c) {
          threadgroup float t[2];
          float own = 5;
          t[0] = 6;
          o[0] = 10;
          held<threadgroup float*> other{t};
          held<const threadgroup float*> last{7};
          many<device const float*, 2> pointers{{o, o + 1}};
          many<threadgroup const float*, 2> numbers{{8, 9}};
          many<thread float*, 2> others{{&own, &own}};
          o[1] = read(held<constant float*>{&c});
          o[2] = read(held<device float*>{o});
          o[3] = held<thread float*>{&own}.p[0] + held<float>{1}.kind();
          o[4] = other.p[0] + other.kind();
          o[5] = last.i + last.kind();
          o[6] = pointers.p[0][0] + pointers.kind();
          o[7] = numbers.p[1] + numbers.kind();
          o[8] = *others.p[1] + others.kind();
        }
    """).launch("k", out, torch.tensor([3.0]), grid=1)
    assert out.tolist() == [10, 4, 12, 6, 7, 10, 15, 15, 9]


def test_an_operand_that_converts_to_the_other_class_may_mean_either():
    with pytest.raises(SyntaxError, match="operator/= that differ by address space"):
        msl.emit_source(
            f"""{HEADER}
            struct a {{ float x; }};
            struct b {{ float x; b(a y) : x(y.x) {{}} }};
            float operator/=(device a& x, float y) {{ return x.x / y; }}
            float operator/=(b x, float y) {{ return x.x * y; }}
            kernel void k(device a* o) {{ a t = {{1}}; o[0].x = (t /= 2) + (o[0] /= 2); }}
            """
        )


@pytest.mark.full
@pytest.mark.parametrize("engine", ["group", "fiber"])
def test_functions_that_synchronise(program, engine):
    p = program("""
        template <typename T> T total(const device T* x, uint i) {
          return simd_sum(x[i]);
        }
        template <typename T> T total(threadgroup T* x, ushort i) {
          threadgroup_barrier(mem_flags::mem_threadgroup);
          T sum = 0;
          for (uint j = 0; j < 32; ++j) sum += x[(i + j) % 32];
          threadgroup_barrier(mem_flags::mem_threadgroup);
          return -sum;
        }
        kernel void k(device float* out, device const float* in, uint i [[thread_position_in_threadgroup]]) {
          threadgroup float shared[32];
          shared[i] = 2 * in[i];
          float one = total(in, ushort(i));
          out[i] = one + total(shared, i);
        }
    """)
    out, x = torch.zeros(32), torch.arange(32.0)
    p.launch("k", out, x, grid=32, engine=engine)
    assert out.tolist() == [-x.sum()] * 32


@pytest.mark.parametrize("engine", ["group", "fiber"])
@pytest.mark.parametrize("barrier", ["", "threadgroup_barrier(mem_flags::mem_threadgroup);"])
def test_decltype_of_variables_that_loops_over_threads_keep_elsewhere(program, engine, barrier):
    p = program(f"""
        template <typename P> struct space {{ enum {{ v = 1 }}; }};
        template <typename T> struct space<device T*> {{ enum {{ v = 2 }}; }};
        kernel void k(device int* out, uint i [[thread_position_in_threadgroup]]) {{
          threadgroup int shared[4];
          int n = 3;
          const int c = 4;
          auto p = out + 1;
          auto own = int(i);
          shared[i] = n + c + own;
          {barrier}
          out[i] = space<decltype(p)>::v * 1000 + is_same_v<decltype(n), int> * 100
              + is_same_v<decltype(c), const int> * 10 + is_same_v<decltype(own), int>;
        }}""")
    out = torch.zeros(8, dtype=torch.int32)
    p.launch("k", out, grid=4, engine=engine)
    assert out.tolist() == [2111] * 4 + [0] * 4


def test_is_same_of_parameters_that_are_never_pointers_is_no_error():
    emitted = msl.emit_source(
        f"""{HEADER}
        template <typename P, typename Q> bool g(P p, Q q) {{ return is_same<P, Q>::value; }}
        template <typename A, typename B> bool f(A a, B b) {{ return g(a, b) || g(b, a) || f(a, a); }}
        template <typename T, typename U> bool h(device T* p, threadgroup U* q) {{ return is_same_v<T, U> && f(*p, *q); }}
        kernel void k(device float* o) {{ threadgroup float t[2]; o[0] = f(o[1], 1) + h(o, t); }}
        """
    )
    assert "is_same<P, Q>::value" in emitted


DUALS = """
template <typename T> struct range { T low, high; range() = default; range(T v) : low(v), high(v) {} range(T l, T h) : low(l), high(h) {} };
template <typename T> struct dual { T v, d; dual() = default; explicit dual(const T v) : v(v), d(0) {} dual(const T v, const T d) : v(v), d(d) {} };
struct light { packed_float3 at; union { float radius; uint bits; }; };
template <typename T> range<T> operator*(const range<T> a, const T b) { return {a.low * b, a.high * b}; }
template <typename T> range<T> operator+(const thread range<T>& a, const thread range<T>& b) { return {a.low + b.low, a.high + b.high}; }
template <class T, class U> dual<T> operator*(const dual<T> a, U b) { return {a.v * b, a.d * b}; }
template <class T> dual<T> operator*(const T a, const thread dual<T>& b) { return {a * b.v, a * b.d}; }
template <class T, class U> dual<T> operator*(const thread dual<T>& a, const thread dual<U>& b) { return {a.v * b.v, a.v * b.d + a.d * b.v}; }
template <class T> dual<T> operator+(const dual<T> a, const dual<T> b) { return {a.v + b.v, a.d + b.d}; }
float square(const float x) { return x * x; }
template <class T> dual<T> square(const thread dual<T>& __restrict x) { return x * x; }
template <class T> T first(const T a, const T b) { return a * b; }
"""


def test_values_and_references_to_thread_memory_are_told_apart_by_their_class(program):
    """As operators of dual numbers: no operand of the program lies elsewhere."""
    out = torch.zeros(9)
    program(f"""{DUALS}
        kernel void k(device float* o, device light* lights, uint i [[thread_position_in_grid]]) {{
          const device light* l = &lights[i];
          dual<float> x(3.0f, 1.0f);
          range<float> r(1.0f, 2.0f);
          o[0] = (x * x * x).d;
          o[1] = (l->radius * x).v + (x * l->radius).d;
          o[2] = (r * l->radius + r).high;
          o[3] = (float3(l->at) * l->radius).z;
          o[4] = square(x).d + square(o[0]);
          o[5] = square(l->radius);
          o[6] = first(2.0f, l->radius) + first(x, x).v;
        }}
    """).launch("k", out, torch.tensor([1.0, 2, 3, 4]), grid=1)
    assert out.tolist() == [27, 16, 10, 12, 735, 16, 17, 0, 0]


@pytest.mark.parametrize(
    "statement",
    [
        "o[0] = (d[0] * x).v;",
        "o[0] = (x * *d).v;",
        "int n = 0; o[0] = ((n ? d[0] : d[1]) * x).v;",
        "o[0] = (d->times(2.0f) * x).v;",
    ],
)
def test_operands_outside_of_thread_memory_are_errors(statement):
    """An operator that takes them by value is meant, where C++ takes the reference."""
    declarations = """
    template <class T> struct dual { T v; const device dual& times(T n) const device { return *this; } };
    template <class T, class U> dual<T> operator*(const dual<T> a, U b) { return {1}; }
    template <class T, class U> dual<T> operator*(const thread dual<T>& a, const thread dual<U>& b) { return {2}; }
    """
    kernel = f"kernel void k(device float* o, device dual<float>* d) {{ dual<float> x{{1}}; {statement} }}"
    with pytest.raises(SyntaxError, match=r"operator\* that differ by address space"):
        msl.emit_source(f"{HEADER}{declarations}{kernel}")
