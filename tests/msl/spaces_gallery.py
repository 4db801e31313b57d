"""Programs whose meaning depends on address spaces, each with the value that it must give.

A case is its declarations and its expressions: (name, declarations, [(statements, expression, value), ...]). Each stands
in a namespace of its own, and all of them in one source: in the kernel there are `device float* o`, `constant float& c`,
`threadgroup float tg[8]`, `float own[8]` and `device struct item* items`.
"""

HEAD = """
#include <metal_stdlib>
using namespace metal;
struct item { float a; float b[4]; float2 v; };
constant float table[4] = {1, 2, 3, 4};
"""

_FOUR = """
template <int> struct unused {};
int f(const device float* p) { return 1; }
int f(const threadgroup float* p) { return 2; }
int f(const constant float* p) { return 3; }
int f(const thread float* p) { return 4; }
"""

CASES = [
    (
        "arguments",
        _FOUR,
        [
            ("", "f(o)", 1),
            ("", "f(tg)", 2),
            ("", "f(&c)", 3),
            ("", "f(table)", 3),
            ("", "f(own)", 4),
            ("", "f(&own[2])", 4),
            ("", "f(&(tg[1]))", 2),
            ("", "f(o + 2)", 1),
            ("", "f(2 + tg)", 2),
            ("", "f(tg + (own - own))", 2),
            ("", "f((const device float*)o)", 1),
            ("", "f(reinterpret_cast<const threadgroup float*>(tg))", 2),
            ("", "f(c > 0 ? own : own + 1)", 4),
            ("", "f((o, tg))", 2),
            ("", "::arguments::f(tg)", 2),
            ("", "f(items[0].b)", 1),
            ("", "f(&items->a)", 1),
            ("", "f(&(*items).b[1])", 1),
            ("item local;", "f(local.b)", 4),
            ("thread item& r = *(thread item*)own;", "f(r.b)", 4),
            ("auto q = tg + 1;", "f(q)", 2),
            ("auto* q = o;", "f(q + 1)", 1),
            ("const device auto& q = o[0];", "f(&q)", 1),
            ("device float* q[2] = {o, o};", "f(q[1])", 1),
            ("const threadgroup float* q; q = tg;", "f(q++)", 2),
            ("threadgroup float* thread* q; threadgroup float* t = tg; q = &t;", "f(*q)", 2),
            ("auto g = [&](const threadgroup float* x) { return f(x); };", "g(tg)", 2),
            ("auto g = [=]() { return f(own); };", "g()", 4),
        ],
    ),
    (
        "results",
        _FOUR
        + """
        device float* at(device float* p, int n) { return p + n; }
        threadgroup float* at(threadgroup float* p, int n) { return p + n; }
        auto later(threadgroup float* p) { return p + 1; }
        struct holder {
          device float* p;
          threadgroup float* q;
          float own[2];
          int of_p() const { return f(p); }
          int of_q() const { return f(this->q); }
          int of_own() const thread { return f(own); }
          device float* get() const { return p; }
        };
        struct derived : holder { int both() const { return 10 * f(p) + f(q); } };
        template <typename T> struct memory {
          static device T* moved(device T* p, uint n) { return p + n; }
          static threadgroup T* moved(threadgroup T* p, ushort n) { return p - n; }
        };
        template <typename T> int in_template(const device T* a, const threadgroup T* b) {
          return 10 * f(a) + f(b + 1);
        }
        using shared_floats = const threadgroup float*;
        int of_alias(shared_floats x) { return f(x); }
        int by_default(const device float* p, int n = 5);
        int by_default(const device float* p, int n) { return f(p) + n; }
        """,
        [
            ("", "f(at(o, 1))", 1),
            ("", "f(at(tg, 1))", 2),
            ("", "f(later(tg))", 2),
            ("holder h; h.p = o; h.q = tg;", "h.of_p() * 100 + h.of_q() * 10 + h.of_own()", 124),
            ("holder h; h.p = o;", "f(h.get())", 1),
            ("derived h; h.p = o; h.q = tg;", "h.both()", 12),
            ("auto m = memory<float>::moved(tg, 1u);", "f(m)", 2),
            ("auto m = memory<float>::moved(o, ushort(1));", "f(m)", 1),
            ("", "in_template(o, tg)", 12),
            ("", "of_alias(tg)", 2),
            ("", "by_default(o)", 6),
        ],
    ),
    (
        "conversions",
        """
        template <typename T> int load(const device T* p, uint n) { return 1; }
        template <typename T> int load(const threadgroup T* p, ushort n) { return 2; }
        int copy(threadgroup float* to, const device float* from, int n) { return 3; }
        int copy(device float* to, const threadgroup float* from, long n) { return 4; }
        int any(const device void* p) { return 5; }
        int any(const threadgroup float* p) { return 6; }
        template <typename P> int general(P p) { return 7; }
        template <typename T> int general(device T* p) { return 8; }
        """,
        [
            ("", "load(o, 1u)", 1),
            ("", "load(o, ushort(1))", 1),
            ("", "load(o, 1)", 1),
            ("", "load(tg, 1u)", 2),
            ("", "load<float>(tg, 1u)", 2),
            ("", "copy(tg, o, 1l)", 3),
            ("", "copy(o, tg, 1)", 4),
            ("", "any(o)", 5),
            ("", "any(tg)", 6),
            ("", "general(tg)", 7),
            ("", "general(o)", 8),
            ("", "general(1.0f)", 7),
        ],
    ),
    (
        "references",
        """
        int r(const device float& x) { return 1; }
        int r(const threadgroup float& x) { return 2; }
        int r(const thread float& x) { return 3; }
        int r(const constant float& x) { return 4; }
        int of_array(thread float (&x)[8]) { return 5; }
        int of_array(threadgroup float (&x)[8]) { return 6; }
        int of_pointer(device float* thread& p) { return 7; }
        int of_pointer(threadgroup float* thread& p) { return 8; }
        int levels(device float* thread* p) { return 9; }
        int levels(threadgroup float* thread* p) { return 10; }
        int of_temporary(thread int2& x) { return 15; }
        template <typename T> int of_temporary(T x) { return 16; }
        template <typename T> struct of_values {
          static int taken(const device T& x) { return 11; }
          static int taken(const thread T& x) { return 12; }
        };
        template <typename T> struct of_number;
        template <> struct of_number<float> {
          static int read(const device float* x) { return 13; }
          static int read(const thread float* x) { return 13; }
        };
        template <> struct of_number<half> {
          static int read(const device float* x) { return 14; }
          static int read(const thread float* x) { return 14; }
        };
        template <typename T, typename P> int of_any(P p) { return of_number<T>::read(p); }
        struct made { using type = float2; };
        template <typename M> int of_object() {
          using T = typename M::type;
          return of_values<T>::taken(T(1, 2)) + 10 * of_values<T>::taken(T{1, 2});
        }
        """,
        [
            ("", "r(o[0])", 1),
            ("", "r(tg[0])", 2),
            ("", "r(own[0])", 3),
            ("", "r(c)", 4),
            ("", "r(items[0].a)", 1),
            ("", "r(*tg)", 2),
            ("", "of_temporary(int2(1, 2))", 16),
            ("int2 q;", "of_temporary(q)", 15),
            ("", "of_array(own)", 5),
            ("", "of_array(tg)", 6),
            ("device float* q = o;", "of_pointer(q)", 7),
            ("threadgroup float* q = tg;", "of_pointer(q)", 8),
            ("device float* q = o;", "levels(&q)", 9),
            ("threadgroup float* q[2] = {tg, tg};", "levels(q)", 10),
            ("", "of_object<made>()", 132),
            ("", "of_any<float>(own) * 100 + of_any<half>(o)", 1314),
        ],
    ),
    (
        "members",
        """
        struct s {
          float a;
          int get() const device { return 1; }
          int get() const threadgroup { return 2; }
          int get() const thread { return 3; }
          int get() const constant { return 4; }
          int through() const device { return get(); }
          int through() const thread { return this->get(); }
          template <typename U> int load(const device U* p, uint n) { return 5; }
          template <typename U> int load(const threadgroup U* p, ushort n) { return 6; }
          static int of(const device float* p) { return 7; }
          static int of(const threadgroup float* p) { return 8; }
          int later(const device float* p);
          int later(const threadgroup float* p);
        };
        int s::later(const device float* p) { return 9; }
        int s::later(const threadgroup float* p) { return 10; }
        """,
        [
            ("device s& x = *(device s*)o;", "x.get()", 1),
            ("threadgroup s* x = (threadgroup s*)tg;", "x->get()", 2),
            ("threadgroup s* x = (threadgroup s*)tg;", "x[1].get()", 2),
            ("s x;", "x.get()", 3),
            ("constant s* x = (constant s*)&c;", "(*x).get()", 4),
            ("device s* x = (device s*)o;", "x->through()", 1),
            ("s x;", "x.through()", 3),
            ("s x;", "x.load(o, ushort(1))", 5),
            ("s x;", "x.load(tg, 1u)", 6),
            ("s x;", "x.load<float>(tg, 1u)", 6),
            ("", "s::of(o) * 10 + s::of(tg)", 78),
            ("s x;", "x.later(o) + x.later(tg)", 19),
        ],
    ),
    (
        "operators_in_every_space",
        """
        struct part { int v; part(int v) : v(v) {} };
        struct whole {
          int v, w;
          whole(int v, int w) : v(v), w(w) {}
          int operator*(whole r) const device { return whole(*this) * r; }
          int operator*(part r) const device { return whole(*this) * r; }
          int operator-() const device { return -whole(*this); }
          int sum(int n) const device { return whole{*this}.sum(n); }
          int operator*(part r) const { return v * r.v; }
          int operator*(whole r) const { return v * r.v + w * r.w; }
          int operator-() const { return -v - w; }
          int sum(int n) const { return v + w + n; }
          int operator*(part r) const threadgroup { return whole(*this) * r; }
          int operator*(whole r) const threadgroup { return whole(*this) * r; }
        };
        """,
        [
            ("whole a(2, 3);", "a * a", 13),
            ("device whole& a = *(device whole*)o; a = whole(2, 5);", "a * whole(1, 1)", 7),
            ("device whole& a = *(device whole*)o; a = whole(2, 5);", "a * part(4)", 8),
            ("device whole& a = *(device whole*)o; a = whole(2, 5);", "a.sum(1) - -a", 15),
            ("threadgroup whole& a = *(threadgroup whole*)tg; a = whole(3, 1);", "a * part(4)", 12),
        ],
    ),
    (
        "members_of_every_space",
        """
        template <typename T> struct cell {
          T v[2];
          cell() thread = default;
          cell() device = default;
          cell() constant = default;
          cell(const thread vec<T, 2>& x) thread { v[0] = x.x; v[1] = x.y; }
          cell(const device vec<T, 2>& x) thread { v[0] = x.x; v[1] = x.y; }
          cell(const threadgroup vec<T, 2>& x) thread { v[0] = x.x; v[1] = x.y; }
          cell(const thread cell& x) thread = default;
          cell(const device cell& x) thread = default;
          cell(const threadgroup cell& x) thread = default;
          cell(const thread vec<T, 2>& x) device { v[0] = x.x; v[1] = x.y; }
          cell(const device vec<T, 2>& x) device { v[0] = x.x; v[1] = x.y; }
          cell(const threadgroup vec<T, 2>& x) device { v[0] = x.x; v[1] = x.y; }
          cell(const thread cell& x) device = default;
          cell(const device cell& x) device = default;
          cell(const threadgroup cell& x) device = default;
          T operator[](int i) const thread { return v[i]; }
          thread T& operator[](int i) thread { return v[i]; }
          T operator[](int i) const device { return v[i]; }
          device T& operator[](int i) device { return v[i]; }
          T operator[](int i) const constant { return v[i]; }
        };
        """,
        [
            ("float2 w(1, 2); cell<float> a(w); a[0] = 5;", "a[0] * 10 + a[1]", 52),
            (
                "cell<float> a(items->v); device cell<float>& d = *(device cell<float>*)o; d[1] = 3;",
                "d[1]",
                3,
            ),
            ("constant cell<float>& a = *(constant cell<float>*)table;", "a[1]", 2),
        ],
    ),
    (
        "numbers_and_objects",
        """
        struct coordinate {
          int a, b;
          coordinate(int b) : a(0), b(b) {}
          coordinate(thread const coordinate& c) : a(c.a), b(c.b + 1) {}
          coordinate(thread const int2& c) : a(c.x), b(c.y) {}
          operator int2() const { return int2(a, b); }
        };
        """,
        [
            ("coordinate x(3);", "x.a * 10 + x.b", 3),
            ("coordinate x(short(3));", "x.a * 10 + x.b", 3),
            ("int2 w(1, 2); coordinate x(w); coordinate d(x);", "d.a * 10 + d.b", 13),
        ],
    ),
    (
        "same_words",
        _FOUR
        + """
        int twice(const device float* p) { return 2 * f(p); }
        int twice(const threadgroup float* q) { return 2 * f(q); }
        int again(const device float* p) { return twice(p) + 1; }
        int again(const threadgroup float* p) { return twice(p) + 1; }
        """,
        [("", "twice(o)", 2), ("", "twice(tg)", 4), ("", "again(o)", 3), ("", "again(tg)", 5)],
    ),
    (
        "specialisations",
        """
        template <typename T> struct space { enum { value = 0 }; };
        template <typename T> struct space<device T*> { enum { value = 1 }; };
        template <typename T> struct space<const threadgroup T*> { enum { value = 2, size = sizeof(T) }; };
        template <> struct space<thread float&> { enum { value = 3 }; };
        template <typename T, typename U> struct pair_of { enum { value = 0 }; };
        template <typename T, typename U> struct pair_of<device T*, threadgroup U*> { enum { value = 1 }; };
        template <typename T, typename U> struct pair_of<threadgroup T*, device U*> { enum { value = 2 }; };
        template <typename T, typename U> struct equal { enum { value = 0 }; };
        template <typename T> struct equal<T, T> { enum { value = 1 }; };
        template <typename T> constant constexpr int number = 0;
        template <typename T> constant constexpr int number<device T*> = 1;
        using floats = device float*;
        template <typename T> int points() {
          return (metal::is_same<T, device float*>::value || metal::is_same<T, threadgroup float*>::value) ||
                 metal::is_same<T, thread float*>::value;
        }
        template <typename P> int given(P p) { return points<P>(); }
        """,
        [
            ("", "space<device float*>::value", 1),
            ("", "space<threadgroup float*>::value", 0),
            ("", "space<const threadgroup short*>::value", 2),
            ("", "space<const threadgroup short*>::size", 2),
            ("", "space<thread float&>::value", 3),
            ("", "space<device float&>::value", 0),
            ("", "space<floats>::value", 1),
            ("", "space<decltype(o)>::value", 1),
            ("", "space<float>::value", 0),
            ("", "pair_of<threadgroup float*, device half*>::value", 2),
            ("", "pair_of<device float*, threadgroup half*>::value", 1),
            ("", "pair_of<device float*, device half*>::value", 0),
            ("", "equal<device float*, threadgroup float*>::value", 0),
            ("", "equal<device float*, device float*>::value", 1),
            ("", "is_same_v<device float*, threadgroup float*>", 0),
            ("", "is_same_v<device float*, floats>", 1),
            ("", "is_same<decltype(o), device float*>::value", 1),
            ("", "is_same_v<device float* thread*, threadgroup float* thread*>", 0),
            ("", "number<device float*>", 1),
            ("", "number<thread float*>", 0),
            ("", "given(o) * 100 + given(tg) * 10 + given(own)", 111),
            ("", "given(&c) * 10 + given(1.0f)", 0),
        ],
    ),
    (
        "using_declarations",
        """
        namespace inner {
        int u(const device float* p) { return 1; }
        int u(const threadgroup float* p) { return 2; }
        int u(float x) { return 3; }
        }
        using inner::u;
        namespace other {
        template <typename T, typename U> int u(thread T* p, U x) { return 4; }
        template <typename T> int u(const device T* p, float x) { return 5; }
        }
        template <typename F> int apply(F f, thread float* p) { return f(p, 1); }
        """,
        [
            ("", "u(o)", 1),
            ("", "u(tg)", 2),
            ("", "u(0.5f)", 3),
            ("", "apply(other::u<float, float>, own)", 4),
        ],
    ),
    (
        "member_templates",
        """
        struct op_of_references {
          template <typename T> static int op(device const T& a) { return 1; }
          template <typename T> static int op(threadgroup const T& a) { return 2; }
          template <typename T> static int op(thread const T& a) { return 4; }
        };
        struct op_of_objects {
          int first;
          template <typename T> int f(const device T* p) const { return first + 1; }
          template <typename T> int f(const threadgroup T* p) const { return first + 2; }
          template <typename T, int N> int g(const device T* p) const { return N; }
          template <typename T, int N> int g(const threadgroup T* p) const { return N + 1; }
          template <typename T> int mine(device T* p, threadgroup T* q) const {
            return 10 * this->template f<T>(p) + this->f(q);
          }
        };
        template <typename T> struct op_derived : op_of_objects {
          int both(device T* p, threadgroup T* q) const {
            return 10 * this->template f<T>(p) + this->op_of_objects::template f<T>(q);
          }
        };
        template <typename op, typename T> int of_values(threadgroup T* p, T own) {
          return 10 * op::template op<T>(p[1]) + op::template op<T>(own);
        }
        template <typename op, typename T> int deduced(device T* p, T own) {
          return 10 * op::op(*p) + op::op(own);
        }
        template <typename f, typename T> int of_object(thread f& x, thread f* y, threadgroup T* q) {
          return 100 * x.template f<T>(q) + 10 * y->template f<T>(q) + x.template g<T, 3>(q);
        }
        template <typename X, typename T> int of_variable(device T* p, X op) {
          return 10 * op.template f<T>(p) + op.f(p);
        }
        """,
        [
            ("", "of_values<op_of_references>(tg, 1.0f)", 24),
            ("", "deduced<op_of_references>(o, 1.0f)", 14),
            ("op_of_objects x{1};", "of_object(x, &x, tg)", 334),
            ("op_of_objects x{1};", "of_variable(o, x)", 22),
            ("op_of_objects x{1};", "x.mine(o, tg)", 23),
            ("op_derived<float> x; x.first = 1;", "x.both(o, tg)", 23),
        ],
    ),
    (
        "members_of_several_classes",
        """
        int f(device const float* p) { return 1; }
        int f(thread const float* p) { return 2; }
        struct op_nothing {
          template <typename T, typename... R> static int op(R... r) { return 5; }
        };
        template <> int op_nothing::op<half>(float x) { return 6; }
        struct op_value {
          template <typename T> static int op(T x) {
            float own[1];
            return f(own) + 7;  // 9
          }
        };
        struct op_reference {
          template <typename T> static int op(device const T& a) { return 1; }
          template <typename T> static int op(threadgroup const T& a) { return 2; }
          template <typename T> static int op(thread const T& a) { return 4; }
        };
        struct op_pair {
          template <typename T> static int op(thread const T& a, threadgroup const T& b) { return 3; }
          template <typename T> static int op(thread const T& a, thread const T& b) { return 8; }
        };
        template <typename op> int of_own(thread float* p) { return op::template op<float>(p[0] + 1); }
        template <typename op> int of_device(device float* p) { return op::template op<float>(p[0]); }
        template <typename op> int of_half(float x) { return op::template op<half>(x + 1); }
        template <typename op> int of_two(thread float* p, threadgroup float* q) {
          return op::template op<float>(*p, *q);
        }
        """,
        [
            ("", "of_own<op_nothing>(own)", 5),
            ("", "of_own<op_value>(own)", 9),
            ("", "of_own<op_reference>(own)", 4),
            ("", "of_device<op_nothing>(o)", 5),
            ("", "of_device<op_value>(o)", 9),
            ("", "of_device<op_reference>(o)", 1),
            ("", "of_half<op_nothing>(1)", 6),
            ("", "of_two<op_nothing>(own, tg)", 5),
            ("", "of_two<op_pair>(own, tg)", 3),
        ],
    ),
    (
        "what_spaces_leave",
        """
        template <typename T> struct row { T a[2]; };
        namespace inner {
        template <typename A, typename B>
        enable_if_t<!is_arithmetic_v<A>, int> most(thread A& to, thread const A& from, thread const B& x) {
          return 1;
        }
        template <typename A>
        enable_if_t<is_arithmetic_v<A>, int> most(thread A& to, thread const row<A>& from, const ushort x) {
          return 2;
        }
        template <typename A>
        int most(threadgroup A& to, threadgroup const row<A>& from, const ushort x) { return 3; }
        }
        using inner::most;
        template <typename T> int take(T x, device float* p) { return 5; }
        template <typename T> int take(thread T* x, device float* p) { return 6; }
        template <typename T> int take(T x, threadgroup float* p) { return 7; }
        template <> int take<half>(half x, device float* p) { return 8; }
        """,
        [
            ("float m = 0; row<float> x; uint lane = 1;", "most(m, x, lane)", 2),
            ("row<float> m, x; uint lane = 1;", "most(m, x, lane)", 1),
            ("row<float> m, x; uint lane = 1;", "inner::most(m, x, lane)", 1),
            ("threadgroup row<float>& x = *(threadgroup row<float>*)tg;", "most(tg[7], x, 2)", 3),
            ("", "take(1, o)", 5),
            ("", "take(own, o)", 6),
            ("", "take(half(1), o)", 8),
            ("", "take(1, tg)", 7),
        ],
    ),
    (
        "specialised_members",
        """
        int max(device const int* p) { return 1; }
        int max(threadgroup const int* p) { return 2; }
        struct most {  // of which no call depends on an address space
          template <typename T> static int op(device const T& a, T b) { return metal::max(a, b); }
          template <typename T> static int op(thread const T& a, T b) { return metal::max(a, b); }
        };
        template <> int most::op<half>(device const half& a, half b) { return 7; }
        template <> int most::op<half>(thread const half& a, half b) { return 7; }
        struct other {  // whose specialisations are not alike
          template <typename T> static int least(device const T& a, T b) { return 3; }
          template <typename T> static int least(thread const T& a, T b) { return 3; }
        };
        template <> int other::least<half>(device const half& a, half b) { return 5; }
        template <typename op, typename V> int of_unknown(V v) {
          return op::template op<float>(v.b[1], 4);
        }
        """,
        [
            ("item v; v.b[1] = 6;", "of_unknown<most>(v)", 6),
            ("half x = 2;", "most::op(x, x)", 7),
            ("half x = 2;", "other::least(x, x)", 3),
            ("half x = 2;", "other::least(*(device half*)o, x)", 5),
            ("", "other::least(o[1], o[1])", 3),
            ("", "max((device int*)o)", 1),
        ],
    ),
    (
        "packs_beside_functions_of_other_namespaces",
        """
        namespace one {
        int sum(const device float& x, int y) { return 100; }
        int sum(const thread float& x, int y) { return 200; }
        struct object { int n; object(int n_) : n(n_) {} };
        }
        int sum() { return 0; }
        template <typename T, typename... R> int sum(T x, R... rest) { return int(x) + sum(rest...); }
        """,
        [
            ("", "sum(1, 2, 3)", 6),
            ("", "sum(1.0f, 2)", 3),
            ("", "one::sum(o[0], 2)", 100),
            ("", "one::sum(own[0], 2)", 200),
            ("one::object n(4);", "n.n", 4),
        ],
    ),
]


def _source(cases):
    pieces, bodies, values = [HEAD], [], []
    for name, declarations, uses in cases:
        pieces.append(f"namespace {name} {{\n{declarations}\n")
        for number, (statements, expression, value) in enumerate(uses):
            pieces.append(
                f"void use_{number}(device float* o, constant float& c, threadgroup float (&tg)[8], "
                f"device item* items, device int& result) {{\n  float own[8] = {{0}};\n"
                f"  {statements}\n  result = {expression};\n}}\n"
            )
            bodies.append(f"  {name}::use_{number}(o, c, tg, items, results[{len(values)}]);")
            values.append((f"{name}: {statements} {expression}", value))
        pieces.append("}\n")
    pieces.append(
        "kernel void run(device int* results, device float* o, constant float& c, "
        "device item* items) {\n  threadgroup float tg[8];\n" + "\n".join(bodies) + "\n}\n"
    )
    return "".join(pieces), values


SOURCE, VALUES = _source(CASES)
