"""Old words and sentences without a subject are found in comments, docstrings and prose, and nowhere else."""

import pytest

from tests.vocabulary import files, findings


def old(text, suffix):
    return [(finding.line, finding.old) for finding in findings(text, suffix)]


@pytest.mark.parametrize(
    "text, suffix, expected",
    [
        ("int x;\n// A product of few rows.\n", ".h", [(2, "product of few rows")]),
        ("/* Some\n * products of tiles */\n", ".metal", [(2, "products of tiles")]),
        ("f();  // A block of\n      // reflectors.\n", ".mm", [(1, "block of reflectors")]),
        ("# Codes are taken apart.\nx = 1\n", ".py", [(1, "taken apart")]),
        ('def f():\n    """Attention without its scores."""\n', ".py", [(2, "without its scores")]),
        ("# Title\n\nOne line of\nweights.\n", ".md", [(3, "line of weights")]),
        ('int a;\nputs("is taken apart");\n', ".cpp", [(2, "taken apart")]),
        ('x = f(\n    "is taken apart"\n)\n', ".py", [(2, "taken apart")]),
    ],
)
def test_an_old_word_is_found_on_its_line(text, suffix, expected):
    assert old(text, suffix) == expected


@pytest.mark.parametrize("word", ["Of", "What", "Those", "The same", "That", "Whose", "Whom"])
def test_a_dangling_start_is_found(word):
    expected = f"{word} ..."
    assert old(f"int x;\n\n// {word} a matrix\n// is.\n", ".cpp") == [(3, expected)]
    assert old(f"/** {word} a matrix. */\n", ".h") == [(1, expected)]
    assert old(f"x = 1\n\n# {word} a matrix.\n", ".py") == [(3, expected)]
    assert old(f'"""{word} a matrix."""\n', ".py") == [(1, expected)]
    assert old(f'class A:\n    def f():\n        r"""\n        {word} it."""', ".py") == [
        (4, expected)
    ]


def test_two_comments_begin_on_their_own_and_successive_lines_are_one():
    assert old("int a;  // Rows.\nint b;  // Of it.\n", ".h") == [(2, "Of ...")]
    assert old("// Rows.\n//\n// Of them, the first.\n", ".h") == []


@pytest.mark.parametrize(
    "text, suffix",
    [
        ('puts("// What is");\n', ".cpp"),
        ('auto text = R"(// What is taken apart)";\n', ".cpp"),
        ("// The argument `patience` is in seconds.\n", ".h"),
        ("// Offsets, and whatever is parted.\n", ".h"),
        ('x = f(\n    "What is"\n)\n', ".py"),
        ('x = """\n# What is\n"""\n', ".py"),
        ("# What works where\n\n```python\n# taken apart\n```\n", ".md"),
        ("Text.\n\n<!-- BEGIN text X -->\ntaken apart\n<!-- END -->\n", ".md"),
    ],
)
def test_code_strings_and_right_words_are_left_alone(text, suffix):
    assert old(text, suffix) == []


def test_a_finding_names_the_term_to_use():
    assert [finding.new for finding in findings("// A line of weights.\n", ".h")] == ["row of W"]


def test_kernels_sources_and_pages_are_read():
    read = set(files())
    assert {"README.md", "docs/inside.md", "kernels/linalg/lu.metal"} <= read
    assert {"csrc/ops/linalg/lu.mm", "python/metalops/__init__.py"} <= read
    assert not any(path.startswith(("tests/", "benchmarks/")) for path in read)
