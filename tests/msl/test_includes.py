"""Headers come from the folders that were given, and nothing of other files is told."""

import os

import pytest
from metalops.msl.source.preprocess import preprocess


@pytest.fixture
def project(tmp_path):
    """project/{kernel.metal, own.h, sub/below.h, sub/up.h}, given/g.h and, beside them, secret.h."""
    for name, text in {
        "project/own.h": "int own;\n",
        "project/sub/below.h": '#include "up.h"\nint below;\n',
        "project/sub/up.h": '#include "../own.h"\nint up;\n',
        "given/g.h": "int given;\n",
        "given/out.h": '#include "../secret.h"\n',
        "secret.h": "int secret_12345;\n#error secret_12345\n",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "project"


def _kernel(project, text, **options):
    path = project / options.pop("name", "kernel.metal")
    path.write_text(text)
    return preprocess(path=str(path), **options).text


def test_headers_of_the_folder_and_of_given_ones_are_found(project):
    text = _kernel(
        project,
        '#include "own.h"\n#include "sub/below.h"\n#include "sub/../sub/up.h"\n#include <g.h>\n',
        include_dirs=[project.parent / "given"],
    )
    assert all(f"int {name};" in text for name in ("own", "below", "up", "given"))


def test_a_macro_may_name_a_header_of_a_file(project):
    assert "int own;" in _kernel(project, '#define OWN "own.h"\n#include OWN\n')


@pytest.mark.parametrize(
    "text, line",
    [
        ('\n#include "../secret.h"\n', 2),
        ('#include "sub/../../secret.h"\n', 1),
        ("#include <../secret.h>\n", 1),
        ("#include <g.h>\n#include <out.h>\n", 1),
        ('#define S "../secret.h"\n#include S\n', 2),
        ('# /* */ include "../secret.h"\n', 1),
        ('#inc\\\nlude "../secret.h"\n', 2),
        ("/* */ %:include <../secret.h>\n", 1),
        ('#if __has_include("../secret.h")\n#endif\n', 1),
    ],
)
def test_others_are_refused_where_they_are_asked_for(project, text, line):
    with pytest.raises(SyntaxError, match=r"lies outside of the folders") as error:
        _kernel(project, text, include_dirs=[project.parent / "given"])
    assert error.value.lineno == line
    assert "12345" not in str(error.value)


def test_the_folder_of_a_refused_one_can_be_given(project):
    (project.parent / "secret.h").write_text("int found;\n")
    text = _kernel(project, '#include "../secret.h"\n', include_dirs=[project.parent])
    assert "int found;" in text


def test_texts_do_not_see_the_current_folder(project, monkeypatch):
    monkeypatch.chdir(project)
    with pytest.raises(SyntaxError, match=r"own\.h"):
        preprocess('#include "own.h"\n')
    assert "int own;" in preprocess('#include "own.h"\n', include_dirs=["."]).text


@pytest.mark.parametrize("name", ["-o.metal", "@options.metal", "-fplugin=x.metal"])
def test_files_are_no_options(project, monkeypatch, name):
    monkeypatch.chdir(project)
    (project / name).write_text("int from_the_file;\n")
    assert "int from_the_file;" in preprocess(path=name).text


def test_a_file_that_is_only_named_is_not_shown(project):
    secret = project.parent / "secret.h"
    with pytest.raises(SyntaxError) as error:
        _kernel(project, f'#line 1 "{secret}"\n#error here\n')
    assert "12345" not in str(error.value) and "here" in str(error.value)


def test_a_text_that_was_preprocessed_before_is_one_again():
    once = preprocess("#include <metal_stdlib>\n#include <c10/metal/utils.h>\nint x;\n")
    assert "int x;" in preprocess(once.portable_text()).text
    assert "int x;" in preprocess(once.text).text


def test_a_preprocessed_file_is_read_like_any_other(project):
    text = _kernel(project, f'# 1 "{os.sep}elsewhere/a.h" 1\nint a;\n# 2 "b.metal" 2\nint b;\n')
    assert "int a;" in text and "int b;" in text
