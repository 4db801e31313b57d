"""Templates that have copies by address space (dialect/space_copies.py, dialect/class_copies.py): programs, each with the
values that it must give.
"""

HEAD = """
#include <metal_stdlib>
using namespace metal;
int f(const device float* p) { return 1; }
int f(const threadgroup float* p) { return 2; }
int f(const constant float* p) { return 3; }
int f(const thread float* p) { return 4; }
int f(int x) { return 5; }
"""
KERNEL = """
kernel void k(device int* r, device float* o, constant float& c, const device float* cd, device int* oi) {
  threadgroup float tg[8];
  threadgroup float* sp = tg;
  float own[8] = {0};
  device float* d = o;
"""

# By name: declarations, and {expression: value}, in which statements may stand before the expression, up to `;;`.
CASES = {
    "arguments that are only written": (
        """
        template <typename P> int g() { P p = 0; return f(p); }
        template <typename P, typename T> int two(T x) { P p = 0; return f(p) + 10 * f(x); }
        template <typename P, int N> int times() { P p = 0; return f(p) * N; }
        template <typename Q> int on(Q q) { return g<Q>(); }
        template <typename Q> int further() { return g<Q>() * 10; }
        template <typename P> P as(device void* q) { return (P)q; }
        template <typename P> bool is_floats() { return is_same_v<P, device float*>; }
        template <typename P = device float*> int by_default() { P p = 0; return f(p); }
        template <typename T, typename P = device T*> int of_element(T x) { P p = 0; return f(p); }
        template <typename P> int made() { return sizeof(P) == 8 ? f(P(0)) : 0; }
        template <typename P> int of(int x) { P p = 0; return f(p); }
        template <typename P> int of(float x) { P p = 0; return 10 * f(p); }
        template <typename P, typename Q> int headers() { P p = 0; Q q = 0; return f(p) * 10 + f(q); }
        template <typename P> int headers() { P p = 0; return f(p); }
        template <typename P, int N> int headers() { P p = 0; return f(p) * N; }
        using device_floats = device float*;
        typedef threadgroup float* shared_floats;
        struct owner {
          template <typename P> static int g() { P p = 0; return f(p); }
          template <typename P> int h(int n) const { P p = 0; return f(p) * n; }
        };
        """,
        {
            "g<device float*>() + 10 * g<threadgroup float*>() + 100 * g<int>()": 521,
            "g<device_floats>() + 10 * g<shared_floats>()": 21,
            "headers<threadgroup float*>() + 10 * headers<device float*, threadgroup float*>() + 1000 * headers<device float*, 4>()": 4122,
            "auto q = o + 1;; g<decltype(q)>() + 10 * g<decltype(sp)>() + 100 * g<decltype(o + 1)>()": 121,
            "owner x;; owner::g<device float*>() + 10 * x.h<threadgroup float*>(10)": 201,
            "two<device float*>(o) + 100 * two<threadgroup float*>(o) + 10000 * two<constant float*>(tg)": 231211,
            "times<device float*, 3>() + 10 * times<threadgroup float*, 4>()": 83,
            "on(o) + on(tg) * 10 + further<device float*>() + further<threadgroup float*>() * 100": 2031,
            "f(as<device float*>(o)) + 10 * f(as<const device float*>(o))": 11,
            "is_floats<device float*>() + 10 * is_floats<threadgroup float*>() + 100 * is_floats<int>()": 1,
            "by_default() + 10 * by_default<threadgroup float*>() + 100 * of_element(1.0f)": 121,
            "made<device float*>() + 10 * made<threadgroup float*>()": 21,
            "of<device float*>(1) + of<threadgroup float*>(1.0f) + 100 * of<device float*>(2.0f)": 1021,
        },
    ),
    "recursion by template arguments": (
        """
        template <typename P, int N> int g() {
          P p = 0;
          if constexpr (N == 0) return 0; else return f(p) + 10 * g<P, N - 1>();
        }
        template <typename P, typename Q, int N> int swapped() {
          P p = 0;
          if constexpr (N == 0) return 0; else return f(p) + 10 * swapped<Q, P, N - 1>();
        }
        template <int N, typename P, typename Q> int both(Q q) {
          P p = 0;
          if constexpr (N == 0) return 0; else return f(p) * 10 + f(q) + 100 * both<N - 1, Q>(p);
        }
        """,
        {
            "g<device float*, 2>() + 100 * g<threadgroup float*, 3>()": 22211,
            "swapped<device float*, threadgroup float*, 3>()": 121,
            "both<2, device float*>(tg)": 2112,
        },
    ),
    "specialisations of functions": (
        """
        template <typename P> int g(P p) { return 1; }
        template <> int g<device float*>(device float* p) { return 2; }
        template <> int g(threadgroup float* p) { return 3; }
        template <> int g<float>(float p) { return 4; }
        template <typename Q> int on(Q q) { return g<Q>(q) + 10 * g(q); }
        template <typename P> int only() { return 1; }
        template <> int only<device float*>() { return 2; }
        template <typename P> int of_const(P p) { return 1; }
        template <> int of_const<const device float*>(const device float* p) { return 2; }
        template <typename P> int of_reference(const thread P& p) { return 1; }
        template <> int of_reference(device float* const thread& p) { return 2; }
        template <typename P> int declared(P p);
        template <> int declared<device float*>(device float* p) { return 2; }
        template <> int declared<threadgroup float*>(threadgroup float* p) { return 3; }
        template <typename P> int later(P p);
        template <> int later(device float* p) { return 7; }
        template <typename P> int later(P p) { return f(p); }
        struct owner { template <typename P> static int of(P p) { return 1; } };
        template <> int owner::of<device float*>(device float* p) { return 2; }
        namespace inner { template <typename P> int h(P p) { return f(p); } }
        template <> int inner::h<constant float*>(constant float* p) { return 9; }
        template <typename P, typename Q> int beside(P p, Q q) { return f(p) * 10 + int(q); }
        template <> int beside<device float*, int>(device float* p, int q) { return 77; }
        template <typename T> int pointee(device T* p) { return 1; }
        template <typename T> int pointee(threadgroup T* p) { return 2; }
        template <> int pointee<float>(device float* p) { return 3; }
        """,
        {
            "g(o) + 10 * g(tg) + 100 * g(4) + 1000 * g(oi) + 10000 * g(4.0f) + 100000 * g(own)": 141132,
            "g<device float*>(o) + 10 * g<threadgroup float*>(tg) + 100 * on(o) + 10000 * on(own)": 112232,
            "only<threadgroup float*>() + 10 * only<device float*>() + 100 * only<int>()": 121,
            "of_const(o) + 10 * of_const(cd) + 100 * of_const((const threadgroup float*)tg)": 121,
            "of_reference(d) + 10 * of_reference(sp)": 12,
            "declared(o) + 10 * declared(tg)": 32,
            "later(o) + 10 * later(tg)": 27,
            "owner::of(o) + 10 * owner::of(tg) + 100 * owner::of(1)": 112,
            "inner::h(o) + 10 * inner::h(tg) + 100 * inner::h(&c)": 921,
            "beside(o, 1) + 100 * beside(tg, 1) + 10000 * beside(tg, 2.0f)": 222177,
            "pointee(o) + 10 * pointee(tg) + 100 * pointee(oi)": 123,
        },
    ),
    "aliases of pointers": (
        """
        template <class T> using device_pointer = device T*;
        template <class T> using shared_pointer = threadgroup T*;
        template <class T> using device_const = const device T*;
        template <class T> using device_reference = device T&;
        template <class T> using own_reference = thread T&;
        int g(device_pointer<float> p, uint) { return 1; }
        int g(shared_pointer<float> p, ushort) { return 2; }
        template <class T> int of(device_pointer<T> p, uint) { return 1; }
        template <class T> int of(shared_pointer<T> p, ushort) { return 2; }
        int h(device_reference<float> x) { return 1; }
        int h(own_reference<float> x) { return 2; }
        int to_const(const device_pointer<float> p, uint) { return 1; }
        int to_const(threadgroup float* const p, ushort) { return 2; }
        int level(thread device_pointer<float>& x) { return 1; }
        int level(threadgroup float* thread& x) { return 2; }
        int inner(thread device_pointer<float>* x) { return 3; }
        int inner(threadgroup float* thread* x) { return 4; }
        template <class T> struct space { enum { v = 0 }; };
        template <class T> struct space<device_pointer<T>> { enum { v = 1 }; };
        template <class T> struct space<threadgroup T*> { enum { v = 2 }; };
        template <typename P> struct holder { P p; int g() { return f(p); } };
        template <typename P> int zero() { P p = 0; return f(p); }
        struct outer {
          using pointer = device float*;
          template <class T> using shared = threadgroup T*;
        };
        struct other { using pointer = threadgroup float*; };
        int member(outer::pointer p, uint) { return 1; }
        int member(other::pointer p, ushort) { return 2; }
        template <typename P> struct typed { using type = P; P p; int g() { type q = p; return f(q); } };
        template <typename P> int local(P p) {
          using held = holder<P>;
          held x{p};
          typedef P pointer;
          pointer q = p;
          return x.g() + 10 * f(q);
        }
        """,
        {
            "g(o, ushort(1)) + 10 * g(tg, 1u) + 100 * of(o, ushort(1)) + 1000 * of(tg, 1u)": 2121,
            "float l = 0;; h(*o) + 10 * h(l)": 21,
            "to_const(o, ushort(1)) + 10 * to_const(tg, 1u)": 21,
            "device_const<float> p = o, q = o;; f(p) + 10 * f(q)": 11,
            "device_pointer<float> q = o, a[2] = {o, o};; level(q) + 10 * inner(&q) + 100 * f(a[1])": 131,
            "threadgroup float* q = tg;; level(q) + 10 * inner(&q)": 42,
            "is_same_v<device_pointer<float>, shared_pointer<float>>": 0,
            "is_same_v<device_pointer<float>, device float*>": 1,
            "space<device float*>::v + 10 * space<shared_pointer<int>>::v + 100 * space<device_pointer<int>>::v": 121,
            "(holder<device_pointer<float>>{o}).g() + 10 * (holder<shared_pointer<float>>{tg}).g()": 21,
            "zero<device_pointer<float>>() + 10 * zero<shared_pointer<float>>()": 21,
            "holder<outer::pointer> x{o}; holder<outer::shared<float>> y{tg};; x.g() + 10 * y.g()": 21,
            "member(o, ushort(1)) + 10 * member(tg, 1u)": 21,
            "typed<device float*> x{o}; typed<threadgroup float*> y{tg};; x.g() + 10 * y.g()": 21,
            "typed<device float*>::type x = o; typed<threadgroup float*>::type y = tg;; f(x) + 10 * f(y)": 21,
            "local(o) + 100 * local(tg)": 2211,
            "using q = device float*; q x = o; { using q = threadgroup float*; q y = tg; x += f(y); } q z = o;; f(x) + 10 * f(z)": 11,
        },
    ),
    "aliases of classes": (
        """
        namespace inner {
        template <typename P> struct s { P p; int g() { return f(p); } };
        template <typename P> using any = s<P>;
        int of(any<device float*> x) { return x.g(); }
        }
        using inner::any;
        template <typename P> struct around { P p; int g() { return 10 * p.g(); } };
        template <typename P> using deep = around<inner::any<P>>;
        template <typename Q> int in_template(Q q) { any<Q> x{q}; return x.g(); }
        template <typename Q> struct member { any<Q> q; int g() { return q.g(); } };
        template <typename P, int N> struct counted { P p; int g() { return f(p) * N; } };
        template <typename P> using three = counted<P, 3>;
        template <typename P, typename Q> struct pair_of { P p; Q q; int g() { return f(p) * 10 + f(q); } };
        template <typename A, typename B> using swapped = pair_of<B, A>;
        template <typename A> using with_device = pair_of<A, device float*>;
        typedef inner::s<device float*> of_device;
        using of_shared = inner::s<threadgroup float*>;
        int by_class(of_device x) { return 1; }
        int by_class(of_shared x) { return 2; }
        template <typename P, typename Q> using equal = is_same<P, Q>;
        template <typename A, typename B> struct compared { enum { v = equal<A, B>::value }; };
        """,
        {
            "any<device float*> x{o}; inner::any<threadgroup float*> y{tg};; x.g() + 10 * y.g() + 100 * inner::of(x)": 121,
            "deep<threadgroup float*> x{{tg}}; const inner::any<thread float*> y[2] = {{own}, {own}};; x.g() + f(y[1].p)": 24,
            "in_template(o) + 10 * in_template(tg)": 21,
            "member<threadgroup float*> x{{tg}};; x.g()": 2,
            "three<device float*> x{o}; three<threadgroup float*> y{tg};; x.g() + 10 * y.g()": 63,
            "swapped<device float*, threadgroup float*> x{tg, o};; x.g()": 21,
            "with_device<threadgroup float*> x{tg, o};; x.g()": 21,
            "of_device x{o}; of_shared y{tg};; x.g() + 10 * y.g() + 100 * by_class(x) + 1000 * by_class(y)": 2121,
            "compared<device float*, threadgroup float*>::v + 10 * compared<device float*, device float*>::v": 10,
        },
    ),
    "objects of classes": (
        """
        template <typename P> struct s { P p; s<P> next() const { return s<P>{p + 1}; } };
        template <typename P, typename Q> struct two { P p; Q q; };
        template <typename P, int N> struct counted { P p; int of() { return N; } };
        template <typename X> struct around { X x; };
        template <typename P> int g(s<P> x) { P q = x.p; return f(q); }
        template <typename P> int of_reference(const thread s<P>& x) { return f(x.p); }
        template <typename P> int of_pointer(thread s<P>* x) { return f(x->p); }
        template <typename P> int anywhere(device s<P>& x) { return f(x.p); }
        template <typename P> int anywhere(const thread s<P>& x) { return 10 * f(x.p); }
        template <typename P, typename Q> int both(two<P, Q> x, P y) { return f(x.p) * 100 + f(x.q) * 10 + f(y); }
        template <typename P, int N> int times(counted<P, N> x) { return f(x.p) * N; }
        template <typename P> int inside(around<s<P>> x) { return f(x.x.p); }
        template <typename P> int again(s<P> x, int n) { return n == 0 ? 0 : f(x.p) + 10 * again(x, n - 1); }
        template <typename P, typename Q> int swapped(two<P, Q> x, int n) {
          return n == 0 ? 0 : f(x.p) + 10 * swapped(two<Q, P>{x.q, x.p}, n - 1);
        }
        template <typename P> int beside(s<P> x, P y) { return f(x.p) + 10 * f(y); }
        int beside(float x, float y) { return 9; }
        template <typename P> s<P> make(P p) { return s<P>{p}; }
        template <typename P> int made(P p) { return g(make(p)) + 10 * g(s<P>{p}) + 100 * g(make(p).next()); }
        struct owner { template <typename P> int h(s<P> x) const { return f(x.p); } };
        """,
        {
            "s<device float*> x{o}; s<threadgroup float*> y{tg};; g(x) + 10 * g(y) + 100 * of_reference(y)": 221,
            "s<device float*> x{o}; s<threadgroup float*> y{tg};; of_pointer(&x) + 10 * of_pointer(&y)": 21,
            "s<device float*> x{o}; s<threadgroup float*> y{tg};; g<device float*>(x) + 10 * owner().h(y)": 21,
            "device s<device float*>& x = *(device s<device float*>*)o; x.p = o;; anywhere(x)": 1,
            "s<threadgroup float*> x[2] = {{tg}, {tg}}; auto y = x[1];; anywhere(x[1]) + anywhere(y)": 40,
            "two<device float*, threadgroup float*> x{o, tg}; two<int, thread float*> y{4, own};; both(x, o) + 1000 * both(y, 4)": 545121,
            "counted<device float*, 2> x{o}; counted<threadgroup float*, 3> y{tg}; counted<int, 4> z{1};; times(x) + 10 * times(y) + 100 * times(z)": 2062,
            "around<s<device float*>> x{{o}}; around<s<threadgroup float*>> y{{tg}};; inside(x) + 10 * inside(y)": 21,
            "s<device float*> x{o}; s<threadgroup float*> y{tg};; again(x, 2) + 100 * again(y, 2)": 2211,
            "two<device float*, threadgroup float*> x{o, tg};; swapped(x, 3)": 121,
            "s<device float*> x{o}; s<threadgroup float*> y{tg};; beside(x, o) + 100 * beside(y, tg) + 10000 * beside(1.0f, 2.0f)": 92211,
            "g(make(o)) + 10 * g(make(sp)) + 1000 * made(o)": 111021,
            "auto x = make(o); auto y = make(sp);; g(x) + 10 * g(y)": 21,
        },
    ),
    "specialisations of classes": (
        """
        template <typename P, int N> struct s { P p; int g() { return f(p); } };
        template <typename P> struct s<P, 0> { P p; int g() { return 10 * f(p); } };
        template <typename P> struct of_device { P p; int g() { return f(p); } };
        template <typename T> struct of_device<device T*> { device T* p; int g() { return 10 * f(p); } };
        template <typename P> struct of_floats { P p; int g() { return f(p); } };
        template <> struct of_floats<device float*> { device float* p; int g() { return 7; } };
        template <> struct of_floats<int> { int p; int g() { return 8; } };
        template <typename P> struct of_const { P p; int g() { return f(p); } };
        template <typename T> struct of_const<const device T*> { int n; int g() { return 7; } };
        template <typename P> struct uses { using type = P; P p; int g() { return 3; } };
        template <> struct uses<device float*> { using type = int; int p; int g() { return 1; } };
        template <> struct uses<threadgroup float*> { using type = uint; uint p; int g() { return 2; } };
        template <typename P, typename Q, int N> struct swapped {
          static int g(P p, Q q) { return f(p) + 10 * swapped<Q, P, N - 1>::g(q, p); }
        };
        template <typename P, typename Q> struct swapped<P, Q, 0> { static int g(P, Q) { return 0; } };
        template <typename P, int N> struct later { P p; int g(); static int of(P q); };
        template <typename P> struct later<P, 0> { P p; int g(); };
        template <typename Q, int M> int later<Q, M>::g() { return f(p) * M; }
        template <typename P, int N> int later<P, N>::of(P q) { return f(q); }
        template <typename R> int later<R, 0>::g() { R r = p; return 7 * f(r); }
        template <typename P> struct base { P p; base(P q) : p(q) {} int g() { return f(p); } };
        template <> struct base<int> { int p; base(int q) : p(q) {} int g() { return 9; } };
        template <typename P> struct derived : base<P> {
          derived(P q) : base<P>(q) {}
          int h() { return this->g() * 10; }
        };
        template <typename P, typename Q = device float*> struct by_default {
          P p; Q q; int g() { return f(p) * 10 + f(q); }
        };
        template <typename Q> struct by_default<int, Q> { int p; Q q; int g() { return 500 + f(q); } };
        template <typename P> struct compared { static int g() { return is_same_v<P, device float*>; } };
        template <> struct compared<int> { static int g() { return 5; } };
        template <typename P> int in_template(P p) { return s<P, 0>{p}.g() + s<P, 1>{p}.g(); }
        template <typename A, typename B, int N> struct equal { enum { v = 9 }; };
        template <typename B, typename A> struct equal<A, B, 1> { enum { v = is_same_v<A, B> }; };
        """,
        {
            "equal<device float*, threadgroup float*, 1>::v + 10 * equal<device float*, device float*, 1>::v": 10,
            "s<device float*, 1> x{o}; s<threadgroup float*, 1> y{tg};; x.g() + 10 * y.g()": 21,
            "s<device float*, 0> x{o}; s<threadgroup float*, 0> y{tg};; x.g() + 10 * y.g()": 210,
            "of_device<device float*> x{o}; of_device<threadgroup float*> y{tg};; x.g() + y.g()": 12,
            "of_device<thread float*> x{own}; of_device<int> y{5};; x.g() + 10 * y.g()": 54,
            "of_floats<device float*> x{o}; of_floats<threadgroup float*> y{tg};; x.g() + 10 * y.g()": 27,
            "of_floats<int> x{1}; of_floats<short> y{1};; x.g() + 10 * y.g()": 58,
            "of_const<device float*> x{o}; of_const<const device float*> y{3};; x.g() + 10 * y.g()": 71,
            "uses<device float*> x{}; uses<threadgroup float*> y{}; uses<thread float*> z{};; x.g() + 10 * y.g() + 100 * z.g()": 321,
            "uses<device float*>::type x = 3; uses<thread float*>::type y = own;; x + 10 * f(y)": 43,
            "swapped<device float*, threadgroup float*, 3>::g(o, tg)": 121,
            "later<device float*, 3> x{o}; later<threadgroup float*, 0> y{tg};; x.g() + 100 * y.g()": 1403,
            "later<threadgroup float*, 1>::of(tg)": 2,
            "derived<device float*> x(o); derived<int> y(4);; x.h() + y.h() * 10": 910,
            "by_default<threadgroup float*> x{tg, o}; by_default<int> y{1, o};; x.g() + 1000 * y.g()": 501021,
            "compared<device float*>::g() + 10 * compared<threadgroup float*>::g() + 100 * compared<int>::g()": 501,
            "in_template(o) + 100 * in_template(tg)": 2211,
        },
    ),
    "deduced arguments of classes": (
        """
        template <typename P> struct s { P p; s(P q) : p(q) {} int g() const { return f(p); } };
        template <typename P> struct of_const { P p; of_const(const P q) : p(q) {} int g() const { return f(p); } };
        template <typename P> struct of_reference {
          P p;
          of_reference(const thread P& q) : p(q) {}
          int g() { return f(p); }
        };
        template <typename P, typename Q> struct two {
          P p; Q q;
          two(P p, Q q) : p(p), q(q) {}
          int g() const { return f(p) * 10 + f(q); }
        };
        template <typename T> struct of_element { device T* p; of_element(device T* q) : p(q) {} };
        template <typename P> struct specialised { enum { v = 1 }; specialised(P p) {} };
        template <typename T> struct specialised<device T*> { enum { v = 2 }; specialised(device T* p) {} };
        template <typename T> struct specialised<threadgroup T*> {
          enum { v = 3 };
          specialised(threadgroup T* p) {}
        };
        template <typename P> struct compared { P p; compared(P q) : p(q) {} };
        template <typename Q> int in_template(Q q) { s x(q); return x.g() + s(q + 1).g(); }
        template <typename T> int of_device(device T* q) { return s(q).g(); }
        template <typename P> s<P> make(P p) { return s(p); }
        template <typename P> auto made(P p) { return s{p}; }
        """,
        {
            "s x(o); s y(tg); s z{own}; s w = s(&c);; x.g() * 1000 + y.g() * 100 + z.g() * 10 + w.g()": 1243,
            "s(o).g() * 10 + s{tg}.g() + 100 * s(5).g()": 512,
            "s x(o); s y(x); s z = x; s w{s<threadgroup float*>(tg)};; y.g() * 100 + z.g() * 10 + w.g()": 112,
            "of_const x(o); of_const y(cd); of_const z(tg + 1);; x.g() * 100 + y.g() * 10 + z.g()": 112,
            "of_reference x(d); of_reference y(sp);; x.g() * 10 + y.g()": 12,
            "two x(o, tg); two y(tg, own);; x.g() * 100 + y.g() + 10000 * two(o, 4).g()": 151224,
            "of_element x(o);; f(x.p)": 1,
            "specialised x(o); specialised y(tg); specialised z(own); specialised w(4);; x.v * 1000 + y.v * 100 + z.v * 10 + w.v": 2311,
            "compared x(o); compared y(tg);; is_same_v<decltype(x), compared<device float*>> + 10 * is_same_v<decltype(x), decltype(y)>": 1,
            "in_template(o) * 10 + in_template(tg) + 100 * of_device(o)": 124,
            "make(o).g() * 10 + make(tg).g() + 100 * made(o).g() + 1000 * made(tg).g()": 2112,
        },
    ),
    "call operators": (
        """
        struct s {
          int n;
          int operator()(const device float* p) const { return n + 1; }
          int operator()(const threadgroup float* p) const { return n + 2; }
        };
        struct converted {
          int operator()(const device float* p, uint) { return 1; }
          int operator()(const threadgroup float* p, ushort) { return 2; }
        };
        struct outside {
          int operator()(const device float* p) const;
          int operator()(const threadgroup float* p) const;
        };
        int outside::operator()(const device float* p) const { return 1; }
        int outside::operator()(const threadgroup float* p) const { return 2; }
        struct of_object {
          float v;
          int operator()(int x) const device { return 1; }
          int operator()(int x) const threadgroup { return 2; }
          int operator()(int x) const thread { return 3; }
        };
        struct anything { template <typename P> int operator()(P p) const { return f(p); } };
        struct any_two { template <typename P, typename Q> int operator()(P p, Q q) const { return f(p) * 10 + f(q); } };
        struct any_pack { template <typename... P> int operator()(P... p) const { return (0 + ... + f(p)); } };
        struct pointee {
          template <typename T> int operator()(device T* p) const { return 1; }
          template <typename T> int operator()(threadgroup T* p) const { return 2; }
          int operator()(float x) const { return 6; }
          int operator()() const { return 7; }
        };
        struct one_space { int operator()(const device float* p) const { return 8; } };
        struct moved {
          device float* operator()(device float* p) const { return p + 1; }
          threadgroup float* operator()(threadgroup float* p) const { return p + 1; }
        };
        struct owning {
          int operator()(const device float* p) const { return (*this)(p, 1); }
          int operator()(const threadgroup float* p) const { return (*this)(p, 2); }
          int operator()(const device float* p, int n) const { return n * 10 + 1; }
          int operator()(const threadgroup float* p, int n) const { return n * 10 + 2; }
        };
        struct base { int operator()(const device float* p) const { return 1; } int operator()(const threadgroup float* p) const { return 2; } };
        struct derived : base { int g(threadgroup float* p) const { return (*this)(p); } };
        struct member { s x; int g(device float* p, threadgroup float* q) const { return x(p) * 10 + x(q); } };
        template <typename T> struct of_class {
          int operator()(const device T* p) const { return 1; }
          int operator()(const threadgroup T* p) const { return 2; }
        };
        template <typename F, typename P> int apply(F g, P p) { return g(p); }
        template <typename F, typename P> int twice(const thread F& g, P p) { return g(p) + 10 * g(p + 1); }
        template <typename F> int both(F g, device float* p, threadgroup float* q) { return g(p) * 10 + g(q); }
        template <typename F> struct holder { F g; template <typename P> int call(P p) { return g(p); } };
        int plain(const device float* p) { return 9; }
        """,
        {
            "s x{10};; x(o) + 100 * x(tg) + 10000 * (x)(sp)": 121211,
            "(s{20})(tg) + 100 * s{30}(o)": 3122,
            "converted x;; x(o, ushort(1)) + 10 * x(tg, 1u)": 21,
            "outside x;; x(o) + 10 * x(tg)": 21,
            "device of_object& x = *(device of_object*)o; threadgroup of_object& y = *(threadgroup of_object*)tg; of_object z;; x(0) + 10 * y(0) + 100 * z(0)": 321,
            "anything x;; x(o) + 10 * x(tg) + 100 * x(own) + 1000 * x(7) + 10000 * x(&c)": 35421,
            "any_two x;; x(o, tg) + 100 * x(tg, 4)": 2512,
            "any_pack x;; x(o, tg, own) + 100 * x() + 1000 * x(4)": 5007,
            "pointee x;; x(o) + 10 * x(tg) + 100 * x(1.0f) + 1000 * x() + 10000 * x(oi)": 17621,
            "one_space x;; x(o)": 8,
            "moved x;; f(x(o)) + 10 * f(x(tg))": 21,
            "owning x;; x(o) + 100 * x(tg) + 10000 * x(tg, 3)": 322211,
            "derived x;; x.g(tg) + 10 * x(o)": 12,
            "member x{{1}};; x.g(o, tg)": 23,
            "of_class<float> x;; x(o) + 10 * x(tg)": 21,
            "s x{0};; x.operator()(tg) + 10 * x.operator()(o)": 12,
            "apply(s{0}, o) + 10 * apply(s{0}, tg) + 100 * apply(anything(), &c)": 321,
            "twice(s{0}, o) + 100 * twice(anything(), sp)": 2211,
            "both(s{0}, o, tg) + 100 * both(anything(), o, tg) + 10000 * both(pointee(), o, tg)": 121212,
            "apply(one_space(), o) + 10 * apply(plain, o)": 98,
            "auto g = [](const device float* p) { return 5; };; apply(g, o) + 10 * g(o)": 55,
            "holder<s> h{{0}}; holder<one_space> i;; h.call(o) + 10 * h.call(tg) + 100 * i.call(o)": 821,
        },
    ),
    "generic lambdas": (
        """
        template <typename F, typename P> int apply(F g, P p) { return g(p); }
        template <typename F> int both(F g, device float* p, threadgroup float* q) { return g(p) * 10 + g(q); }
        template <typename F> int of_number(F g) { return g(4); }
        template <typename P> int in_template(P p) {
          auto g = [&](auto q) { return f(p) * 10 + f(q); };
          return g(p + 1);
        }
        struct s {
          int operator()(const device float* p) const { return 1; }
          int operator()(const threadgroup float* p) const { return 2; }
        };
        """,
        {
            "auto g = [](auto p) { return f(p + 1); };; g(o) + 10 * g(tg) + 100 * g(own)": 421,
            "auto g = [&](auto p, auto q) { return f(p) * 10 + f(q); };; g(o, tg) + 100 * g(tg, 4)": 2512,
            "int n = 3; auto g = [n](auto p, int k) { return f(p) * n + k; };; g(o, 1) + 100 * g(tg, 2)": 804,
            "int n = 0; auto g = [&](auto p) { n += f(p); }; g(o); g(tg); g(o);; n": 4,
            "int n = 0; auto g = [&n](auto p) -> void { n = n * 10 + f(p); }; g(tg); g(o);; n": 21,
            "auto g = [](auto p) { return is_same_v<decltype(p), device float*>; };; g(o) + 10 * g(tg) + 100 * g(1)": 1,
            "auto g = [](auto p) { return p + 1; };; f(g(o)) + 10 * f(g(tg))": 21,
            "auto g = [](auto p) { decltype(p) q = p; auto r = q + 1; return f(r); };; g(o) + 10 * g(tg)": 21,
            "auto g = [](const thread auto& p) { return f(p); };; g(d) + 10 * g(sp)": 21,
            "auto g = [](const auto p, device float* q) { return f(p) * 10 + f(q); };; g(sp, o)": 21,
            "auto g = [&](auto p) { auto h = [&](auto q) { return f(p) * 10 + f(q); }; return h(sp); };; g(o) + 100 * g(own)": 4212,
            "[](auto p) { return f(p); }(sp) + 10 * [](auto p) { return f(p); }(o)": 12,
            "apply([](auto p) { return f(p); }, o) + 10 * apply([](auto p) { return 2 * f(p); }, tg)": 41,
            "both([](auto p) { return f(p); }, o, tg)": 12,
            "auto g = [](auto p) { return f(p); };; both(g, o, tg) + 100 * g(own) + 1000 * apply(g, &c) + 10000 * of_number(g)": 53412,
            "both(s(), o, tg) + 100 * both([](auto p) { return f(p); }, o, tg)": 1212,
            "in_template(o) + 100 * in_template(tg)": 2211,
        },
    ),
    "packs of classes": (
        """
        template <typename... T> struct tuple;
        template <> struct tuple<> { int sum() const { return 0; } };
        template <typename H, typename... T> struct tuple<H, T...> {
          H h;
          tuple<T...> rest;
          int sum() const { return f(h) + 10 * rest.sum(); }
        };
        template <typename... T> struct functions { static int of(T... x) { return (0 + ... + f(x)); } };
        template <typename T> struct reader { T p; int g() const { return f(p); } };
        template <typename... T> struct readers : reader<T>... { int sum() const { return (reader<T>::g() + ...); } };
        template <typename... P> int make(P... p) { return functions<P...>::of(p...); }
        template <typename... P> struct all_device { enum { v = (is_same_v<P, device float*> && ...) }; };
        template <typename R, typename... P> struct counted {
          static int of(R r, P... p) { return f(r) * 100 + sizeof...(P) * 10 + (f(p) + ... + 0); }
        };
        template <typename T, typename... P> struct same { enum { v = (is_same_v<T, P> || ...) }; };
        template <typename A, typename... T> struct listed { enum { v = 0 }; };
        template <typename A, typename... T> struct listed<device A*, T...> { enum { v = 1 }; };
        """,
        {
            "tuple<device float*, threadgroup float*, int> x{o, {tg, {4, {}}}};; x.sum()": 521,
            "tuple<threadgroup float*> x{tg, {}}; tuple<int> y{1, {}};; x.sum() * 10 + y.sum()": 25,
            "functions<device float*, threadgroup float*>::of(o, tg) + 100 * functions<int, int>::of(1, 2)": 1003,
            "make(o, tg, own) + 100 * make(1, 2)": 1007,
            "readers<device float*, threadgroup float*> x{{o}, {tg}};; x.sum()": 3,
            "all_device<device float*, device float*>::v + 10 * all_device<device float*, threadgroup float*>::v + 100 * all_device<>::v": 101,
            "counted<device float*, threadgroup float*, int>::of(o, tg, 4) + 1000 * counted<threadgroup float*>::of(tg)": 200127,
            "same<device float*, threadgroup float*>::v + 10 * same<float, float>::v + 100 * same<device float*, int, device float*>::v": 110,
            "listed<device float*, int>::v + 10 * listed<threadgroup float*, device float*>::v": 1,
        },
    ),
}


def source_of(name):
    """Returns the program of a case, which writes its values to the first buffer."""
    declarations, uses = CASES[name]
    lines = []
    for number, use in enumerate(uses):
        statements, _, expression = use.rpartition(";; ")
        lines.append(f"{{ {statements}; r[{number}] = {expression}; }}")
    return f"{HEAD}{declarations}{KERNEL}{' '.join(lines)}\n}}\n"
