"""`import metalops` loads what it needs at once and nothing that it may need later."""

import subprocess
import sys

import metalops
import pytest

SCRIPT = """
import sys
import torch

opened = []
sys.addaudithook(lambda event, arguments: opened.append(str(arguments[0])) if event == "open" else None)
before = set(sys.modules)
import metalops

print(*sorted(set(sys.modules) - before))
print(*[name for name in opened if name.endswith((".yaml", ".json", ".metal"))])
"""
LATER = {
    "argparse",
    "setuptools",
    "torch._inductor",
    "torch._dynamo",
    "torchgen",
    "tree_sitter",
    "yaml",
    "metalops._cli.coverage",
    "metalops._torch.fast_path",
    "metalops.build",
    "metalops.kernel",
    "metalops.msl",
    "metalops.testing",
}


@pytest.mark.full
def test_import_loads_nothing_that_takes_long():
    command = [sys.executable, "-c", SCRIPT]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    loaded, opened = output.split("\n")[:2]
    assert LATER & set(loaded.split()) == set()
    assert opened == ""


@pytest.mark.full
def test_what_is_loaded_later_is_there_when_it_is_used():
    script = """if True:
        import metalops
        assert set(metalops.__all__) <= set(dir(metalops))
        print(*[name for name in metalops.__all__ if not hasattr(metalops, name)])
        from metalops import functor
        assert functor is metalops.functor is metalops.kernel.functor"""
    command = [sys.executable, "-c", script]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "\n"


def test_a_name_that_metalops_lacks():
    with pytest.raises(AttributeError, match="module 'metalops' has no attribute 'metal_kernels'"):
        _ = metalops.metal_kernels
