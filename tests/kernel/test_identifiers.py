"""Names in Metal text."""

import pytest
from metalops.kernel.identifiers import check_distinct, check_identifier, mentioned


def test_mentioned_takes_whole_identifiers_outside_comments_and_literals():
    text = "float ab = a_b + 1.0h + 0x1Fu; // comment\n/* other\nlines */ f(\"text\", 'c'); x2 = 1e-3f + y.z;"
    assert mentioned(text) == {"float", "ab", "a_b", "f", "x2", "y", "z"}


@pytest.mark.parametrize(
    ("name", "error"),
    [
        (3, TypeError),
        ("", ValueError),
        ("2x", ValueError),
        ("a b", ValueError),
        ("half", ValueError),
        ("__x", ValueError),
    ],
)
def test_a_name_that_metal_cannot_use_is_refused(name, error):
    with pytest.raises(error, match=r"op: input name"):
        check_identifier("op", "input name", name)


def test_a_repeated_name_is_refused_with_both_places():
    with pytest.raises(ValueError, match="'x' occurs twice in input names and output names"):
        check_distinct("op", [("input names", ["x", "y"]), ("output names", ["x"])])
