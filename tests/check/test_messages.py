"""Errors of g++ and of clang, and the places that they belong to."""

from metalops.msl.check import check_source, compiled
from metalops.msl.check.messages import Message, errors, place_of
from metalops.msl.source.locations import Position

GNU = """\
In file included from /tmp/k.cpp:1:
/include/max.h: In instantiation of 'T max(T, T) [with T = S]':
/tmp/k.cpp:9:12:   required from 'void k(T) [with T = S]'
/tmp/k.cpp:20:3:   required from here
/include/max.h:5:12: error: no match for 'operator<'
/tmp/k.cpp:30:4: warning: something
/tmp/k.cpp:31:7: error: narrowing conversion of 'n' from 'int' to 'short int' [-Werror=narrowing]
"""
CLANG = """\
In file included from /tmp/k.cpp:1:
/include/max.h:5:12: error: invalid operands to binary expression
/tmp/k.cpp:9:12: note: in instantiation of function template specialization 'max<S>' requested here
/tmp/k.cpp:2:1: note: candidate function not viable
/tmp/k.cpp:20:3: note: in instantiation of function template specialization 'k<S>' requested here
/tmp/k.cpp:31:7: error: narrowing [-Wc++11-narrowing]
2 errors generated.
"""


def test_an_error_of_gnu_belongs_to_what_required_the_template():
    assert errors(GNU, "/tmp/k.cpp") == [
        Message("no match for 'operator<'", ((9, 12), (20, 3)), ()),
        Message("narrowing conversion of 'n' from 'int' to 'short int'", ((31, 7),), ()),
    ]


def test_an_error_of_clang_belongs_to_where_the_template_was_instantiated():
    first, second = errors(CLANG, "/tmp/k.cpp")
    assert first.places == ((9, 12), (20, 3))
    assert first.notes[1] == "candidate function not viable"
    assert second == Message("narrowing", ((31, 7),), ())


def test_the_place_is_the_first_in_a_file_that_is_wanted():
    places = {(1, 1): None, (2, 1): Position("theirs.h", 2, 1), (3, 1): Position("k.metal", 3, 1)}

    def place(*given):
        return place_of(
            Message("no", given, ()), lambda *at: places[at], lambda file: file == "k.metal"
        )

    assert place((1, 1), (2, 1), (3, 1)) == places[3, 1]
    assert place((1, 1), (2, 1)) == places[2, 1]
    assert place((1, 1)) is None


def test_the_compiler_is_given_each_kernel_once(monkeypatch):
    """The loops over the threads of a group, in which kernels with barriers run, would be most of its time."""
    given = []
    compile_ = compiled._compile
    monkeypatch.setattr(
        compiled, "_compile", lambda code, *rest: given.append(code.text) or compile_(code, *rest)
    )
    source = """
        kernel void meet(device float* x, uint i [[thread_position_in_threadgroup]]) {
          x[i] += 1;
          threadgroup_barrier(metal::mem_flags::mem_device);
          x[i] += x[0];
          undeclared();
        }"""
    found = check_source("#include <metal_stdlib>\n" + source)
    assert ["undeclared" in f.sentence for f in found] == [True]
    assert len(given) == 1 and "in_group" not in given[0]
