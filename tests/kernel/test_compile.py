"""Compiling generated Metal text."""

import threading

import pytest
import torch
from metalops import _patience
from metalops.kernel.compile import compile_library, user_text

KERNEL = "kernel void f(device float* x [[buffer(0)]], uint i [[thread_position_in_grid]]) { x[i] += %d; }"


def test_the_same_text_gives_the_same_library_in_all_threads():
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(compile_library("f", KERNEL % 1)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert all(library is found[0] for library in found)
    x = torch.zeros(3, device="mps")
    found[0].f(x)
    assert x.tolist() == [1, 1, 1]


def test_an_error_shows_the_line_of_the_users_own_text():
    text = "#include <metal_stdlib>\n" + user_text(
        'my "op".source', "float g() {\n  return missing;\n}"
    )
    with pytest.raises(SyntaxError, match=r"my .*op.*\.source:2:10: error: .*missing"):
        compile_library("my op", text)


@pytest.mark.parametrize(("quiet", "expected"), [("0", "metalops: compiling f ...\n"), ("1", "")])
def test_a_slow_compile_says_so_unless_quiet(quiet, expected, monkeypatch, capfd):
    monkeypatch.setattr(_patience, "_PATIENCE", 0.01)
    monkeypatch.setenv("METALOPS_QUIET", quiet)
    source = f"// {quiet}\n" + KERNEL % 1

    def slow(text):
        threading.Event().wait(0.2)

    monkeypatch.setattr(torch.mps, "compile_shader", slow)
    compile_library("f", source)
    assert capfd.readouterr().err == expected
