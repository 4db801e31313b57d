"""Address spaces: erased, without leaving duplicates behind."""

import pytest
import torch
from metalops import msl

HEADER = "#include <metal_stdlib>\nusing namespace metal;\n"


def test_overloads_that_differ_only_by_address_space(program):
    p = program("""
        template <typename T> T first(device T* x) { return x[0]; }
        template <typename T> T first(threadgroup T* x) { return x[0]; }
        template <typename T> T first(const thread T* x) { return x[0]; }
        template <typename T> T first(constant T* x) { return x[0]; }
        float second(const device float* y) { return y[1]; }
        float second(const threadgroup float* z) { return z[1]; }
        kernel void k(device float* out, constant float* in, uint i [[thread_position_in_grid]]) {
          float own[2] = {3, 4};
          out[0] = first(in) + first(&own[0]) + second(out + 1);
        }
    """)
    out = torch.tensor([0.0, 5.0, 7.0])
    p.launch("k", out, torch.tensor([10.0]), grid=1)
    assert out[0] == 10 + 3 + 7


def test_partial_specialisations_that_become_equal(program):
    p = program("""
        template <typename T> struct pointee {};
        template <typename T> struct pointee<device T*> { using type = T; enum { size = sizeof(T) }; };
        template <typename U> struct pointee<threadgroup U*> { using type = U; enum { size = sizeof(U) }; };
        template <typename T> struct pointee<constant T*> { using type = T; enum { size = 100 }; };
        kernel void k(device int* out) {
          out[0] = pointee<device short*>::size;
          out[1] = pointee<threadgroup long*>::size;
          out[2] = pointee<constant int*>::size;
        }
    """)
    out = torch.zeros(3, dtype=torch.int32)
    p.launch("k", out, grid=1)
    assert out.tolist() == [2, 8, 100]


def test_methods_and_constructors_with_address_spaces(program):
    p = program("""
        struct pair {
          float a, b;
          pair(float x, float y) thread : a(x), b(y) {}
          pair(float x, float y) constant : a(x), b(y) {}
          constexpr operator float() const thread { return a; }
          constexpr operator float() const device { return a; }
          constexpr operator float() const constant { return a; }
          float sum() const thread { return a + b; }
          float sum() const device { return a + b; }
          float sum() const constant { return a + b; }
          void operator+=(float c) thread { a += c; }
          void operator+=(float c) device { a += c; }
        };
        kernel void k(device pair* out, constant pair& in) {
          pair p(1, 2);
          p += 10;
          out[0] += float(p) + in.sum();
        }
    """)
    out = torch.tensor([1.0, 0.0])
    p.launch("k", out, torch.tensor([3.0, 4.0]), grid=1)
    assert out[0] == 1 + 11 + 7


def test_constant_is_const_once(program):
    p = program("""
        constant float table[2][2] = {{1, 2}, {3, 4}};
        constant constexpr int four = 4;
        constexpr constant int five = 5;
        static constant const int six = 6;
        struct holder { static constant constexpr int seven = 7; };
        template <typename T> T take(const constant T& x) { return x; }
        template <typename T> T pick(constant const T* x) { return x[1]; }
        kernel void k(device float* out, const constant float* in, constant const float& c,
                      metal::vec<float, 2> constant& v) {
          constant float* row = table[1];
          const constant auto& cell = table[0][1];
          out[0] = four + five + six + holder::seven + take(c) + pick(in) + row[1] + cell + v.y;
        }
    """)
    out = torch.zeros(1)
    p.launch(
        "k", out, torch.tensor([1.0, 2.0]), torch.tensor([0.5]), torch.tensor([0.25, 0.125]), grid=1
    )
    assert out[0] == 4 + 5 + 6 + 7 + 0.5 + 2 + 4 + 2 + 0.125


def test_pointers_to_pointers(program):
    p = program("""
        kernel void k(device float* const* rows, constant float* constant* columns, device float* out) {
          device float* local[2] = {rows[0], rows[1]};
          out[0] = local[1][2] + columns[0][1];
        }
    """)
    rows = [torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4.0, 5.0, 6.0])]
    pointers = torch.tensor([r.data_ptr() for r in rows])
    out = torch.zeros(1)
    p.launch("k", pointers, pointers, out, grid=1)
    assert out[0] == 6 + 2


def test_casts_and_references_keep_working(program):
    p = program("""
        template <typename P> float through(P p) { return *reinterpret_cast<const device float*>(p); }
        kernel void k(device uchar* bytes, device float* out) {
          device float& target = *(device float*)(out);
          target = through(static_cast<const device uchar*>(bytes)) + as_type<float>(*(device uint*)bytes);
          thread float& t = *(thread float*)&(thread float&)target;
          t += 1;
        }
    """)
    out = torch.zeros(1)
    p.launch("k", torch.tensor([2.5]).view(torch.uint8), out, grid=1)
    assert out[0] == 6


def test_coherent_and_volatile_buffers(program):
    p = program("""
        kernel void k(volatile coherent(device) device uint* x, uint i [[thread_position_in_grid]]) {
          x[i] = x[i] + 1;
        }
    """)
    x = torch.arange(4, dtype=torch.int32)
    p.launch("k", x, grid=4)
    assert x.tolist() == [1, 2, 3, 4]


def test_classes_in_typedefs_and_functions(program):
    p = program("""
        typedef struct four {
        private:
          short v[4];
        public:
          thread short& operator[](const int i) { return v[i]; }
          device short& operator[](const int i) device { return v[i]; }
          threadgroup short& operator[](const int i) threadgroup { return v[i]; }
        } four;
        kernel void k(device four* x, device float* out) {
          struct local {
            float v;
            float get() const thread { return v; }
            float get() const device { return v; }
          };
          local l = {3};
          four own;
          own[0] = 4;
          out[0] = x[0][1] + l.get() + own[0];
        }
    """)
    out = torch.zeros(1)
    p.launch("k", torch.tensor([1, 2, 3, 4], dtype=torch.int16), out, grid=1)
    assert out[0] == 2 + 3 + 4


@pytest.mark.parametrize(
    ("source", "place", "first", "second"),
    [
        (
            """struct s {
              float a;
              s(float x) thread : a(x) {}
              s(float y) device : a(y + 1) {}
            };""",
            (6, 15),
            "s(float x) thread",
            "s(float y) device",
        ),
        (
            """struct s {
              float a;
              void operator+=(float x) thread { a += x; }
              void operator+=(float x) device { a -= x; }
            };""",
            (6, 20),
            "operator+=(float x) thread",
            "operator+=(float x) device",
        ),
    ],
)
def test_definitions_that_only_an_address_space_tells_apart(source, place, first, second):
    text = f"{HEADER}{source}\nkernel void k(device float* out) {{ out[0] = 1; }}\n"
    with pytest.raises(SyntaxError, match="differ only by address space") as caught:
        msl.emit_source(text)
    assert (caught.value.lineno, caught.value.offset) == place
    assert f"{first} and {second} (the first is at program_source:{place[0] - 1})" in str(
        caught.value
    )
