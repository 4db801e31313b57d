"""Subscripts of several indices become calls, character for character."""

import pytest
from metalops.kernel.torch_metal_kernel.subscripts import as_calls


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A[k, m] = 1;", "A(k, m) = 1;"),
        ("A[k] = B [ i , j ];", "A[k] = B ( i , j );"),
        ("A[B[i, j], C[k]]", "A(B(i, j), C[k])"),
        ("A[B[i, j]]", "A[B(i, j)]"),
        ("A[f(i, j)]", "A[f(i, j)]"),
        ("A[f(i, j), 2]", "A(f(i, j), 2)"),
        ("A[{i, j}]", "A[{i, j}]"),
        ("A[metal::array<uint, 2>{{i, j}}]", "A[metal::array<uint, 2>{{i, j}}]"),
        ("t[max<vec<int, 2>>(a, b).x]", "t[max<vec<int, 2>>(a, b).x]"),
        ("A[i < n, j]", "A(i < n, j)"),
        ("A[i<n ? i : 0, j > 0]", "A(i<n ? i : 0, j > 0)"),
        ("f(x)[i, j] + t[0][i, j]", "f(x)(i, j) + t[0](i, j)"),
        ("A[i, // [a, b]\n  j /* ] */]", "A(i, // [a, b]\n  j /* ] */)"),
        ('A["[,".size]', 'A["[,".size]'),
        ("A[',', j]", "A(',', j)"),
        ("uint i [[thread_position_in_grid, x]]", "uint i [[thread_position_in_grid, x]]"),
        ("auto [a, b] = p; return [a, b] { return a; }();",) * 2,
        ("#define AT(i, j) A[i, j]", "#define AT(i, j) A(i, j)"),
        ("float a[2] = {x[i, 0], x[i, 1]};", "float a[2] = {x(i, 0), x(i, 1)};"),
    ],
)
def test_only_subscripts_of_several_indices_change(text, expected):
    assert as_calls(text) == expected


@pytest.mark.parametrize("text", ["A[i, j", "A[i, j)", "A i, j]", "x[a, b]; }"])
def test_brackets_that_do_not_match_are_left_to_the_compiler(text):
    assert as_calls(text) == text
