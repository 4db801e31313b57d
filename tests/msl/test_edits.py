"""Edits by range, and the way back from the result."""

from metalops.msl.dialect.edits import Edits


def test_nested_wraps_and_replacements():
    text = "a.xy + b;\n"
    edits = Edits(text)
    edits.wrap(0, 8, "sum(", ")")
    edits.wrap(0, 1, "get(", ")")
    edits.erase(1, 4)
    edits.replace(5, 6, ",")
    assert edits.apply()[0] == "sum(get(a) , b);\n"
    assert edits.text_of(0, 4) == "get(a)"
    assert edits.text_of(7, 8) == "b"


def test_edits_inside_what_is_replaced_are_dropped():
    edits = Edits("f(x + y) z")
    edits.wrap(2, 7, "<", ">")
    edits.replace(0, 8, "gone")
    edits.wrap(9, 10, "(", ")")
    assert edits.apply()[0] == "gone (z)"


def test_lines_are_kept():
    edits = Edits("one\ntwo\nthree\n")
    edits.replace(1, 9, "X")
    assert edits.apply()[0] == "oX\n\nhree\n"
    edits = Edits("one\ntwo")
    edits.blank(0, 7)
    assert edits.apply()[0] == "   \n   "


def test_appending_comes_after_what_closes_there():
    edits = Edits("f(a)")
    edits.append(3, ", b")
    edits.wrap(2, 3, "(", ")")
    edits.wrap(0, 4, "{", "}")
    assert edits.apply()[0] == "{f((a), b)}"
    assert edits.text_of(2, 3) == "(a)"


def test_the_way_back():
    text = "alpha beta gamma"
    edits = Edits(text)
    edits.replace(6, 10, "B")
    edits.insert(11, "<<")
    result, runs = edits.apply()
    assert result == "alpha B <<gamma"
    at = result.index("gamma") + 2
    start, source, copied = [r for r in runs if r[0] <= at][-1]
    assert copied and source + at - start == text.index("gamma") + 2


def test_of_wraps_of_equal_ranges_the_later_one_encloses():
    edits = Edits("a b")
    edits.wrap(0, 3, "f(", ")")
    assert edits.text_of(0, 3) == "f(a b)"
    edits.wrap(0, 3, "<", ">")
    edits.replace(1, 2, ",")
    assert edits.apply()[0] == "<f(a,b)>"
