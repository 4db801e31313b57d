"""Compile errors are SyntaxErrors at the user's own file, line and column."""

import pytest
import torch
from metalops import msl
from metalops.msl.source.preprocess import preprocess
from metalops.msl.targets.host.emit import emit

HEADER = "#include <metal_stdlib>\nusing namespace metal;\n"


def error_of(source, **options):
    with pytest.raises(SyntaxError) as caught:
        msl.compile_source(source, **options)
    return caught.value


def place(source, needle):
    """Line and column (from 1) of a piece of a source."""
    before = source[: source.index(needle)]
    return before.count("\n") + 1, len(before) - before.rfind("\n")


def check(source, needle, *words):
    error = error_of(source)
    assert error.filename == "program_source"
    assert (error.lineno, error.offset) == place(source, needle)
    assert error.text == source.split("\n")[error.lineno - 1]
    assert f"program_source:{error.lineno}:{error.offset}: error: " in error.msg
    for word in words:
        assert word in error.msg
    for internal in ("msl::", "msl_", "abi::"):
        assert internal not in error.msg
    return error


def test_undeclared_name():
    check(
        HEADER + "kernel void k(device float* out [[buffer(0)]]) {\n  out[0] = missing + 1.0;\n}\n",
        "missing",
        "missing",
    )


def test_column_behind_rewritten_code():
    check(
        HEADER
        + "kernel void k(device float4* out [[buffer(0)]], constant uint& n) {\n"
        + "  out[0].xy = out[1].wz / 2.0; uint s = 1u << n; out[0].x = simd_sum(1.0) + missing;\n}\n",
        "missing",
    )


def test_column_behind_a_macro_and_collapsed_spaces():
    check(
        HEADER
        + "#define TWICE(x) ((x) + (x))\n"
        + "kernel void k(device float* out) {\n  out[0] =   TWICE( out[1] )    + missing;\n}\n",
        "missing",
    )


def test_place_in_a_comment_free_line_after_comments():
    check(
        HEADER
        + "/* one\n two */ kernel void k(device float* out) { /* three */ out[0] = missing; }\n",
        "missing",
    )


def test_error_inside_a_macro_points_at_its_use():
    source = (
        HEADER
        + "#define BAD(x) (x + missing)\nkernel void k(device float* out) {\n  out[0] = BAD(2);\n}\n"
    )
    error = error_of(source)
    assert (error.lineno, error.offset) == place(source, "BAD(2)")


def test_wrong_type():
    check(
        HEADER + "struct s {};\nkernel void k(device float* out) {\n  s v;\n  out[0] = v;\n}\n",
        "v;\n}",
        "float",
    )


def test_syntax_error():
    source = HEADER + "kernel void k(device float* out) {\n  out[0] = 1.0\n}\n"
    error = error_of(source)
    assert error.lineno == 4
    assert "';'" in error.msg


def test_unbalanced_braces():
    error = error_of(
        HEADER + "kernel void k(device float* out) {\n  if (true) {\n    out[0] = 1;\n}\n"
    )
    assert error.filename == "program_source"


def test_every_error_is_reported():
    source = HEADER + "kernel void k(device float* out) {\n  out[0] = one;\n  out[1] = two;\n}\n"
    error = error_of(source)
    assert [d.line for d in error.diagnostics] == [4, 5]
    assert "one" in error.msg and "two" in error.msg


def test_template_instantiation_errors_are_in_the_template():
    error = error_of(
        HEADER
        + "template <typename T> kernel void k(device T* out) {\n  out[0] = T::missing;\n}\n"
        + 'template [[host_name("f")]] kernel void k<float>(device float*);\n'
    )
    assert error.lineno == 4 and error.offset in (12, 15)  # clang points at T, g++ at the member


def test_error_in_an_instantiation():
    source = (
        HEADER
        + "template <typename T> kernel void k(device T* out) {}\n"
        + 'template [[host_name("f")]] kernel void k<nothing>(device float*);\n'
    )
    assert error_of(source).lineno == 4


def test_static_assert_in_the_users_code():
    error = error_of(HEADER + 'static_assert(sizeof(half) == 4, "halves are small");\n')
    assert error.lineno == 3 and "halves are small" in error.msg


def test_misuse_of_the_standard_library_is_reported_at_the_call():
    source = (
        HEADER
        + "struct s {};\nkernel void k(device float* out) {\n  out[0] = metal::exp(s());\n}\n"
    )
    error = error_of(source)
    assert error.filename == "program_source" and error.lineno == 5


def test_missing_include():
    source = '#include "no_such_header.h"\n'
    error = error_of(source)
    assert (error.filename, error.lineno) == ("program_source", 1)
    assert "no_such_header.h" in error.msg


def test_error_directive():
    error = error_of("\n#error wrong platform\n")
    assert error.lineno == 2 and "wrong platform" in error.msg


def test_error_in_an_included_file(tmp_path):
    header = tmp_path / "helper.h"
    header.write_text("#pragma once\n\ninline float helper() { return missing; }\n")
    main = tmp_path / "main.metal"
    main.write_text(
        '#include <metal_stdlib>\n#include "helper.h"\nkernel void k(device float* o) { o[0] = helper(); }\n'
    )
    with pytest.raises(SyntaxError) as caught:
        msl.compile_file(main)
    assert (caught.value.filename, caught.value.lineno) == (str(header), 3)
    assert caught.value.text == "inline float helper() { return missing; }"
    assert not (tmp_path / "main.so").exists()


def test_name_of_the_source():
    error = error_of(
        HEADER + "kernel void k(device float* o) { o[0] = missing; }\n", name="my kernel"
    )
    assert error.filename == "my kernel"
    assert "my kernel:3:" in error.msg


def test_line_directives_of_the_user():
    error = error_of(
        HEADER + '#line 70 "generated.metal"\nkernel void k(device float* o) { o[0] = missing; }\n'
    )
    assert (error.filename, error.lineno) == ("generated.metal", 70)


def test_threadgroup_variable_outside_a_kernel():
    check(
        HEADER
        + "void f() {\n  threadgroup float x[4];\n}\nkernel void k(device float* o) { f(); }\n",
        "threadgroup float",
        "must be declared in a kernel function",
    )
    check(
        HEADER + "threadgroup float x[4];\n",
        "threadgroup float",
        "must be declared in a kernel function",
    )


def test_initialised_threadgroup_variable():
    check(
        HEADER + "kernel void k(device float* o) {\n  threadgroup float x = 3.0;\n}\n",
        "x = 3.0",
        "cannot be initialized",
    )


def test_kernel_parameter_without_attribute():
    check(
        HEADER + "kernel void k(device float* o, uint i) { o[i] = 1; }\n",
        "uint i",
        "needs an attribute",
    )


def test_non_ascii_text():
    error = error_of(
        HEADER + "// größe → ∞\nkernel void k(device float* o) { o[0] = missing; } // ü\n"
    )
    assert error.lineno == 4 and error.text.endswith("// ü")


def test_function_that_is_never_defined():
    check(
        HEADER
        + "float nowhere(float x);\nkernel void k(device float* o) { o[0] = nowhere(o[1]); }\n",
        "nowhere(float x)",
        "'nowhere(float)'",
        "never defined",
    )


KERNEL = "void k(device float* out [[buffer(0)]], uint i [[thread_position_in_grid]])"


@pytest.mark.parametrize(
    ("source", "needle"),
    [
        (
            "constexpr float table[2] = {1, 2};\nkernel " + KERNEL + " { out[i] = table[1]; }\n",
            "table[2]",
        ),
        ("namespace a { int counter; }\nkernel " + KERNEL + " {}\n", "counter"),
    ],
)
def test_program_scope_variables_are_constant(source, needle):
    message = "program scope variable must reside in constant address space"
    check(HEADER + source, needle, message)


def test_program_scope_declarations_that_are_allowed(program):
    built = program("""
        constant float table[2] = {1, 2};
        static constexpr constant int count = 3;
        constexpr sampler nearest(filter::nearest);
        template <typename T> constant constexpr bool is_small = sizeof(T) < 4;
        enum class Kind { a, b };
        typedef float (*unary)(float);
        extern float helper(float x);
        float helper(float x) { return x; }
        float other(float), another(float);
        struct Box { static constexpr int size = 4; };
        kernel void k(device float* out) { out[0] = helper(table[0]) + count + Box::size + is_small<half>; }
    """)
    out = torch.zeros(1)
    built.launch("k", out, grid=1)
    assert out.item() == 1 + 3 + 4 + 1


def test_thread_limits_stand_before_the_kernel():
    limit = "[[max_total_threads_per_threadgroup(32)]]"
    source = HEADER + f"kernel {KERNEL} {limit} {{ out[i] = 1; }}\n"
    check(source, "max_total_threads", "cannot be applied to types")


def test_positions_have_one_width():
    source = (
        HEADER
        + "kernel void k(device float* out, uint i [[thread_position_in_grid]],\n"
        + "              uint j [[thread_index_in_threadgroup]],\n"
        + "              uint3 size [[threads_per_threadgroup]]) { out[i] = size.x; }\n"
    )
    message = "either all scalar types or all vector types with the same number of elements"
    check(source, "uint3 size", message, "'threads_per_threadgroup' has type 'uint3'")


def test_an_error_that_nothing_leads_to_has_no_place_in_our_headers():
    emitted = emit(preprocess("kernel void k(device float* o) {}\n"))
    output = "/somewhere/include/msl/simd.h:3:4: error: no template named 'msl::metal::a'\n"
    (found,) = msl.build.explain(output, "kernels.cpp", emitted)
    assert found.render() == "program_source:1: error: no template named 'metal::a'"


@pytest.mark.parametrize("index", ["[[buffer(31)]]", ""])
def test_there_are_31_buffers(index):
    first = "".join(f"device float* x{i}, " for i in range(31)) if not index else ""
    source = HEADER + f"kernel void k({first}\n  constant float* last {index}) {{}}\n"
    check(source, "float* last", "out of bounds: must be between 0 and 30, but is 31")


def test_instantiation_of_a_template_that_is_not_there():
    check(
        HEADER
        + "template <typename T> kernel void scale(device T* x) { x[0] *= 2; }\n"
        + 'template [[host_name("k")]] [[kernel]] decltype(scal<float>) (scal<float>);\n',
        "scal<float>);",
        "there is no kernel template scal",
    )


def test_an_error_in_a_kernel_with_a_barrier_is_said_once():
    """The loops over threads that such kernels become are tried first."""
    text = (
        "kernel void f(device float* x [[buffer(0)]], uint i [[thread_position_in_threadgroup]]) {\n"
        "  threadgroup float t[32];\n  t[i] = undeclared_thing;\n"
        "  metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);\n  x[i] = t[31 - i];\n}\n"
    )
    with pytest.raises(SyntaxError, match="undeclared_thing") as raised:
        msl.compile_source("#include <metal_stdlib>\n" + text)
    assert str(raised.value).count("error:") == 1
    assert raised.value.__context__ is None and raised.value.__cause__ is None


@pytest.mark.parametrize("name", ["filter", "mag_filter", "min_filter"])
def test_bicubic_filters_are_refused(name):
    check(
        f"{HEADER}constexpr sampler s({name}::bicubic, address::repeat);\nkernel void k(device float* out) {{ out[0] = 1; }}\n",
        f"{name}::bicubic",
        "bicubic filters of samplers are not supported",
    )


def test_the_word_bicubic_is_the_programs():
    source = "enum class kind { linear, bicubic };\nkernel void k(device int* out) { out[0] = int(kind::bicubic); }\n"
    assert "k(" in msl.emit_source(HEADER + source)
