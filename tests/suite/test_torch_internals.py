"""What is used of torch beside its public interface stands in one place for Python and in two headers for C++."""

import ast
import importlib.util
import re
import sys
from pathlib import Path

import metalops
import pytest
import torch
from metalops._torch import internals, versions

PACKAGE = Path(metalops.__file__).parent
INTERNALS = "_torch/internals.py"
ROOT = Path(__file__).parents[2]
INCLUDE = "python/metalops/include"

# Names with an underscore that are not torch's, and those of torch that have to stand elsewhere: why.
EXCEPTIONS = {
    ("_locks.py", "_at_fork_reinit"): "of the standard library's locks",
    ("_sanitize.py", "_args_from_interpreter_flags"): "of the standard library's subprocess",
    ("_sanitize.py", "_getframe"): "of the standard library's sys",
    (
        "build/extension.py",
        "_add_compile_flag",
    ): "a method of the class there that has torch's as its base",
    ("build/extension.py", "_get_cc_args"): "of setuptools",
    ("build/extension.py", "_get_inplace_equivalent"): "of setuptools",
    ("build/extension.py", "_setup_compile"): "of setuptools",
    ("integrations/transformers.py", "_metal_kernel"): "of transformers",
    ("kernel/torch_metal_kernel/torch_metal_kernel.py", "_asdict"): "public, of a named tuple",
    ("ops/_cuda/attention.py", "_asdict"): "public, of a named tuple",
}


def is_private(name):
    return name.startswith("_") and not name.startswith("__")


def own_names(trees):
    """The names that the package itself gives to functions, classes, variables, attributes and modules."""
    names = {path.stem for path in PACKAGE.rglob("*.py")} | {"_C"}
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
            elif isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("self", "cls"):
                if isinstance(node.ctx, ast.Store):
                    names.add(node.attr)
    return names


def private_names(tree, own):
    """(line, name) of each name with an underscore that is not the package's own, in imports, attributes and texts."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not node.level and node.module:
            whole = [(node.module, alias.name) for alias in node.names]
            if node.module.partition(".")[0] == "torch":
                names = [name for pair in whole for part in pair for name in part.split(".")]
                yield from ((node.lineno, name) for name in names if is_private(name))
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] == "torch":
                    names = filter(is_private, alias.name.split("."))
                    yield from ((node.lineno, name) for name in names)
        elif isinstance(node, ast.Attribute) and is_private(node.attr):
            base = ast.unparse(node.value)
            if base.startswith("torch.ops."):
                continue  # an operator
            if base.partition(".")[0] == "torch" or node.attr not in own:
                yield node.lineno, node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from ((node.lineno, name) for name in re.findall(r"\btorch\.(_\w+)", node.value))


@pytest.mark.full
def test_python_takes_torchs_internals_from_one_module():
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in PACKAGE.rglob("*.py")}
    own = own_names(trees.values())
    found = {
        (path.relative_to(PACKAGE).as_posix(), name): line
        for path, tree in trees.items()
        if path != PACKAGE / INTERNALS
        for line, name in private_names(tree, own)
    }
    assert not [f"{file}:{found[file, name]}: {name}" for file, name in found.keys() - EXCEPTIONS]
    assert not EXCEPTIONS.keys() - found.keys(), "exceptions that nothing needs"


def test_cpp_tells_versions_of_torch_apart_in_named_places():
    """software_device/ holds replacements of torch's own headers, with the declarations of each version."""
    places = (
        "csrc/host/torch_internals",
        f"{INCLUDE}/metalops/torch_internals.h",
        f"{INCLUDE}/software_device/",
    )
    found = {
        path
        for folder in ("csrc", "kernels", INCLUDE)
        for file in (ROOT / folder).rglob("*.*")
        if "TORCH_VERSION_" in file.read_text(encoding="utf-8")
        and not (path := file.relative_to(ROOT).as_posix()).startswith(places)
    }
    assert not found


@pytest.mark.parametrize(
    "text",
    [
        "from torch._guards import detect_fake_mode",
        "from torch.autograd.function import _SingleLevelFunction",
        "import torch.utils._pytree as pytree",
        "torch._C.DispatchKey",
        "has = torch._C._dispatch_has_kernel",
        "overload._schema",
        "import_module('torch._inductor.ir')",
    ],
)
def test_internals_are_noticed(text):
    assert list(private_names(ast.parse(text), own={"_C", "_call"}))


def test_operators_and_own_names_are_not_internals():
    text = "torch.ops.aten._softmax(x); torch.softmax(x); self._call(); import metalops._C"
    assert not list(private_names(ast.parse(text), own={"_call"}))


def load_again():
    spec = importlib.util.spec_from_file_location("metalops._torch.again", PACKAGE / INTERNALS)
    spec.loader.exec_module(importlib.util.module_from_spec(spec))


def test_what_another_torch_lacks_is_named(monkeypatch):
    load_again()
    monkeypatch.delattr("torch._C._dispatch_dump")
    monkeypatch.setitem(sys.modules, "torch._guards", None)
    monkeypatch.setattr(torch, "__version__", "3.1.4")
    with pytest.raises(ImportError) as error:
        load_again()
    assert str(error.value) == (
        "torch 3.1.4 lacks what metalops uses of its internals: torch._C._dispatch_dump, "
        f"torch._guards.detect_fake_mode; this metalops knows torch {versions.listed()}, so install one of these versions "
        "or a metalops for your torch."
    )


@pytest.mark.parametrize(
    ("function", "lacking"),
    [
        ("inductor_lowering", "torch._inductor.lowering.fallback_handler"),
        ("opinfo_classes", "torch.testing._internal.opinfo.core.OpInfo"),
    ],
)
def test_what_another_torch_lacks_is_named_when_it_is_asked_for(monkeypatch, function, lacking):
    ask = getattr(internals, function)
    assert all(ask())
    monkeypatch.delattr(lacking)
    with pytest.raises(ImportError, match=f"lacks what metalops uses of its internals: {lacking};"):
        ask()
    monkeypatch.undo()
    assert all(ask())


def test_the_installed_torch_is_one_that_is_known():
    assert versions.is_supported(torch.__version__)


ROOT = Path(__file__).parents[2]
HEADERS = {"csrc/host/torch_internals.h", "python/metalops/include/metalops/torch_internals.h"}

CXX_EXCEPTIONS = {
    "csrc/host/device/generator.cpp": "defines functions that torch declares in mps::detail",
    "python/metalops/include/metalops/autograd.cpp": "nodes and edges of the graph are what it is about",
}

# Namespaces that are not for users, objects behind tensors and storages, members and functions with an underscore.
CXX_INTERNAL = re.compile(
    r"(?:\b(?:at|c10|torch)::(?:\w+::)*|(?<![\w:])(?:mps|autograd|functionalization)::)(?:detail|impl|internal|raw)\b"
    r"|\bunsafeGet\w*Impl\b|(?:->|\.)_[a-z]\w*(?=\()|\bc10::(?:\w+::)*_\w+|\bcaffe2\b"
    r"|#include <(?:ATen|c10|torch)/(?:\w+/)*(?:detail|impl)/"
)


def cxx_internals(text):
    """What a C++ source uses of torch's internals, comments aside."""
    return CXX_INTERNAL.findall(re.sub(r"//.*", "", text))


@pytest.mark.skipif(not (ROOT / "csrc").is_dir(), reason="the sources are not here")
def test_cxx_takes_torchs_internals_from_two_headers():
    folders = (ROOT / "csrc", ROOT / "python/metalops/include/metalops")
    paths = [
        p for folder in folders for p in folder.rglob("*") if p.suffix in (".cpp", ".h", ".mm")
    ]
    used = {
        path.relative_to(ROOT).as_posix(): cxx_internals(path.read_text(encoding="utf-8"))
        for path in paths
    }
    found = {file: names for file, names in used.items() if names}
    allowed = HEADERS | CXX_EXCEPTIONS.keys()
    assert {file: names for file, names in found.items() if file not in allowed} == {}
    assert allowed <= found.keys(), "exceptions that nothing needs"


@pytest.mark.parametrize(
    "text",
    [
        "c10::impl::ExcludeDispatchKeyGuard guard;",
        "return at::detail::empty_cpu(sizes);",
        "torch::autograd::impl::gradient_edge(x)",
        "x.unsafeGetTensorImpl()",
        "impl->_set_conj(true);",
        "c10::ThreadLocalDebugInfo::_pop(kind)",
        "#include <c10/core/impl/LocalDispatchKeySet.h>",
    ],
)
def test_cxx_internals_are_noticed(text):
    assert cxx_internals(text)


def test_cxx_operators_and_own_names_are_not_internals():
    assert not cxx_internals("at::_softmax(x); metalops::detail::f(); // c10::impl::f()")
