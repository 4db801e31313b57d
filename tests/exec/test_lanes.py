"""Kernels that loop and never synchronise run as vector lanes where that leaves the same memory, and only there."""

import pytest
import torch
from metalops import _host, msl
from metalops.msl.cli import explain
from metalops.msl.source.preprocess import preprocess
from metalops.msl.targets.host.emit import emit

from .conftest import HEADER

GID = "uint gid [[thread_position_in_grid]]"
TAKEN = {
    "product": (
        """kernel void product(device float* c, device const float* a, device const float* b, constant uint& n,
            uint2 gid [[thread_position_in_grid]]) {
          if (gid.x >= n || gid.y >= n) return;
          float s = 0;
          for (uint k = 0; k < n; ++k) s += a[gid.y * n + k] * b[k * n + gid.x];
          c[gid.y * n + gid.x] = s;
        }""",
        64,
    ),
    "columns": (
        f"""kernel void columns(device float* o, device const float* x, constant uint& w, constant uint& h, {GID}) {{
          float s = 0;
          for (uint k = 0; k < h; ++k) s += x[k * w + gid];
          o[gid] = s;
        }}""",
        64,
    ),
    "rows": (
        f"""kernel void rows(device float* o, device const float* x, constant uint& w, {GID}) {{
          float s = 0;
          for (uint k = 0; k < w; ++k) s += x[gid * w + k];
          o[gid] = s;
        }}""",
        16,
    ),
    "multiply_adds": (
        f"""kernel void multiply_adds(device float* o, device const float* x, {GID}) {{
          float v = x[gid];
          for (int j = 0; j < 200; ++j) v = v * 0.75f + 0.5f;
          o[gid] = v;
        }}""",
        64,
    ),
    "mandelbrot": (
        """kernel void mandelbrot(device float* o, constant uint& w, uint2 gid [[thread_position_in_grid]]) {
          float cr = gid.x * 3.0f / w - 2.0f, ci = gid.y * 2.0f / w - 1.0f, zr = 0, zi = 0;
          int n = 0;
          for (; n < 100; ++n) {
            float next = zr * zr - zi * zi + cr;
            if (zr * zr + zi * zi >= 4) break;
            zi = 2 * zr * zi + ci;
            zr = next;
          }
          o[gid.y * w + gid.x] = n;
        }""",
        32,
    ),
    "escape": (
        """inline float2 square(float2 z) { return float2(z.x * z.x - z.y * z.y, 2 * z.x * z.y); }
        kernel void escape(device float* o, constant uint& w, uint2 gid [[thread_position_in_grid]]) {
          float2 c = float2(gid.x * 3.0f, gid.y * 2.0f) / w - float2(2, 1), z = 0;
          int n = 0;
          while (n < 100 && dot(z, z) < 4) {
            z = square(z) + c;
            ++n;
            if (n % 7 == 3) continue;
            z.x += 0.001f;
          }
          o[gid.y * w + gid.x] = n;
        }""",
        32,
    ),
    "ragged": (
        f"""kernel void ragged(device float* o, device const float* x, device const uint* ends, {GID}) {{
          float s = 0;
          for (uint k = 0; k < ends[gid]; ++k) s += x[k * 3 + gid];
          o[gid] = s;
        }}""",
        32,
    ),
    "nested": (
        f"""kernel void nested(device uint* o, device const uint* x, constant uint& n, {GID}) {{
          uint s = gid;
          for (uint k = 0; k < 9; ++k) {{
            uint row = x[k];
            if ((s ^ k) % 3 == 1) {{
              for (uint j = gid & 3; j < n; j += 2) {{
                if (s % 31 == 7) break;
                if (s % 13 == 5) return;
                s = s * 5 + row;
              }}
            }} else {{
              uint t = 0;
              do {{ s ^= x[s & 63]; }} while (++s % 4 != 0 && ++t < 9);
            }}
            if (s % 29 == 28) break;
            s += k;
          }}
          o[gid] = s;
        }}""",
        16,
    ),
    "cases": (
        f"""kernel void cases(device uint* o, device const uint* x, constant uint& n, {GID}) {{
          uint s = 1, k = 0;
          while (k < n) {{
            uint v = x[gid + k];
            ++k;
            switch (v & 3) {{
              case 0: s += v; break;
              case 1: s *= 3;
              default: s ^= v;
            }}
            if (s & 64) k += 2;
          }}
          o[gid] = s;
        }}""",
        16,
    ),
    "stencil": (
        """kernel void stencil(device float* o, device const float* x, constant uint& w, constant uint& h,
            uint2 gid [[thread_position_in_grid]]) {
          if (gid.x == 0 || gid.y == 0 || gid.x + 1 >= w || gid.y + 1 >= h) return;
          uint i = gid.y * w + gid.x;
          o[i] = 0.5f * x[i] + 0.125f * (x[i - 1] + x[i + 1] + x[i - w] + x[i + w]);
        }""",
        64,
    ),
    "softmax": (
        f"""kernel void softmax(device float* o, device const float* x, constant uint& w, {GID}) {{
          uint row = gid * w;
          float most = x[row], s = 0;
          for (uint k = 1; k < w; ++k) most = max(most, x[row + k]);
          for (uint k = 0; k < w; ++k) s += exp(x[row + k] - most);
          for (uint k = 0; k < w; ++k) o[k + row] = exp(x[row + k] - most) / s;
        }}""",
        16,
    ),
    "strides": (
        f"""kernel void strides(device uint* o, device const uint* x, constant uint& w, {GID}) {{
          uint s = 0;
          for (uint k = 0; k < w; ++k) {{
            if (gid >= k) s += x[(gid - k) * 2];
          }}
          for (uint k = 0; k < 3; ++k) o[gid * 4 + k] = s + k;
        }}""",
        16,
    ),
    "back": (
        f"""kernel void back(device uint* o, device const uint* x, constant uint& w, {GID}) {{
          uint s = 0;
          for (uint k = 0; k < w; ++k) {{
            if (gid >= k) s += x[gid - k];
          }}
          o[gid] = s;
        }}""",
        64,
    ),
}


def _library(source, lanes):
    return _host.Library(str(msl.compile_source(HEADER + source, options=msl.Options(lanes=lanes))))


def _both(name, arguments, threads):
    """What a kernel leaves in its first buffer with lanes and without them."""
    results = []
    for lanes in (True, False):
        buffers = arguments()
        group = [threads[0], *[1] * (len(threads) - 1)]
        _library(TAKEN[name][0], lanes).launch(
            name, buffers, threads, [min(96, group[0]), *group[1:]]
        )
        results.append(buffers[0])
    return results


def _number(value):
    return torch.tensor([value], dtype=torch.int32)


def _random(*shape):
    return torch.rand(*shape, generator=torch.manual_seed(0))


@pytest.mark.parametrize("name", TAKEN)
def test_threads_of_a_kernel_that_loops_run_together(name):
    source, width = TAKEN[name]
    emitted = emit(preprocess(HEADER + source), lanes=True)
    assert emitted.lanes == {name: width} and not emitted.no_lanes
    assert f"{width} threads at a time as vector lanes" in explain(emitted)
    assert "_in_lanes" not in emit(preprocess(HEADER + source)).text


LAUNCHES = {
    "product": (
        lambda: [torch.zeros(70, 70), _random(70, 70), _random(70, 70), _number(70)],
        [75, 70],
    ),
    "columns": (lambda: [torch.zeros(211), _random(40, 211), _number(211), _number(40)], [211]),
    "rows": (lambda: [torch.zeros(211), _random(211, 33), _number(33)], [211]),
    "multiply_adds": (lambda: [torch.zeros(211), _random(211)], [211]),
    "mandelbrot": (lambda: [torch.zeros(90, 90), _number(90)], [90, 90]),
    "escape": (lambda: [torch.zeros(90, 90), _number(90)], [90, 90]),
    "ragged": (
        lambda: [torch.zeros(211), _random(400), torch.arange(211, dtype=torch.int32) * 7 % 50],
        [211],
    ),
    "nested": (
        lambda: [
            torch.full((211,), -1, dtype=torch.int32),
            torch.arange(64, dtype=torch.int32) * 77 % 50,
            _number(7),
        ],
        [211],
    ),
    "cases": (
        lambda: [
            torch.zeros(211, dtype=torch.int32),
            torch.arange(300, dtype=torch.int32) * 77 % 50,
            _number(40),
        ],
        [211],
    ),
    "stencil": (
        lambda: [torch.zeros(9, 211), _random(9, 211), _number(211), _number(9)],
        [211, 9],
    ),
    "softmax": (lambda: [torch.zeros(211, 33), _random(211, 33), _number(33)], [211]),
    "strides": (
        lambda: [
            torch.zeros(211, 4, dtype=torch.int32),
            torch.arange(422, dtype=torch.int32),
            _number(9),
        ],
        [211],
    ),
    "back": (
        lambda: [
            torch.zeros(211, dtype=torch.int32),
            torch.arange(211, dtype=torch.int32),
            _number(9),
        ],
        [211],
    ),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", LAUNCHES)
def test_lanes_leave_what_threads_leave(name, each_compiler):
    ours, theirs = _both(name, *LAUNCHES[name])
    assert ours.any() and torch.equal(ours.view(torch.int32), theirs.view(torch.int32))


def test_products_are_those_of_torch(each_compiler):
    ours, _ = _both("product", *LAUNCHES["product"])
    torch.testing.assert_close(ours, _random(70, 70) @ _random(70, 70))


def test_buffers_that_share_memory(each_compiler):
    """Each thread reads what the one before it wrote, which is a data race on a GPU: here threads run in order."""
    source = f"""kernel void k(device float* o, device const float* x, constant uint& n, {GID}) {{
      float s = 0;
      for (uint k = 0; k < n; ++k) s += x[gid + k];
      o[gid] = s * 0.5f;
    }}"""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    memory = _random(300)
    _library(source, lanes=True).launch("k", [memory[1:], memory, _number(2)], [211], [64])
    torch.set_num_threads(before)
    expected = _random(300)
    for i in range(211):
        expected[i + 1] = (expected[i] + expected[i + 1]) * 0.5
    assert torch.equal(memory, expected)


def test_a_buffer_that_is_changed_in_place(each_compiler):
    x = _random(211)
    ours, theirs = _both("multiply_adds", lambda: [copy := x.clone(), copy], [211])
    assert torch.equal(ours, theirs)


LOOP = "for (uint k = 0; k < n; ++k) s += x[gid + k];"
REFUSED = {
    "a store whose index does not grow": f"float s = 0; {LOOP} o[gid * 2] = s;",
    "'o', which is written and has several indices": f"float s = 0; {LOOP} o[gid] = s; s += o[gid + 1];",
    "'o', which is written at several": "float s = 0; for (uint k = 0; k < n; ++k) { s += x[k]; o[k + gid] = s; }",
    "a loop in a statement (case_statement)": f"float s = 0; switch (n) {{ case 1: {LOOP} }} o[gid] = s;",
    "a switch that continues a loop or returns": "float s = 0; while (s < 9) { s += 1; switch (n) { case 1: continue; } } o[gid] = s;",
    "a condition that declares a variable": "float s = 0; while (int m = n - s) { s += m; } o[gid] = s;",
    "'v', which is a pointer": f"float s = 0; device const float* v = x + gid; {LOOP} o[gid] = s + v[0];",
    "the call of 'pow'": f"float s = 0; {LOOP} o[gid] = pow(s, 1.5f);",
    "the call of 'change'": f"float s = 0; {LOOP} change(s); o[gid] = s;",
    "the call of 'summed'": f"float s = 0; {LOOP} o[gid] = summed(s);",
    "the call of 'endless'": f"float s = 0; {LOOP} o[gid] = endless(s);",
    "two variables named 'n'": f"float s = 0; {LOOP} {{ float n = 1; o[gid] = s + n; }}",
    "two variables named 's'": f"float s = 0; {LOOP} {{ o[gid] = s; float s = 1; {LOOP} o[gid] += s; }}",
    "the order of a thread's accesses": f"float s = 0; {LOOP} o[gid] = s; o[gid + 1] += o[gid];",
}


@pytest.mark.parametrize("reason", REFUSED)
def test_other_kernels_run_thread_by_thread(reason):
    source = f"""inline void change(thread float& s) {{ s = 1; }}
    inline float summed(float a) {{ for (int i = 0; i < 3; ++i) a += a; return a; }}
    inline float endless(float a) {{ return a > 9 ? a : endless(a + 1); }}
    kernel void k(device float* o, device const float* x, constant uint& n, {GID}) {{ {REFUSED[reason]} }}"""
    emitted = emit(preprocess(HEADER + source), lanes=True)
    assert not emitted.lanes and reason in emitted.no_lanes["k"]
    assert f"not as vector lanes because of {emitted.no_lanes['k']}" in explain(emitted)


def test_rows_that_wrap_around_overlap(each_compiler):
    """The rows of every eighth thread begin eight elements apart, since their indices wrap, and have twelve."""
    source = f"""kernel void k(device int* o, device const int* x, constant uint& n, {GID}) {{
      int v = x[gid];
      for (uint k = 0; k < n; ++k) {{
        if (k == 12 || gid % 8 != 0) break;
        o[gid * n + k] = v;
      }}
    }}"""
    assert emit(preprocess(HEADER + source), lanes=True).lanes
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    results = []
    for lanes in (True, False):
        o = torch.full((68,), -1, dtype=torch.int32)
        x = torch.arange(64, dtype=torch.int32)
        _library(source, lanes).launch("k", [o, x, _number((1 << 29) + 1)], [64], [64])
        results.append(o)
    torch.set_num_threads(before)
    assert torch.equal(*results)


@pytest.mark.parametrize(
    "body",
    [
        "for (uint k = 0; k <= n; ++k) o[gid * n + k] = x[k];",
        "for (int k = -1; k < 4; ++k) o[gid * 4 + k] = x[k];",
        "for (uint k = 0; k < n; ++k) o[(gid >> 1) * n + k] = x[k];",
        "for (uint k = 0; k < n; k += 3) o[gid * x[k] + k] = x[k];",
    ],
)
def test_rows_that_threads_share(body):
    source = f"kernel void k(device float* o, device const float* x, constant uint& n, {GID}) {{ {body} }}"
    emitted = emit(preprocess(HEADER + source), lanes=True)
    assert emitted.no_lanes["k"] == "'o', which is written at several indices"


def test_a_source_with_lanes_and_barriers(each_compiler):
    source = (
        TAKEN["rows"][0]
        + f"""
    kernel void reversed(device float* o, device const float* x, {GID}, uint t [[thread_index_in_threadgroup]]) {{
      threadgroup float values[64];
      values[t] = x[gid];
      threadgroup_barrier(mem_flags::mem_threadgroup);
      o[gid] = values[63 - t];
    }}"""
    )
    library, x, o = _library(source, lanes=True), _random(64, 64), torch.zeros(64)
    library.launch("rows", [o, x, _number(64)], [64], [64])
    torch.testing.assert_close(o, x.sum(1))
    library.launch("reversed", [o, x[0]], [64], [64])
    assert torch.equal(o, x[0].flip(0))


def test_nothing_is_said_of_kernels_without_loops():
    source = f"kernel void k(device float* o, device const float* x, {GID}) {{ o[gid] = x[gid]; }}"
    emitted = emit(preprocess(HEADER + source), lanes=True)
    assert not emitted.lanes and not emitted.no_lanes


def test_sources_compiled_at_run_time_run_as_lanes():
    assert msl.runtime_options().lanes and not msl.Options().lanes
