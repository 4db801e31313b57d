"""Extensions with Objective-C: which sources are, what compiles them, and what users read where it cannot be done."""

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest
from metalops import _environment, build
from metalops.build import (
    BuildExtension,
    MetalExtension,
    compilers,
    extension,
    ninja,
    objective_c,
    paths,
)
from metalops.build.mac import compiler
from setuptools import Distribution
from setuptools.errors import CompileError

pytestmark = pytest.mark.skipif(
    sys.platform == "darwin", reason="on a Mac every .mm file is Objective-C++"
)
ROOT = Path(__file__).parents[2]
CLANG = objective_c.find_compiler(_environment.value("OBJCXX"))
needs_clang = pytest.mark.skipif(CLANG is None, reason="no clang++ that compiles Objective-C")

# The text of a source, and its first line that is Objective-C.
SOURCES = {
    "an import of a framework": ("#include <vector>\n#import <Metal/Metal.h>\n", 2),
    "an include of one": ("#include <Foundation/Foundation.h>\n", 1),
    "a statement": ("void f() {\n  @autoreleasepool {\n  }\n}\n", 2),
    "a string": ('auto s = \n @"text";\n', 2),
    "a protocol": ("void f(id<MTLBuffer> b);\n", 1),
    "a block": ("\nauto f = ^{ return 1; };\n", 2),
    "a block with arguments": ("auto f = ^() { return 1; };\n", 1),
    "a class of Foundation": ("\n\nNSString* name;\n", 3),
    "a bridge": ("auto b = (__bridge void*)x;\n", 1),
    "after an operator": ("int f(int a, int b) { return a ^ (b); }\nid<MTLDevice> d;\n", 2),
    "where there is no Mac": ("#ifndef __APPLE__\nid<MTLDevice> d;\n#endif\n", 2),
    "in the other branch": ("#ifdef __OBJC__\n#else\nid<MTLDevice> d;\n#endif\n", 3),
    "an exclusive or": ("int f(int a, int b) { return a ^ (b) ^ {1}.x; }\n", 1),
    "plain C++": ("#include <ATen/ATen.h>\nint f(int a, int b) { return a ^ (b); }\n", None),
    "an import of a header": ("#import <vector>\n", None),
    "a comment": ("// @autoreleasepool\n/* id<MTLBuffer>\n @interface */ int x;\n", None),
    "a text": ('const char* s = "@autoreleasepool { id<MTLDevice> d; }";\n', None),
    "a raw text": ('const char* s = R"metal(\n@interface\n)metal";\n', None),
    "only on a Mac": ("#ifdef __APPLE__\n#import <Metal/Metal.h>\n#endif\nint x;\n", None),
    "only for Objective-C": (
        "#if defined(__OBJC__)\nid<MTLDevice> d;\n#else\nvoid* d;\n#endif\n",
        None,
    ),
    "nested": (
        "#if defined(__APPLE__)\n#if X\nid<MTLDevice> d;\n#endif\n@class A;\n#endif\n",
        None,
    ),
}
del SOURCES["an exclusive or"]  # is no C++


@pytest.mark.parametrize("what", SOURCES)
def test_a_scan_finds_the_first_line_of_objective_c(tmp_path, what):
    text, line = SOURCES[what]
    source = tmp_path / "source.mm"
    source.write_text(text)
    found = objective_c.evidence(str(source))
    assert (found and found.line) == line
    if line:
        assert found.text == text.splitlines()[line - 1].strip()


def test_headers_of_the_project_are_read_and_others_are_not(tmp_path, monkeypatch):
    (tmp_path / "include").mkdir()
    (tmp_path / "source.mm").write_text('#include "own.h"\n#include <foreign.h>\n')
    own, foreign = tmp_path / "include" / "own.h", tmp_path / "site-packages" / "foreign.h"
    foreign.parent.mkdir()
    own.write_text("int x;\n")
    foreign.write_text("#import <Metal/Metal.h>\n")
    folders = [str(own.parent), str(foreign.parent)]
    assert objective_c.evidence(str(tmp_path / "source.mm"), folders) is None
    own.write_text("int x;\n@class Other;\n")
    objective_c._code.cache_clear()
    found = objective_c.evidence(str(tmp_path / "source.mm"), folders)
    assert (found.file, found.line) == (str(own), 2)


def test_plain_objective_c_and_metal_cpp_are_told_by_name_and_header(tmp_path):
    for name, text, is_one in (
        ("a.m", "int x;\n", True),
        ("a.cpp", "#include <Metal/Metal.hpp>\n", True),
        ("b.cpp", "#include <Metal/Metal.h>\n", False),
        ("c.cpp", "#include <simd/simd.h>\n", True),
        ("c.mm", "#include <simd/vector_types.h>\n", True),
        ("d.cpp", "#include <simd/other.h>\n", False),
    ):
        (tmp_path / name).write_text(text)
        assert (objective_c.evidence(str(tmp_path / name)) is not None) == is_one
    assert objective_c.language("a.m")[:2] == ["-x", "objective-c"]
    assert objective_c.language("a.mm")[:2] == ["-x", "objective-c++"]
    assert objective_c.language("a.cpp")[:2] == ["-x", "c++"]


SIMD = """
#include <simd/simd.h>
typedef simd_float3 f3;
static_assert(sizeof(f3) == 16 && sizeof(simd_uchar3) == 4 && sizeof(simd_float2x3) == 32);
extern "C" float value(int what) {
  f3 a = simd_make_float3(1, 2, 2), b = {0, 0, -1};
  simd_float3x3 m = {{a, b, simd_make_float3(simd_make_float2(5, 6), 7)}};
  float values[] = {
      simd_length(a), simd_dot(a, b), simd_cross(a, b).x, simd::normalize(a).z,
      simd_mix(a, b, 0.5f).y, simd_clamp(a, b, a).z, simd_reduce_max(a - b), simd_abs(b).z,
      simd_mul(m, a).x, simd_mul(m, simd_transpose(m)).columns[2][1], simd_sign(b).z,
      simd_mul(matrix_identity_float3x3, m).columns[2].y, simd_fract(a * -0.25f).x};
  return what < int(sizeof(values) / sizeof(float)) ? values[what] : -100;
}
"""


@needs_clang
def test_simd_vectors_have_the_layout_and_the_functions_of_apples(tmp_path):
    source, library = tmp_path / "simd.cpp", tmp_path / "simd.so"
    source.write_text(SIMD)
    headers = ["-I", objective_c.APPLE_HEADERS]
    command = [CLANG, "-std=c++20", *headers, "-shared", "-fPIC", str(source), "-o", str(library)]
    subprocess.run(command, check=True)
    value = ctypes.CDLL(str(library)).value
    value.restype = ctypes.c_float
    found = [round(value(i), 5) for i in range(14)]
    assert found == [3, -2, -2, 0.66667, 1, 2, 3, 1, 11, 46, -1, 6, 0.75, -100]


@pytest.mark.skipif(not (ROOT / "csrc").is_dir(), reason="the sources are not here")
def test_no_source_of_metalops_is_taken_for_objective_c():
    sources = list(ROOT.glob("csrc/ops/**/*.mm"))
    assert len(sources) > 50
    folders = [str(ROOT), *paths.include_paths()]
    assert [s for s in sources if objective_c.evidence(str(s), folders)] == []


@pytest.mark.parametrize("name", ["MPSGraph", "MPSMatrixMultiplication", "MPSNDArray"])
def test_a_class_that_the_device_lacks_is_named_with_its_line(tmp_path, name):
    source = tmp_path / "graph.mm"
    source.write_text(
        f"#import <Metal/Metal.h>\n// [MPSGraph new]\nauto g = [[{name} alloc] init];\n"
    )
    with pytest.raises(CompileError) as raised:
        extension.objective_c_sources([str(source)], [], None)
    text = str(raised.value)
    assert text.endswith(f"graph.mm:3 uses {name}, which the software Metal device does not have.")


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "relu.mm"
    path.write_text("#include <ATen/ATen.h>\n\n#import <Foundation/Foundation.h>\n")
    return str(path)


def test_without_clang_one_sentence_names_the_line_and_what_to_install(
    source, monkeypatch, tmp_path
):
    monkeypatch.delenv("OBJCXX", raising=False)
    monkeypatch.setenv("CXX", "g++")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    found = extension.objective_c_sources([source], [], None)
    with pytest.raises(CompileError) as raised:
        extension.objective_c_command(found, None)
    assert str(raised.value) == (
        "metalops: relu.mm is Objective-C++ (line 3: #import <Foundation/Foundation.h>), which g++ cannot compile; "
        "install clang (apt-get install clang) or set OBJCXX to a clang++."
    )
    monkeypatch.setenv("OBJCXX", "/nowhere/clang++")
    with pytest.raises(
        compilers.MissingCompiler, match="which OBJCXX=/nowhere/clang.. cannot compile"
    ):
        extension.objective_c_command(found, None)


def commands_of(folder, monkeypatch, sources, **options):
    """Returns what ninja would run for an extension of these sources, by the base names of the outputs."""
    monkeypatch.chdir(folder)
    steps = {}

    def add(self, output, inputs, command, what, **_):
        self._steps[output] = what
        steps[Path(output).name] = (what, list(command))

    monkeypatch.setattr(ninja.Graph, "add", add)
    monkeypatch.setattr(ninja.Graph, "run", lambda *_: 0.0)
    monkeypatch.setattr(BuildExtension, "copy_extensions_to_source", lambda _: None)
    distribution = Distribution({"ext_modules": [MetalExtension("package._C", sources, **options)]})
    command = BuildExtension(distribution)
    command.inplace = True
    command.ensure_finalized()
    command.run()
    return steps


def test_only_objective_c_goes_to_clang(tmp_path, monkeypatch):
    monkeypatch.setattr(objective_c, "find_compiler", lambda chosen: "the-clang++")
    (tmp_path / "plain.mm").write_text("int x;\n")
    (tmp_path / "other.cpp").write_text("int y;\n")
    (tmp_path / "metal.mm").write_text("#import <Metal/Metal.h>\n")
    arguments = {
        "extra_compile_args": ["-fobjc-arc", "-O1"],
        "extra_link_args": ["-framework", "Metal", "-lm"],
    }
    steps = commands_of(tmp_path, monkeypatch, ["plain.mm", "other.cpp", "metal.mm"], **arguments)
    what, command = steps["metal.o"]
    assert what == "objective-c++ metal.mm"
    assert "the-clang++" in command and "-fobjc-arc" in command
    assert "c++" not in command  # no -x c++
    for name in ("plain.o", "other.o"):
        what, command = steps[name]
        assert what.startswith("c++ ") and "the-clang++" not in command
        assert "-fobjc-arc" not in command and "-O1" in command
    (link,) = [command for what, command in steps.values() if what.startswith("link")]
    assert objective_c.LIBRARY in link and paths.host_library() in link and "-lm" in link
    assert "-framework" not in link and "the-clang++" not in link


def test_projects_without_objective_c_never_look_for_clang(tmp_path, monkeypatch):
    def find(chosen):
        raise AssertionError("looked for clang")

    monkeypatch.setattr(objective_c, "find_compiler", find)
    (tmp_path / "plain.mm").write_text("int x;\n")
    (tmp_path / "metal.mm").write_text("#import <Metal/Metal.h>\n")
    steps = commands_of(tmp_path, monkeypatch, ["plain.mm"])
    assert all("compiler.py" not in word for _, command in steps.values() for word in command)
    assert all(objective_c.LIBRARY not in command for _, command in steps.values())
    told = commands_of(tmp_path, monkeypatch, ["plain.mm", "metal.mm"], objective_c=False)
    assert told["plain.o"] == steps["plain.o"]
    assert "c++" in told["metal.o"][1] and "compiler.py" not in str(told["metal.o"])


def test_an_argument_decides_for_sources_of_which_nothing_tells(tmp_path, monkeypatch):
    monkeypatch.setattr(objective_c, "find_compiler", lambda chosen: "the-clang++")
    (tmp_path / "plain.mm").write_text("int x;\n")
    what, command = commands_of(tmp_path, monkeypatch, ["plain.mm"], objective_c=True)["plain.o"]
    assert what == "objective-c++ plain.mm"
    assert command[command.index("--objective-c") + 1] == "always"


@pytest.fixture
def commands(monkeypatch):
    """The commands that the compiler's wrapper runs, which succeed."""
    ran = []

    def run(words, **_):
        ran.append(words)
        return subprocess.CompletedProcess(words, 0)

    monkeypatch.setattr(compiler.subprocess, "run", run)
    monkeypatch.setattr(objective_c, "find_compiler", lambda chosen: "the-clang++")
    return ran


def test_the_wrapper_passes_each_source_to_its_compiler(tmp_path, commands, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("plain.mm").write_text("int x;\n")
    Path("metal.mm").write_text("@class A;\n")
    substitutes = str(Path(paths.PACKAGE) / "include" / "software_device")
    start = ["--cxx", "the-g++", "--"]
    assert (
        compiler.main([*start, "-c", "plain.mm", "-o", "plain.o", "-fobjc-arc", "-arch", "arm64"])
        == 0
    )
    assert commands.pop() == [
        "the-g++",
        "-c",
        "-x",
        "c++",
        "plain.mm",
        "-x",
        "none",
        "-o",
        "plain.o",
    ]
    arguments = [
        "-x",
        "objective-c++",
        "-c",
        "metal.mm",
        "-o",
        "metal.o",
        "-fobjc-arc",
        f"-I{substitutes}",
    ]
    assert compiler.main([*start, *arguments]) == 0
    command = commands.pop()
    assert command[0] == "the-clang++" and command[-1] == "metal.mm" and "-fobjc-arc" in command
    assert command.count("-x") == 1 and f"-I{substitutes}" not in command
    assert f"-I{objective_c.APPLE_HEADERS}" in command
    # Compiled and linked at once: by each compiler, and then together.
    assert compiler.main([*start, "-shared", "metal.mm", "plain.mm", "-o", "both.so"]) == 0
    first, second = commands
    assert first[0] == "the-clang++" and "-c" in first and "-shared" in first
    assert second[0] == "the-g++" and "metal.mm" not in second and "plain.mm" in second
    assert second[-2:] == ["-o", "both.so"]


def test_the_wrapper_links_what_a_mac_would_to_the_device(commands):
    """Also verbosely, as CMake does when it looks at a compiler."""
    for first in ([], ["-v"]):
        arguments = [*first, "a.o", "-o", "a.so", "-shared"]
        assert compiler.main(["--mac", "--c", "--cxx", "the-g++", "--", *arguments]) == 0
        command = commands.pop()
        assert command[: len(arguments) + 1] == ["the-g++", *arguments]
        assert "-Wl,--push-state,--as-needed" in command
        assert paths.host_library() in command
    assert compiler.main(["--mac", "--c", "--cc", "the-gcc", "--", "-v"]) == 0
    assert paths.host_library() not in commands.pop()


def test_the_wrapper_asks_the_users_compiler_all_else(commands):
    for arguments in (["--version"], ["-v"], ["a.o", "-o", "a.so", "-shared"], ["-dumpversion"]):
        assert compiler.main(["--cxx", "the-g++ -m64", "--", *arguments]) == 0
        assert commands.pop() == ["the-g++", "-m64", *arguments]


@pytest.mark.full
@needs_clang
def test_objective_c_with_blocks_and_arc_is_compiled(tmp_path):
    source, output = tmp_path / "own.mm", tmp_path / "own.o"
    source.write_text(
        "__attribute__((objc_root_class)) @interface Own { int x; }\n- (int)x;\n@end\n"
        "@implementation Own\n- (int)x { int (^block)() = ^{ return x; }; return block(); }\n@end\n"
    )
    script = Path(compiler.__file__)
    command = [
        sys.executable,
        "-E",
        str(script),
        "--objcxx",
        CLANG,
        "--",
        "-std=c++20",
        "-fPIC",
        "-c",
    ]
    subprocess.run([*command, str(source), "-o", str(output), "-framework", "Metal"], check=True)
    assert b"._OBJC_CLASS_Own" in output.read_bytes()
    # A class of Apple's that nobody defines is found when it is compiled, and not when it is loaded.
    source.write_text("@interface MPSOther\n+ (int)x;\n@end\nint f() { return MPSOther.x; }\n")
    result = subprocess.run(
        [*command, str(source), "-o", str(output)], capture_output=True, text=True
    )
    assert result.returncode == 1
    assert "own.mm:1 uses MPSOther, which the software Metal device does not have" in result.stderr
    assert not output.exists()


@pytest.mark.full
@needs_clang
@pytest.mark.skipif(
    not Path(objective_c.LIBRARY).is_file(), reason="the Objective-C runtime is not built"
)
def test_load_builds_objective_c_and_cpp_into_one_library(tmp_path):
    source, plain = tmp_path / "own.mm", tmp_path / "plain.cpp"
    source.write_text(
        "__attribute__((objc_root_class)) @interface Own { int x; }\n+ (int)answer;\n@end\n"
        "@implementation Own\n+ (int)answer { int (^block)() = ^{ return 42; }; return block(); }\n@end\n"
        'extern "C" int answer() { return [Own answer]; }\n'
    )
    plain.write_text('extern "C" int answer();\nextern "C" int twice() { return 2 * answer(); }\n')
    path = build.load("objective_c_and_cpp", [str(source), str(plain)], build_directory=tmp_path)
    assert ctypes.CDLL(path).twice() == 84
