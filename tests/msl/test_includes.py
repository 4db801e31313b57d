"""Headers come from the folders that were given and, in quotes, from places relative to the file that includes them;
nothing of other files is told."""

import os

import pytest
from metalops.msl.flatten import flatten, flatten_text
from metalops.msl.source.preprocess import preprocess


@pytest.fixture
def project(tmp_path):
    """project/{kernel.metal, own.h, sub/below.h, sub/up.h}, given/{g.h, out.h}, and beside them secret, secret.h,
    beside.h and other/there.h."""
    for name, text in {
        "project/own.h": "int own;\n",
        "project/sub/below.h": '#include "up.h"\nint below;\n',
        "project/sub/up.h": '#include "../own.h"\nint up;\n',
        "given/g.h": "int given;\n",
        "given/out.h": '#include "../secret"\n',
        "secret.h": "int secret_12345;\n#error secret_12345\n",
        "secret": "int secret_12345;\n#error secret_12345\n",
        "beside.h": "int beside;\n",
        "other/there.h": '#include "../beside.h"\nint there;\n',
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


@pytest.mark.parametrize("is_here", [False, True], ids=["by its path", "in the current folder"])
def test_headers_relative_to_a_file_are_found(project, monkeypatch, is_here):
    if is_here:
        monkeypatch.chdir(project)
    text = '#include "../beside.h"\n#include "sub/../../other/there.h"\n#if !__has_include("../other/there.h")\n#error\n#endif\n'
    (project / "kernel.metal").write_text(text)
    path = "kernel.metal" if is_here else str(project / "kernel.metal")
    found = preprocess(path=path)
    assert found.text.count("int beside;") == 2 and "int there;" in found.text
    names = {os.path.basename(file) for file in found.dependencies}
    assert names == {"kernel.metal", "beside.h", "there.h"}
    assert "int there;" in flatten(path) and "#include" not in flatten(path)


def test_an_error_in_a_relative_header_is_told(project):
    with pytest.raises(SyntaxError, match=r"secret\.h.*1") as error:
        _kernel(project, '#include "../secret.h"\n')
    assert error.value.filename.endswith("secret.h") and error.value.lineno == 2


@pytest.mark.parametrize("name", ["../beside.h", "../secret.h"])
def test_a_text_has_no_relative_headers(project, monkeypatch, name):
    monkeypatch.chdir(project)
    with pytest.raises(SyntaxError, match=r"lies outside of the folders"):
        preprocess(f'#include "{name}"\n', include_dirs=[project])
    assert "int" not in flatten_text(f'#include "{name}"\n', [project])


def test_a_macro_may_name_a_header_of_a_file(project):
    assert "int own;" in _kernel(project, '#define OWN "own.h"\n#include OWN\n')


@pytest.mark.parametrize(
    "text, line",
    [
        ('\n#include "../secret"\n', 2),
        ('#include "sub/../../secret"\n', 1),
        ("#include <../secret.h>\n", 1),
        ("#include <g.h>\n#include <out.h>\n", 1),
        ('#define S "../secret"\n#include S\n', 2),
        ('# /* */ include "../secret"\n', 1),
        ('#inc\\\nlude "../secret"\n', 2),
        ("/* */ %:include <../secret.h>\n", 1),
        ('#if __has_include("../secret")\n#endif\n', 1),
        ("#if __has_include(<../secret.h>)\n#endif\n", 1),
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
