"""What the build helper does on macOS, tried anywhere: the commands it runs, with stand-ins for Apple's tools."""

import os
import platform
import shlex
import shutil
import sys
import types

import pytest
from metalops.build import BuildExtension, MetalExtension, compilers, metal_sources, ninja, paths
from metalops.build import extension as build_extension
from setuptools import Distribution

# Stands in for xcrun: records its arguments and writes the file named after -o.
XCRUN = """\
#!{python}
import sys
with open({log!r}, "a") as log:
    log.write(" ".join(sys.argv[1:]) + "\\n")
works = {works} and "-std=metal4.0" not in sys.argv or {works} == "tensors"
if works:
    open(sys.argv[sys.argv.index("-o") + 1], "w").close()
sys.exit(0 if works else 1)
"""


@pytest.fixture
def apple(monkeypatch, tmp_path):
    """Makes the helper believe that it runs on macOS; call it with whether Apple's Metal compiler works, or with
    "tensors" for one that knows Metal 4.0 too."""

    def pretend(works):
        tools = tmp_path / "tools"
        tools.mkdir()
        log = tmp_path / "log"
        log.write_text("")
        xcrun = tools / "xcrun"
        xcrun.write_text(XCRUN.format(python=sys.executable, log=str(log), works=repr(works)))
        xcrun.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setattr(paths, "software_device", lambda: False)
        compilers.metal_compiler.cache_clear()
        return log

    yield pretend
    compilers.metal_compiler.cache_clear()


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "family.metal"
    path.write_text("kernel void nothing(device float* x [[buffer(0)]]) { x[0] = 0; }\n")
    return str(path)


def commands_of(extension, folder):
    """The commands that building the extension runs, as lists of words; none of them is run."""
    command = BuildExtension(Distribution({"ext_modules": [extension]}))
    command.build_temp = str(folder / "temp")
    command.build_lib = str(folder / "lib")
    command.ensure_finalized()
    graph = {}

    class Recorder(ninja.Graph):
        def run(self, *_):
            graph.update(self._steps)
            return 0.0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build_extension, "Graph", Recorder)
        command.run()
    words = [step.split("words = ")[1].splitlines()[0] for step in graph.values()]
    return [shlex.split(line.replace("$$", "$")) for line in words]


def test_the_metal_compiler_is_tried_with_the_oldest_metal_and_macos(apple):
    log = apple(works=True)
    assert metal_sources.library_suffix() == ".metallib"
    assert "-std=metal3.1 -mmacosx-version-min=14.0 -fno-fast-math" in log.read_text()


def test_a_metallib_is_built_with_the_same_flags(apple, source, tmp_path):
    log = apple(works=True)
    metal_sources.library_suffix()
    log.write_text("")
    out, build = tmp_path / "out", tmp_path / "build"
    (library,) = metal_sources.build_libraries([source], ["headers"], str(out), str(build))
    assert library == str(out / "family.metallib")
    assert os.path.exists(library)
    compile, link = log.read_text().splitlines()
    assert compile.startswith(
        "-sdk macosx metal -std=metal3.1 -mmacosx-version-min=14.0 -fno-fast-math"
    )
    assert f"-I {os.path.abspath('headers')} -c {source}" in compile
    assert link.startswith("-sdk macosx metallib")


def test_without_a_working_metal_compiler_only_the_source_is_embedded(apple, source, tmp_path):
    apple(works=False)
    out = str(tmp_path / "out")
    assert metal_sources.library_suffix() is None
    assert metal_sources.build_libraries([source], [], out, str(tmp_path / "build")) == []
    (registration,) = metal_sources.write_registrations(
        [source], [], "x.kernels", str(tmp_path / "build")
    )
    with open(registration) as f:
        text = f.read()
    assert "kernel void nothing" in text
    assert text.rstrip().endswith('"");')


def test_with_one_the_registration_names_the_metallib(apple, source, tmp_path):
    apple(works=True)
    (registration,) = metal_sources.write_registrations([source], [], "x.kernels", str(tmp_path))
    with open(registration) as f:
        assert f.read().rstrip().endswith('"x.kernels/family.metallib");')


@pytest.mark.parametrize("works", [False, True, "tensors"])
def test_a_source_that_asks_for_tensors_is_there_twice(works, apple, source, tmp_path):
    log = apple(works)
    with open(source, "a") as f:
        f.write("#if defined(__HAVE_TENSOR__)\n#endif\n")
    (registration,) = metal_sources.write_registrations([source], [], "x.kernels", str(tmp_path))
    with open(registration) as f:
        without, tensors = f.read().split("static metalops")[1:]
    assert 'source_0("family"' in without and "#undef __HAVE_TENSOR__" in without
    assert 'source_1("family.tensors"' in tensors and "#error" in tensors
    log.write_text("")
    built = metal_sources.build_libraries([source], [], str(tmp_path), str(tmp_path / "build"))
    names = {False: [], True: ["family"], "tensors": ["family", "family.tensors"]}[works]
    assert built == [str(tmp_path / f"{name}.metallib") for name in names]
    assert ("-std=metal4.0 -mmacosx-version-min=26.0 -fno-fast-math" in log.read_text()) == (
        works == "tensors"
    )
    assert ("family.tensors.metallib" in tensors) == (works == "tensors")


def test_an_extension_links_metal_and_no_host_library(apple, source, tmp_path, monkeypatch):
    apple(works=False)
    stub = tmp_path / "stub.mm"
    stub.write_text("")
    extension = MetalExtension("package.name", [source, str(stub)])
    command = BuildExtension(Distribution({"ext_modules": [extension]}))
    command.ensure_finalized()
    command.build_temp = str(tmp_path / "temp")
    linked = {}

    def build(self, ext):
        linked.update(
            sources=ext.sources,
            link=ext.extra_link_args,
            compile=ext.extra_compile_args,
            language=self.compiler.compiler_so,
        )

    command.compiler = types.SimpleNamespace(compiler_so=("c++",))
    command._graph = ninja.Graph()
    monkeypatch.setattr(BuildExtension.__mro__[1], "build_extension", build)
    command.build_extension(extension)
    assert linked["link"] == ["-framework", "Metal", "-framework", "Foundation"]
    assert "-DFMT_HEADER_ONLY=1" in linked["compile"]
    assert not any("arc" in flag for flag in linked["compile"])
    assert list(linked["language"]) == ["c++"]
    names = [os.path.basename(path) for path in linked["sources"]]
    assert names == ["stub.mm", "kernel_sources.cpp", "metalops_runtime.cpp"]


def test_sources_keep_their_language_and_no_header_is_precompiled(apple, tmp_path):
    apple(works=False)
    stub = tmp_path / "stub.mm"
    stub.write_text("#include <torch/library.h>\n")
    header = tmp_path / "header.h"
    header.write_text("#include <torch/library.h>\n")
    extension = MetalExtension("package.name", [str(stub)])
    extension.precompiled_header = str(header)
    commands = commands_of(extension, tmp_path)
    (compile,) = [words for words in commands if str(stub) in words]
    assert "-x" not in compile and "-include" not in compile
    assert not any("header.h" in word for words in commands for word in words)


def test_optimized_sources_are_compiled_at_o2_whatever_the_flags_say(apple, tmp_path):
    apple(works=False)
    sources = [tmp_path / "loop.mm", tmp_path / "checks.mm"]
    for source in sources:
        source.write_text("")
    extension = MetalExtension("package.name", [*map(str, sources)], extra_compile_args=["-O1"])
    extension.optimized = [str(sources[0])]
    commands = commands_of(extension, tmp_path)
    levels = [
        [word for word in words if word.startswith("-O")][-1]
        for source in sources
        for words in commands
        if str(source) in words
    ]
    assert levels == ["-O2", "-O1"]


def test_clang_is_preferred_to_a_gcc_on_the_path(apple, monkeypatch, tmp_path):
    apple(works=False)
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(compilers.shutil, "which", lambda name, path=None: f"/usr/bin/{name}")
    monkeypatch.setattr(compilers, "_cxx_works", lambda command: True)
    assert compilers.find_cxx() == "clang++"
    monkeypatch.setattr(paths, "software_device", lambda: True)
    assert compilers.find_cxx() == "g++"


def test_a_missing_compiler_is_installed_with_xcode_select(apple, monkeypatch, tmp_path):
    apple(works=False)
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(compilers.MissingCompiler, match="xcode-select --install"):
        compilers.find_cxx()


def test_one_architecture_and_macos_14_are_built_for(apple, monkeypatch):
    apple(works=False)
    monkeypatch.delenv("ARCHFLAGS", raising=False)
    monkeypatch.delenv("MACOSX_DEPLOYMENT_TARGET", raising=False)
    monkeypatch.setattr(compilers, "find_cxx", lambda: "c++")
    with compilers.build_environment() as environment:
        assert os.environ["ARCHFLAGS"] == f"-arch {platform.machine()}"
        assert os.environ["MACOSX_DEPLOYMENT_TARGET"] == "14.0"
        assert environment["ARCHFLAGS"] == os.environ["ARCHFLAGS"]
    assert "ARCHFLAGS" not in os.environ


@pytest.mark.parametrize(
    "chosen, pythons, expected",
    [("15.1", "10.9", "15.1"), (None, "10.13", "14.0"), (None, "15", "15")],
)
def test_the_macos_that_is_chosen_or_that_python_needs_is_kept(
    monkeypatch, chosen, pythons, expected
):
    monkeypatch.setattr(compilers.sysconfig, "get_config_var", lambda name: pythons)
    environment = {"MACOSX_DEPLOYMENT_TARGET": chosen} if chosen else {}
    compilers.set_macos_target(environment)
    assert environment["MACOSX_DEPLOYMENT_TARGET"] == expected


def test_ninja_of_a_user_installation_is_found(monkeypatch, tmp_path):
    scripts = tmp_path / "user scripts"
    scripts.mkdir()
    (scripts / "ninja").write_text("#!/bin/sh\n")
    (scripts / "ninja").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setattr(compilers, "find_cxx", lambda: "c++")
    monkeypatch.setattr(compilers.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(compilers.sysconfig, "get_path", lambda name, scheme: str(scripts))
    with compilers.build_environment():
        assert shutil.which("ninja") == str(scripts / "ninja")
