"""One source out of several files, for Apple's run-time compiler."""

import pytest
from metalops import msl
from metalops.msl.flatten import flatten_text


def write(folder, **files):
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_h", ".h").replace("_metal", ".metal")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "main.metal"


def test_includes_are_embedded_once(tmp_path):
    main = write(
        tmp_path,
        a_h='#pragma once\n#include "b.h"\nint a;\n',
        b_h="#pragma once\nint b;\n",
        main_metal='#include <metal_stdlib>\n#include "a.h"\n# include "b.h"\n#  include <metal_atomic>\nint c;\n',
    )
    text = msl.flatten(main)
    assert text.count("int a;") == text.count("int b;") == text.count("int c;") == 1
    assert text.index("int b;") < text.index("int a;") < text.index("int c;")
    assert "#include <metal_stdlib>" in text and "#  include <metal_atomic>" in text
    assert "pragma once" not in text and '#include "a.h"' not in text


def test_include_dirs_and_torch(tmp_path):
    main = write(
        tmp_path,
        inc__dir__x_h="int x;\n",
        main_metal="#include <dir/x.h>\n#include <c10/metal/common.h>\n#include <nowhere/y.h>\n",
    )
    text = msl.flatten(main, [tmp_path / "inc"])
    assert "int x;" in text and "simdgroup_size" in text and "#include <nowhere/y.h>" in text


def test_headers_of_one_name_in_two_folders_are_both_embedded(tmp_path):
    main = write(
        tmp_path,
        other__numbers_h="#pragma once\nconstant int a = 1;\n",
        numbers_h="#pragma once\nconstant int b = 2;\n",
        main_metal='#include <other/numbers.h>\n#include "numbers.h"\n#include <other/numbers.h>\n',
    )
    text = msl.preprocess(msl.flatten(main, [tmp_path])).text
    assert text.count("int a = 1;") == text.count("int b = 2;") == 1


def test_files_without_pragma_once_are_embedded_each_time(tmp_path):
    main = write(
        tmp_path,
        x_h="ITEM(1)\n",
        main_metal='#define ITEM(n) int a##n;\n#include "x.h"\n#include "x.h"\n',
    )
    assert msl.flatten(main).count("ITEM(1)") == 2


def test_a_conditional_include_does_not_hide_a_later_one(tmp_path):
    main = write(
        tmp_path,
        x_h="#pragma once\nstruct x { int v; };\n",
        main_metal='#include <metal_stdlib>\n#ifdef NEVER\n#include "x.h"\n#endif\n#include "x.h"\n#include "x.h"\n'
        "kernel void k(device x* o [[buffer(0)]]) { o->v = 1; }\n",
    )
    text = msl.flatten(main)
    assert [e.name for e in msl.kernel_table(text)] == ["k"]
    assert msl.compile_source(text)


def test_include_guards_do_not_count_as_conditions(tmp_path):
    main = write(
        tmp_path,
        a_h='#ifndef A_H\n#define A_H\n#include "b.h"\n#endif\n',
        b_h="#pragma once\nint b;\n",
        main_metal='#include "a.h"\n#include "b.h"\n',
    )
    assert msl.flatten(main).count("int b;") == 1


def test_includes_in_comments_are_left_alone(tmp_path):
    main = write(
        tmp_path, x_h="int x;\n", main_metal='/*\n#include "x.h"\n*/\n// /*\n#include "x.h"\n'
    )
    assert msl.flatten(main).count("int x;") == 1


def test_flattened_torch_headers_compile(tmp_path):
    main = write(
        tmp_path,
        main_metal="#include <c10/metal/indexing.h>\n#include <c10/metal/special_math.h>\n"
        "struct f_functor { template <typename T> T operator()(const T x) { return c10::metal::i0(x); } };\n"
        "REGISTER_UNARY_OP(f, float, float);\n",
    )
    text = msl.flatten(main)
    assert "#include <c10" not in text
    assert {e.name for e in msl.kernel_table(text)} >= {
        "f_dense_float_float",
        "f_strided_float_float",
    }


def test_the_text_is_ascii(tmp_path):
    source = tmp_path / "k.metal"
    source.write_text("// 1 \u2248 2\nkernel void f() {}\n", encoding="utf-8")
    assert msl.flatten(source) == '#line 1 "k.metal"\n// 1 ? 2\nkernel void f() {}\n'


def test_errors_name_the_files_that_the_text_is_made_of(tmp_path):
    main = write(
        tmp_path,
        x_h="#pragma once\nint x() { return nothing; }\n",
        main_metal='#include <metal_stdlib>\n#include "x.h"\nkernel void k() { wrong(); }\n',
    )
    with pytest.raises(SyntaxError) as caught:
        msl.compile_source(msl.flatten(main))
    assert "x.h:2:18: error" in caught.value.msg
    assert "main.metal:3:19: error" in caught.value.msg


def test_files_outside_of_the_folders_are_not_embedded(tmp_path, monkeypatch):
    """Neither those above that are no headers, nor by an absolute name, nor the current folder's in a text."""
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in ("secret.h", "secret"):
        (tmp_path / name).write_text("int secret;\n")
    (folder / "own.h").write_text("int own;\n")
    path = folder / "a.metal"
    path.write_text(f'#include "own.h"\n#include "../secret"\n#include "{tmp_path}/secret.h"\n')
    text = msl.flatten(path)
    assert "int own;" in text and "int secret;" not in text
    assert "int secret;" in msl.flatten(path, [tmp_path])
    monkeypatch.chdir(folder)
    assert "int own;" not in flatten_text('#include "own.h"\n')
