"""Generated sources have expressions of thousands of terms, whose syntax trees are as deep as these are long."""

import pytest
import torch
from metalops.msl import check
from metalops.msl.source.preprocess import preprocess
from metalops.msl.targets.cuda.emit import emit as emit_cuda
from metalops.msl.targets.host.emit import emit

from .conftest import HEADER

TERMS = 1000  # Python's limit of calls within calls
FORMS = {
    "sum": f"out[i] = {' + '.join(['x'] * TERMS)};",
    "sum that becomes an integer": f"ints[i] = {' + '.join(['x'] * TERMS)};",
    "sum that is added": f"ints[i] += {' + '.join(['x'] * TERMS)};",
    "sum in an argument": f"ints[i] = whole({' + '.join(['x'] * TERMS)});",
    "sum of calls": f"out[i] = {' + '.join(['same(x)'] * TERMS)};",
    "products of halves": f"out[i] = {' * '.join(['h'] * TERMS)};",
    "conjunction": f"out[i] = {' && '.join(['x > 1'] * TERMS)};",
    "signs": f"out[i] = {'- ' * TERMS}x;",
    "pointer": f"device float* p = out{' + 1' * TERMS}; *p = x;",
    "assignments": f"{'y = ' * TERMS}x; out[i] = y;",
    "assignments to elements": f"{'out[i] = ' * TERMS}x;",
    "compound assignments": f"{'y += ' * TERMS}x; out[i] = y;",
    "choices": f"out[i] = {'x > 1 ? x : ' * TERMS}h;",
    "choices in choices": f"out[i] = {'x > 1 ? ' * TERMS}x{': h' * TERMS};",
    "choices of integers": f"ints[i] = {'x > 1 ? x : ' * TERMS}2;",
    "choices of elements": f"out[i] = {''.join(f'x > {n} ? in[{n}] : ' for n in range(TERMS))}h;",
    "parentheses": f"out[i] = {'(' * TERMS}x{')' * TERMS};",
    "calls": f"out[i] = {'same(' * TERMS}x{')' * TERMS};",
    "calls of the library": f"out[i] = {'abs(' * TERMS}x{')' * TERMS};",
    "calls of methods": f"out[i] = number{'.same()' * TERMS}.value;",
    "subscripts": f"ints[i] = {'ints[' * TERMS}0{']' * TERMS};",
    "casts": f"ints[i] = {'(int)' * TERMS}x;",
    "functional casts": f"ints[i] = {'int(' * TERMS}x{')' * TERMS};",
    "static casts": f"ints[i] = {'static_cast<int>(' * TERMS}x{')' * TERMS};",
    "swizzles": f"out[i] = float4(x){'.wzyx' * TERMS}.x;",
    "commas": f"out[i] = ({'y = x, ' * TERMS}x);",
    "addresses": f"out[i] = {'*&' * TERMS}x;",
    "negations": f"out[i] = {'!' * TERMS}x;",
    "braces": f"float list[1] = {'{' * TERMS}x{'}' * TERMS}; out[i] = list[0];",
    "shifts": f"ints[i] = {'1 << ' * TERMS}1;",
    "quotients": f"ints[i] = int(i){' / int(i)' * TERMS};",
}
MEETINGS = [
    "threadgroup_barrier(mem_flags::mem_threadgroup);",
    "if (x > 2) x = simd_sum(x);",
]


def source_of(form, meeting):
    return f"""{HEADER}
    struct Number {{ Number same() const {{ return *this; }} float value; }};
    float same(float x) {{ return x; }}
    int whole(int x) {{ return x; }}
    kernel void k(device float* out, device const float* in, device int* ints, uint i [[thread_position_in_grid]]) {{
      float x = in[i];
      half h = half(x);
      float y = x;
      Number number = {{x}};
      {meeting}
      {FORMS[form]}
      {meeting}
    }}"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("form", FORMS)
def test_trees_of_any_depth_are_emitted(form):
    assert emit(preprocess(source_of(form, ""))).engines["k"] == ("loop", None)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("form", FORMS)
def test_trees_of_any_depth_are_emitted_for_cuda(form):
    assert "k(" in emit_cuda(preprocess(source_of(form, ""))).text


@pytest.mark.sampled(2)
@pytest.mark.parametrize("form", FORMS)
def test_trees_of_any_depth_are_checked(form):
    assert not check.check_source(source_of(form, ""), compiles=False)


@pytest.mark.parametrize("form", [form for form in FORMS if form.startswith("choices")])
def test_the_emitted_text_grows_with_the_source(form):
    source = source_of(form, "")
    assert len(emit(preprocess(source)).text) < 20 * len(source)


@pytest.mark.sampled(2)
@pytest.mark.full
@pytest.mark.parametrize("meeting", MEETINGS)
def test_trees_of_any_depth_are_emitted_where_threads_meet(meeting):
    for form in ("sum", "sum that becomes an integer", "sum of calls"):
        source = source_of(form, meeting)
        assert emit(preprocess(source)).engines["k"][0] == "group"
        assert "k(" in emit_cuda(preprocess(source)).text


@pytest.mark.full
def test_a_long_sum_is_computed(program):
    terms = " + ".join(f"in[{n % 8}]" for n in range(2 * TERMS))
    p = program(f"kernel void k(device int* out, device const float* in) {{ out[0] = {terms}; }}")
    out = torch.zeros(1, dtype=torch.int32)
    p.launch("k", out, torch.arange(8.0), grid=1)
    assert out.item() == 2 * TERMS // 8 * 28
