"""Thread values at program scope: `const uint here [[thread_position_in_grid]];`, used in functions of all kinds."""

import pytest
import torch
from metalops.msl.check import check_source

from .conftest import HEADER

SOURCE = """
    const uint here [[thread_position_in_grid]];
    namespace at { const uint lane [[thread_index_in_simdgroup]]; }
    const uint group [[threadgroup_position_in_grid]], size [[threads_per_threadgroup]];
    template <typename T> T get(device T* p) { return p[here]; }
    struct Reader {
      device float* p;
      float next(uint o = 1) const { return p[here + o - 1] + at::lane; }
    };
    uint twice(void) { return 2 * here; }
    uint twice(uint x) { return 2 * x; }
    float hidden(float here) { return here; }
    float sums(device float* p) {
      float x = get(p) + twice() + twice(1) + hidden(0.5) + Reader{p}.next();
      { float here = 3; x += here; }
      return x;
    }
    kernel void one(device float* out [[buffer(0)]]) { out[here] = sums(out) + group; }
    kernel void cut(device float* out) {
      threadgroup float kept[64];
      kept[here % size] = sums(out);
      threadgroup_barrier(mem_flags::mem_threadgroup);
      out[here] = kept[(here + 1) % size] + simd_sum(get(out));
    }
    template <typename T> kernel void of(device T* out, uint i [[thread_position_in_grid]]) {
      out[i] = get(out) + at::lane + here;
    }
    template [[host_name("of_float")]] kernel void of<float>(device float*, uint);
    template [[host_name("of_int")]] kernel decltype(of<int>) of<int>;
    kernel void none(device float* out) { out[0] = 7; }
"""
COUNT, GROUP = 96, 48


def before():
    return torch.arange(COUNT, dtype=torch.float64).sin().float()


def sums(x):
    here = torch.arange(COUNT)
    lane = here % GROUP % 32
    return x + 2 * here + 2 + 0.5 + x + lane + 3


@pytest.mark.parametrize("engine", ["loop", "fiber"])
def test_in_kernels_and_functions(program, engine):
    p = program(SOURCE)
    out = before()
    p.launch("one", out, grid=COUNT, group=GROUP, engine=engine)
    expected = sums(before()) + torch.arange(COUNT) // GROUP
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize("engine", ["group", "fiber"])
def test_in_kernels_that_synchronise(program, engine):
    p = program(SOURCE)
    x = before()
    out = before()
    p.launch("cut", out, grid=COUNT, group=GROUP, engine=engine)
    kept = sums(x).view(-1, GROUP).roll(-1, 1).flatten()
    parts = [part for row in x.view(-1, GROUP) for part in row.split(32)]
    totals = torch.cat([part.sum().expand(len(part)) for part in parts])
    torch.testing.assert_close(out, kept + totals)


@pytest.mark.parametrize(("name", "dtype"), [("of_float", torch.float32), ("of_int", torch.int32)])
def test_in_templates(program, name, dtype):
    out = torch.arange(COUNT).to(dtype)
    program(SOURCE).launch(name, out, grid=COUNT, group=GROUP)
    here = torch.arange(COUNT)
    assert out.tolist() == (2 * here + here % GROUP % 32).tolist()


def test_only_kernels_that_use_one_have_it(program):
    table = program(SOURCE).table()
    attributes = {name: {a["attribute"] for a in e["arguments"]} for name, e in table.items()}
    assert attributes["none"] == {"buffer"}
    assert attributes["of_int"] == {"buffer", "thread_position_in_grid", "thread_index_in_simdgroup"}  # fmt: skip


def test_in_a_lambda(program):
    p = program("""
        const uint here [[thread_position_in_grid]];
        const uint lane [[thread_index_in_simdgroup]];
        uint both() { return here + lane; }
        kernel void k(device uint* out) {
          uint one = 1;
          auto f = [](uint x) { return x + here + lane; };
          auto g = [one]() { return one + both(); };
          auto h = [&]() { return one + both(); };
          out[here] = f(2) + g() + h();
        }
    """)
    out = torch.zeros(40, dtype=torch.int32)
    p.launch("k", out, grid=40)
    assert out.tolist() == [4 + 3 * (i + i % 32) for i in range(40)]


@pytest.mark.parametrize(
    ("use", "line"),
    [
        ("struct S { uint at; S() { at = here; } };", 4),
        ("struct S { uint at; uint operator()() { return here; } };", 4),
        ("constant uint x = here;", 4),
    ],
)
def test_where_there_can_be_no_parameter_it_is_an_error(program, use, line):
    with pytest.raises(SyntaxError) as raised:
        program(f"const uint here [[thread_position_in_grid]];\n{use}\nkernel void k() {{}}")
    assert (
        "'here' [[thread_position_in_grid]] at program scope is not supported" in raised.value.msg
    )
    assert raised.value.lineno == line


def test_errors_keep_their_lines(program):
    source = SOURCE + "kernel void wrong(device float* out) { out[here] = missing; }"
    with pytest.raises(SyntaxError) as raised:
        program(source)
    assert raised.value.lineno == 3 + SOURCE.count("\n")


def test_the_checker_takes_them_as_values_that_differ_between_threads():
    assert check_source(HEADER + SOURCE) == []
    declared, parameter = "const uint here [[thread_position_in_grid]]", ""
    rules = []
    for _ in range(2):
        found = check_source(
            HEADER
            + f"""{declared};
            kernel void k(device float* out{parameter}) {{
              if (here < 3) threadgroup_barrier(mem_flags::mem_device);
            }}
            """
        )
        rules.append([(f.line, f.rule) for f in found])
        declared, parameter = "", f", {declared}"
    assert rules[0] == rules[1] == [(5, "maybe-divergent-barrier")]
