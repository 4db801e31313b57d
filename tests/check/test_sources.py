"""Nothing is found in sources that Apple's compiler is known to take, nor in any Metal source of
this repository.
"""

import ast
import glob
import os
import re

import pytest
from metalops.msl.check import check_source, compiled, opencl
from metalops.msl.check.cli import main
from metalops.msl.source.preprocess import torch_include

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
METAL_KERNEL = os.path.join(ROOT, "python", "metalops", "kernel", "metal_kernel")
HEADER = "#include <metal_stdlib>\nusing namespace metal;\n"
TENSORS = """#include <metal_stdlib>
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
using namespace metal;
using namespace mpp::tensor_ops;
"""
MENTIONS_TENSORS = re.compile(
    r"\b(?:dextents|tensor_inline|matmul2d|convolution2d|packed_numeric_type)\b"
)

# Sources in tests that are wrong on purpose, or that test what only newer Metal takes.
ON_PURPOSE = {
    "tests/cuda/test_compile.py": {"cpp17", "threadgroup-zeros"},
    "tests/cuda/test_tensors.py": {"cooperative-capacity"},
    "tests/device/test_streams.py": {"maybe-divergent-barrier"},
    "tests/exec/device_program.metal": {"divergent-barrier"},
    "tests/exec/test_barriers.py": {"divergent-barrier", "maybe-divergent-barrier"},
    "tests/exec/test_endless.py": {"maybe-divergent-barrier"},
    "tests/exec/test_launches.py": {"recursion"},  # the stack of a fiber
    "tests/exec/test_on_demand.py": {"asm", "exception", "kernel-argument", "kernel-overload"},
    "tests/exec/test_types.py": {"vector-size"},  # of Metal 4.0
    "tests/fuzz/hostile.py": {"asm", "kernel-argument"},
    "tests/fuzz/test_front_end.py": {"unknown-attribute"},
    "tests/metal/test_unaligned_vectors.py": {"misaligned-vector", "vector-size"},
    "tests/msl/test_parsed_once.py": {"program-scope"},  # a part of a source
    "tests/msl/test_address_spaces.py": {"address-space-conversion"},
    "tests/msl/test_calls.py": {"function-pointer"},
    "tests/msl/test_command_line.py": {"kernel-argument", "maybe-divergent-barrier"},
    "tests/msl/test_errors.py": {"threadgroup-variable", "kernel-argument"},
    "tests/exec/test_uses.py": {"cpp17"},
    "tests/msl/test_expressions.py": {"cpp17"},
    "tests/msl/test_newer_constructs.py": {"cpp17", "init-statement", "vector-size"},
    "tests/msl/test_partial_specialisations.py": {"cpp17"},
    "tests/msl/test_threadgroup.py": {"cpp17", "threadgroup-zeros"},
    "tests/tensorops/test_group_loops.py": {"cooperative-conversion"},
    "tests/trace/test_trace.py": {"divergent-barrier"},
}


def _metal_folders():
    """Every folder of the repository that holds Metal files, the gallery of wrong kernels and parts of files aside."""
    for folder, folders, files in os.walk(ROOT):
        folders[:] = [f for f in folders if not f.startswith(".") and f not in ("build", "gallery")]
        if folder == METAL_KERNEL:
            folders.clear()
        if any(f.endswith(".metal") for f in files):
            yield os.path.relpath(folder, ROOT)


def _by_language(folder, suffix):
    """The arguments to check the Metal files of a folder: as Metal 4.0 those that are nothing before it."""
    files = {"3.1": [], "4.0": []}
    for name in sorted(f for f in os.listdir(folder) if f.endswith(suffix)):
        path = os.path.join(folder, name)
        with open(path, encoding="utf-8") as stream:
            text = stream.read()
        is_new = "<metal_tensor>" in text and "__HAVE_TENSOR__" not in text
        files["4.0" if is_new else "3.1"].append(path)
    # Our kernels include each other by their paths from the root.
    return [
        ["-I", ROOT, "--language", language, *paths] for language, paths in files.items() if paths
    ]


KERNEL = re.compile(r"\bkernel\s+void\b|\[\[\s*kernel\b")


def _strings(path):
    """(line, text) of the string literals of a Python file that hold whole kernels."""
    with open(path, encoding="utf-8") as stream:
        text = stream.read()
    # As most files, and to parse them all takes seconds. A letter may precede: "\\nkernel void".
    if not re.search(r"kernel\s+void\b|\[\[\s*kernel\b", text):
        return
    tree = ast.parse(text)
    pieces = {id(n) for f in ast.walk(tree) if isinstance(f, ast.JoinedStr) for n in ast.walk(f)}
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in pieces
        ):
            is_kernel = KERNEL.search(node.value) and "{" in node.value
            if is_kernel and not re.search(r"^(?:import|from) ", node.value, re.MULTILINE):
                yield node.lineno, node.value


def _python_files():
    for folder, folders, files in os.walk(os.path.join(ROOT, "tests")):
        folders[:] = [f for f in folders if not f.startswith(".") and f not in ("build", "check")]
        yield from (
            os.path.relpath(os.path.join(folder, f), ROOT) for f in files if f.endswith(".py")
        )


@pytest.fixture(params=["rules", pytest.param("compilers", marks=pytest.mark.nightly)])
def opinions(request, monkeypatch):
    """Our rules alone, or those of g++ and clang too, which take longer. g++ has compiled our kernels when it built them."""
    if request.param == "rules":
        for compiler in (compiled, opencl):
            monkeypatch.setattr(compiler, "check", lambda *_: [])


@pytest.mark.full
@pytest.mark.usefixtures("opinions")
@pytest.mark.parametrize(
    ("folder", "suffix"),
    [
        *((folder, ".metal") for folder in sorted(_metal_folders())),
        *(
            pytest.param(folder, ".h", marks=pytest.mark.nightly)
            for folder in sorted(_metal_folders())
            if glob.glob(os.path.join(ROOT, folder, "*.h"))
        ),
    ],
)
def test_nothing_is_found_in_the_metal_files_of_the_repository(folder, suffix, capsys):
    """Those of a folder check the headers that they include; by itself each header is checked, too."""
    on_purpose = set().union(
        *(
            rules
            for file, rules in ON_PURPOSE.items()
            if re.fullmatch(rf"{folder}/\w+\{suffix}", file)
        )
    )
    path = os.path.join(ROOT, folder)
    statuses = [main(arguments) for arguments in _by_language(path, suffix)]
    assert any(statuses) == bool(on_purpose)
    assert set(re.findall(r": (?:error|warning) \[(.*?)\]", capsys.readouterr().out)) == on_purpose


def test_nothing_is_found_in_the_parts_that_metal_kernel_puts_together():
    folder = os.path.join(METAL_KERNEL, "include")
    text = HEADER
    for file in sorted(os.listdir(folder)):
        with open(os.path.join(folder, file), encoding="utf-8") as stream:
            text += stream.read()
    assert check_source(text) == []


def test_nothing_is_found_in_the_headers_for_kernels(capsys):
    assert main([os.path.join(ROOT, "python", "metalops", "include")]) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.full
@pytest.mark.parametrize("folder", ["c10/metal", "ATen/native/mps/kernels"])
def test_nothing_is_found_in_torchs_kernel_headers(folder, capsys):
    assert main([os.path.join(torch_include(), folder)]) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "file", sorted(f for f in _python_files() if list(_strings(os.path.join(ROOT, f))))
)
def test_nothing_is_found_in_the_metal_sources_of_python_tests(file):
    """By reading: the tests themselves compile these sources."""
    on_purpose = ON_PURPOSE.get(file, set())
    found, seen = [], set()
    for line, text in _strings(os.path.join(ROOT, file)):
        has_tensors = MENTIONS_TENSORS.search(text)
        header = TENSORS if has_tensors else HEADER
        source = text if "#include" in text else header + text
        language = 410 if has_tensors else 320
        for finding in check_source(source, language=language, compiles=False):
            seen.add(finding.rule)
            # The tests write the headers that some sources include.
            if finding.rule not in {"preprocessor", *on_purpose}:
                found.append((line, finding.rule, finding.line, finding.sentence))
    assert found == [], "mend it, or add the rule to ON_PURPOSE"
    assert on_purpose <= seen, "ON_PURPOSE names a rule that this file keeps to"
