"""`python -m metalops build-mac`: stand-ins for a Mac's developer tools, and the metallibs that they write."""

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from metalops import _metallib
from metalops.build import objective_c
from metalops.build.mac import assembly, command, flags, program, tools

pytestmark = pytest.mark.skipif(sys.platform == "darwin", reason="a Mac has the tools themselves")

SITE = Path(command.__file__).parent / "site"

FLAGS = {
    "-O2 -c a.cpp -o a.o": "-O2 -c a.cpp -o a.o",
    "-framework Metal a.o -framework Foundation -lm": "a.o -lm",
    "-arch arm64 -isysroot /sdk -mmacosx-version-min=14.0 -stdlib=libc++ -g": "-g",
    "-target arm64-apple-macos14 -mcpu=apple-m1 -march=native": "-march=native",
    "-bundle -undefined dynamic_lookup a.o -o a.so": "-shared a.o -o a.so",
    "-dynamiclib -install_name @rpath/a.dylib -current_version 1 a.o": "-shared a.o",
    "-Wl,-rpath,@loader_path/lib -Wl,-dead_strip -Wl,-z,now": "-Wl,-rpath,$ORIGIN/lib -Wl,-z,now",
    "-Wl,-framework,Metal -Wl,-headerpad_max_install_names -Wall": "-Wall",
    "-Wl,-undefined,dynamic_lookup a.o": "a.o",
    "-Xlinker -framework -Xlinker Metal -Xlinker -rpath -Xlinker @loader_path": "-Xlinker -rpath -Xlinker $ORIGIN",
    "-force_load a.a": "-Wl,--whole-archive a.a -Wl,--no-whole-archive",
    "a.o /cache/build-mac-1f/frameworks/libMetal.so -o a": "a.o -o a",
    "-fobjc-arc -fblocks": "-fobjc-arc -fblocks",  # for clang
}


@pytest.mark.parametrize("given", FLAGS)
def test_flags_that_only_a_mac_has_are_dropped_or_replaced(given):
    assert flags.for_linux(given.split()) == FLAGS[given].split()


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ("-framework Accelerate", "the framework Accelerate"),
        ("-Wl,-framework,CoreML", "the framework CoreML"),
        ("-Wl,-sectcreate,__DATA,__x,file", "-sectcreate"),
    ],
)
def test_a_flag_without_a_counterpart_is_an_error_that_names_it(given, named):
    with pytest.raises(flags.Impossible, match=named):
        flags.for_linux(given.split())


def test_objective_cs_flags_are_kept_from_other_compilers():
    given = [
        "-O2",
        "-fobjc-arc",
        "-fno-objc-arc",
        "-Wno-unguarded-availability",
        "-fblocks",
        "-Wall",
    ]
    assert flags.without_objective_c(given) == ["-O2", "-Wall"]


# -- assembly

EMBEDS = """\
.section __DATA,__metallib
.globl _library_start
_library_start:
.incbin "/tmp/_library_start.metal"
.globl _library_end
_library_end:
.section __TEXT,__const,regular
.private_extern _other
_other: .quad _library_end
.subsections_via_symbols
"""
EMBEDS_ON_LINUX = """\
.section .data.__metallib,"aw"
.globl library_start
library_start:
.incbin "/tmp/_library_start.metal"
.globl library_end
library_end:
.section .rodata.__const,"a"
.hidden other
other: .quad library_end

"""


def test_assembly_of_a_mac_is_that_of_linux():
    assert assembly.is_of_mac(EMBEDS)
    assert assembly.for_linux(EMBEDS) == EMBEDS_ON_LINUX
    assert not assembly.is_of_mac('.section .data.x,"aw"\n.globl _x\n_x:\n')


# -- the command lines of metal, metallib and the programs that scripts ask


def test_a_command_line_of_metal():
    words = "-c a.metal -o a.air -std=metal4.0 -O2 -Iinc -I more -DX=1 -D Y -mmacosx-version-min=14 -Wall -gline-tables-only"
    parsed = tools.parse_metal(
        [*words.split(), "-fno-fast-math", "-frecord-sources", "-MMD", "-MF", "a.d"]
    )
    assert parsed == tools.MetalCommand(
        ["a.metal"], "a.air", ["inc", "more"], ["X=1", "Y"], "metal4.0", False, True, "a.d"
    )
    assert tools.parse_metal(["a.metal"]).fast_math
    assert not tools.parse_metal(["-fmetal-math-mode=safe"]).fast_math


def refused(capsys, *words):
    assert tools.main(words[0], list(words[1:])) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    return printed.err


@pytest.mark.parametrize(
    "line",
    [
        "metal -dynamiclib a.metal",
        "metal -S a.metal",
        "metal -include pch.h a.metal",
        "metal -framework Metal a.metal",
        "metal --nonsense a.metal",
        "metallib --nonsense a.air",
        "xcrun -sdk iphoneos metal",
        "xcrun actool",
        "xcrun --nonsense",
        "xcodebuild -project Some.xcodeproj",
        "xcode-select --nonsense",
        "sw_vers --nonsense",
        "sysctl -n kern.nonsense",
        "uname --nonsense -q",
    ],
)
def test_what_there_is_no_stand_in_for_is_named(capsys, monkeypatch, tmp_path, line):
    monkeypatch.setattr(tools, "DEVELOPER", str(tmp_path))
    words = line.split()
    last = {"iphoneos": "iphoneos", "uname": "q"}.get(words[2] if len(words) > 2 else "", None)
    named = last or next(
        (w for w in words[1:] if "nonsense" in w), words[1] if len(words) == 2 else words[1]
    )
    if words[0] == "uname":
        named = "q"
    elif words[:3] == ["xcrun", "-sdk", "iphoneos"]:
        named = "iphoneos"
    assert named in refused(capsys, *words)


def test_metal_versions(capsys):
    assert tools._language("") is None
    assert tools._language("metal3.2") == tools._language("macos-metal3.2") == 320
    assert tools._language("macos-metal2.4") == 310
    assert "-std=macos-metal2.4 is compiled as Metal 3.1" in capsys.readouterr().err
    with pytest.raises(tools.CannotStandIn, match="-std=metal9.0"):
        tools._language("metal9.0")


def test_what_scripts_ask(capsys, monkeypatch, tmp_path):
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "metal").write_text("")
    monkeypatch.setattr(tools, "DEVELOPER", str(tmp_path))

    def answer(line):
        name, *words = line.split()
        assert tools.main(name, words) == 0
        return capsys.readouterr().out.strip()

    assert (
        answer("xcrun --find metal")
        == answer("xcrun -sdk macosx -f metal")
        == str(folder / "metal")
    )
    assert Path(answer("xcrun --sdk macosx --show-sdk-path")).is_dir()
    assert answer("xcrun --show-sdk-version") == answer("sw_vers -productVersion") == "26.0"
    assert answer("xcodebuild -version").startswith("Xcode 26")
    assert f"Toolchain Search Path: {tmp_path}" in answer(
        "xcodebuild -showComponent MetalToolchain"
    )
    assert answer("xcode-select -p") == str(tmp_path)
    assert answer("uname") == answer("uname -s") == "Darwin"
    assert answer("uname -a").startswith("Darwin ")
    assert answer("sysctl -n hw.ncpu") == str(os.cpu_count())
    monkeypatch.setenv("METALOPS_BUILD_MAC_MACHINE", "arm64")
    assert answer("uname -m") == "arm64"
    assert answer("uname -p") == "arm"


# -- metallibs

PART = _metallib.Part("a.metal", 400, ("f", "g"), b"source", b"library")


def test_a_container_is_read_as_it_was_written():
    other = replace(
        PART, name="b é.metal", kernels=(), language=310, source=b"", library=bytes(range(256))
    )
    assert _metallib.unpack(_metallib.pack([PART, other])) == [PART, other]


def test_kernels_of_one_name_in_two_files_are_not_linked():
    with pytest.raises(ValueError, match="the kernel g is in both a.metal and b.metal"):
        _metallib.pack([PART, replace(PART, name="b.metal", kernels=("h", "g"))])


def test_damaged_containers_are_not_read():
    data = _metallib.pack([PART, replace(PART, name="b.metal", kernels=())])
    for wrong in (
        b"",
        b"MTLB" + data,
        data[:-1],
        data + b"x",
        data[:8] + b"\2" + data[9:],
        data[:12] + bytes(4),
    ):
        with pytest.raises(_metallib.NotAMetallib):
            _metallib.unpack(wrong)
    for length in range(0, len(data) - 1, 7):
        with pytest.raises(_metallib.NotAMetallib):
            _metallib.unpack(data[:length])


ONE = """\
#include <metal_stdlib>
using namespace metal;
static float scaled(float x) { return SCALE * x; }
kernel void one(device float* x [[buffer(0)]], uint i [[thread_position_in_grid]]) { x[i] = scaled(i); }
"""
TWO = ONE.replace("void one", "void two").replace("SCALE * x", "x + 1")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The `.air` files of two sources that have a private function of the same name."""
    folder = tmp_path_factory.mktemp("metal")
    result = []
    for name, text in (("one", ONE), ("two", TWO)):
        (folder / f"{name}.metal").write_text(text)
        result.append(folder / f"{name}.air")
        arguments = [
            "-c",
            str(folder / f"{name}.metal"),
            "-o",
            str(result[-1]),
            "-DSCALE=3",
            "-std=metal3.1",
        ]
        assert tools.main("metal", arguments) == 0
    return result


@pytest.fixture(scope="module")
def metallib(files):
    path = files[0].parent / "both.metallib"
    assert tools.main("metallib", [*map(str, files), "-o", str(path)]) == 0
    return path


def values(kernel):
    x = torch.zeros(3, device="mps")
    kernel(x)
    return x.tolist()


@pytest.mark.full
def test_a_metallib_of_two_files_is_opened_from_its_path_and_its_bytes(metallib):
    for given in (metallib, metallib.read_bytes()):
        library = torch.mps.load_metallib(given)
        assert sorted(dir(library)) == ["one", "two"]
        assert values(library.one) == [0, 3, 6]
        assert values(library.two) == [1, 2, 3]
        with pytest.raises(
            RuntimeError, match="create function state object for: twos, did you mean two"
        ):
            library.twos  # noqa: B018


@pytest.mark.full
def test_what_this_process_cannot_run_is_compiled_again_from_its_source(metallib):
    parts = _metallib.unpack(metallib.read_bytes())
    foreign = _metallib.pack([replace(parts[0], library=b"of another machine"), parts[1]])
    library = torch.mps.load_metallib(foreign)
    assert values(library.one) == [0, 3, 6]
    assert values(library.two) == [1, 2, 3]


@pytest.mark.full
def test_a_metallib_that_was_cut_short(metallib, tmp_path):
    data = metallib.read_bytes()
    short = tmp_path / "short.metallib"
    for length in (9, 15, 20, 60, len(data) // 2, len(data) - 1):
        short.write_bytes(data[:length])
        for given in (short, data[:length]):
            with pytest.raises(
                RuntimeError,
                match="Failed to load metallib.*(incomplete|not a kernel library|cannot load)",
            ):
                torch.mps.load_metallib(given)


@pytest.mark.full
def test_errors_of_a_metal_file_have_its_line(tmp_path, capsys):
    (tmp_path / "wrong.metal").write_text(
        "kernel void f(device float* x [[buffer(0)]]) {\n  x[0] = y;\n}\n"
    )
    assert (
        tools.main(
            "metal", ["-c", str(tmp_path / "wrong.metal"), "-o", str(tmp_path / "wrong.air")]
        )
        == 1
    )
    assert "wrong.metal:2:10: error: " in capsys.readouterr().err
    assert not (tmp_path / "wrong.air").exists()


@pytest.mark.full
def test_metal_lists_what_it_has_read(tmp_path):
    (tmp_path / "a.h").write_text("#define VALUE 1\n")
    source = tmp_path / "a.metal"
    source.write_text(
        '#include "a.h"\nkernel void f(device int* x [[buffer(0)]]) { x[0] = VALUE; }\n'
    )
    arguments = [
        "-c",
        str(source),
        "-o",
        str(tmp_path / "a.air"),
        "-MMD",
        "-MF",
        str(tmp_path / "a.d"),
    ]
    assert tools.main("metal", arguments) == 0
    assert (tmp_path / "a.d").read_text().split() == [
        f"{tmp_path / 'a.air'}:",
        str(source),
        "\\",
        str(tmp_path / "a.h"),
    ]


def test_metal_preprocesses(tmp_path, capsys):
    (tmp_path / "include" / "deep").mkdir(parents=True)
    (tmp_path / "include" / "deep" / "b.h").write_text("#pragma once\n#define VALUE 2\n")
    (tmp_path / "include" / "a.h").write_text(
        '#include <metal_math>\n#include "deep/b.h"\nint a;\n'
    )
    source = tmp_path / "a.metal"
    source.write_text(
        '// A comment.\n#include <metal_stdlib>\n#include "a.h"\n#include "deep/b.h"\nint b = VALUE + WORD;\n'
    )
    flags = ["-E", "-P", "-CC", "-C", "-H", "-w", "-DWORD=3", f"-I{tmp_path / 'include'}"]
    assert tools.main("metal", ["-x", "metal", *flags, str(source)]) == 0
    printed = capsys.readouterr()
    include = tmp_path / "include"
    assert printed.err.splitlines() == [f". {include}/a.h", f".. {include}/deep/b.h"]
    assert printed.out.split() == "int a; int b = 2 + 3;".split()
    output = tmp_path / "a.i"
    assert tools.main("metal", [*flags[:1], *flags[5:], str(source), "-o", str(output)]) == 0
    text = output.read_text()
    assert f'# 1 "{include}/a.h" 1' in text and "int b = 2 + 3;" in text
    assert capsys.readouterr() == ("", "")
    source.write_text('#include "absent.h"\n')
    assert tools.main("metal", ["-E", str(source)]) == 1
    assert "absent.h" in capsys.readouterr().err


def test_a_file_that_is_no_air_is_not_linked(tmp_path, capsys):
    (tmp_path / "a.air").write_bytes(b"MTLB" + bytes(10))
    assert "compiled for Apple GPUs" in refused(capsys, "metallib", str(tmp_path / "a.air"))
    assert "absent" in refused(capsys, "metallib", str(tmp_path / "absent.air"))


# -- what Python's build scripts see

SEES = """
import os, platform, sys
from platform import system
from sys import platform as name
print(name, sys.platform, system(), platform.system(), os.uname().sysname, platform.mac_ver()[0][:2])
sys.marker = 1
import helper
"""
HELPER = """
import os.path
import sys, platform, sysconfig
print(sys.platform, os.uname().sysname, platform.uname().system, sys.marker, sysconfig.get_platform()[:5])
"""


def test_only_the_projects_own_files_see_a_mac(tmp_path):
    project, installed = tmp_path / "project", tmp_path / "lib" / "site-packages"
    for folder in (project, installed):
        folder.mkdir(parents=True)
    (project / "setup.py").write_text(SEES + "import other\n")
    (project / "helper.py").write_text(HELPER)
    (installed / "other.py").write_text(HELPER)
    environment = {**os.environ, "PYTHONPATH": f"{SITE}{os.pathsep}{installed}"}

    def run(*arguments):
        printed = subprocess.run(
            [sys.executable, *arguments],
            env=environment,
            cwd=project,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        return printed.splitlines()

    sees = "darwin darwin Darwin Darwin Darwin 26"
    # sysconfig is not the project's, and names the platform that is built for.
    assert run("setup.py") == [sees, "darwin Darwin Darwin 1 linux", "linux Linux Linux 1 linux"]
    assert run("-c", SEES.replace("import helper", "")) == [sees]
    inside = str(Path(command.__file__).parents[2] / "module.py")
    (project / "metalops_too.py").write_text(
        f"import sys\nsys.marker = 1\nexec({HELPER!r}, {{'__file__': {inside!r}}})\n"
    )
    assert run("metalops_too.py") == ["linux Linux Linux 1 linux"]


def test_a_sitecustomize_that_ours_hides_runs_too(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("print('theirs')\n")
    environment = {**os.environ, "PYTHONPATH": f"{SITE}{os.pathsep}{tmp_path}"}
    command = [sys.executable, "-c", "import sys; print(sys.platform)"]
    printed = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True
    ).stdout
    assert printed.split() == ["theirs", "darwin"]


# -- the command


def test_the_environment_of_a_build(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", "/usr/bin")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    result = command.environment(str(tmp_path), "arm64")
    assert result["PATH"] == f"{tmp_path}/bin:/usr/bin"
    assert result["PYTHONPATH"] == str(SITE)
    assert result["CXX"] == f"{tmp_path}/bin/c++"
    assert result["PIP_NO_BUILD_ISOLATION"] == "0"
    assert result["METALOPS_BUILD_MAC_MACHINE"] == "arm64"


@pytest.mark.parametrize("arguments", [[], ["--"]])
def test_a_command_is_needed(arguments, capsys):
    with pytest.raises(SystemExit):
        command.main(arguments)
    assert "there is no command to run" in capsys.readouterr().err


def test_a_program_that_is_not_there(capsys):
    assert command.main(["--", "no-such-program"]) == 1
    assert "'no-such-program': No such file or directory" in capsys.readouterr().err


SETUP = """
import platform, subprocess, sys
from setuptools import Extension, setup
if platform.system() != "Darwin" or sys.platform != "darwin":
    sys.exit("only for Macs")
subprocess.check_call(["xcrun", "-sdk", "macosx", "metal", "-c", "one.metal", "-DSCALE=2", "-o", "one.air"])
subprocess.check_call(["xcrun", "-sdk", "macosx", "metallib", "one.air", "-o", "one.metallib"])
setup(name="only_for_macs", version="1", ext_modules=[Extension(
    "only_for_macs", ["module.cpp"], extra_compile_args=["-std=c++17", "-fobjc-arc", "-mmacosx-version-min=14.0"],
    extra_link_args=["-framework", "Metal", "-Wl,-rpath,@loader_path"])])
"""
MODULE = """
#include <Python.h>
#include <mutex>
#include <sys/sysctl.h>
static std::unique_ptr<int> kept;  // which Apple's <mutex> brings
static std::optional<int> none;
int processors() {
  int count = 0;
  size_t length = sizeof count;
  return sysctlbyname("hw.ncpu", &count, &length, nullptr, 0) == 0 ? count : 0;
}
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "only_for_macs", nullptr, 0, nullptr};
PyMODINIT_FUNC PyInit_only_for_macs() { return PyModule_Create(&module); }
"""


@pytest.mark.nightly
def test_a_setup_py_for_macs_is_built_unmodified(tmp_path):
    for name, text in (("setup.py", SETUP), ("module.cpp", MODULE), ("one.metal", ONE)):
        (tmp_path / name).write_text(text)
    words = [
        sys.executable,
        "-m",
        "metalops",
        "build-mac",
        "--",
        "python",
        "setup.py",
        "build_ext",
        "--inplace",
    ]
    subprocess.run(words, cwd=tmp_path, check=True)
    subprocess.run([sys.executable, "-c", "import only_for_macs"], cwd=tmp_path, check=True)
    assert values(torch.mps.load_metallib(tmp_path / "one.metallib").one) == [0, 2, 4]


def build_mac(folder, *words):
    command = [sys.executable, "-m", "metalops", "build-mac", "--", *words]
    return subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True)


PROGRAM = """
#import <Foundation/Foundation.h>
#import <Metal/Metal.h>
extern const char kernels[], kernels_end[];
int main(void) {
  id<MTLDevice> device = MTLCreateSystemDefaultDevice();
  NSString* source = [[NSString alloc] initWithBytes:kernels length:kernels_end - kernels
                                            encoding:NSUTF8StringEncoding];
  NSError* error = nil;
  MTLCompileOptions* options = [MTLCompileOptions new];
  options.preprocessorMacros = @{@"SCALE" : @"2"};
  id<MTLLibrary> library = [device newLibraryWithSource:source options:options error:&error];
  if (!library) return puts(error.localizedDescription.UTF8String), 1;
  id<MTLBuffer> out = [device newBufferWithLength:12 options:0];
  id<MTLCommandBuffer> commands = [[device newCommandQueue] commandBuffer];
  id<MTLComputeCommandEncoder> encoder = [commands computeCommandEncoder];
  id<MTLFunction> one = [library newFunctionWithName:@"one"];
  [encoder setComputePipelineState:[device newComputePipelineStateWithFunction:one error:nil]];
  [encoder setBuffer:out offset:0 atIndex:0];
  [encoder dispatchThreads:MTLSizeMake(3, 1, 1) threadsPerThreadgroup:MTLSizeMake(3, 1, 1)];
  [encoder endEncoding];
  [commands commit];
  [commands waitUntilCompleted];
  const float* values = out.contents;
  printf("%g %g %g\\n", values[0], values[1], values[2]);
  return 0;
}
"""
CMAKE = """
cmake_minimum_required(VERSION 3.18)
project(program C OBJC ASM)
if(NOT APPLE OR NOT FROM_ITS_OWN_FILE)
  message(FATAL_ERROR "only for Macs")
endif()
find_library(METAL Metal REQUIRED)
file(WRITE ${CMAKE_BINARY_DIR}/kernels.s
     ".section __DATA,__kernels\\n.globl _kernels\\n_kernels:\\n"
     ".incbin \\"${CMAKE_SOURCE_DIR}/one.metal\\"\\n.globl _kernels_end\\n_kernels_end:\\n")
add_executable(program main.m ${CMAKE_BINARY_DIR}/kernels.s)
target_link_libraries(program ${METAL} "-framework Foundation")
"""


@pytest.mark.nightly
@pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not installed")
@pytest.mark.skipif(objective_c.find_compiler() is None, reason="clang is not installed")
def test_a_program_with_an_embedded_source_is_built_by_cmake_and_runs(tmp_path):
    files = {"CMakeLists.txt": CMAKE, "main.m": PROGRAM, "one.metal": ONE}
    for name, text in {**files, "own.cmake": "set(FROM_ITS_OWN_FILE ON)\n"}.items():
        (tmp_path / name).write_text(text)
    own = f"-DCMAKE_PROJECT_INCLUDE={tmp_path / 'own.cmake'}"
    for words in (["-S", ".", "-B", "build", own], ["--build", "build"]):
        done = build_mac(tmp_path, "cmake", *words)
        assert done.returncode == 0, done.stdout + done.stderr
    done = subprocess.run([tmp_path / "build" / "program"], capture_output=True, text=True)
    assert done.stdout == "0 2 4\n", done.stderr


def test_a_program_needs_pythons_shared_library(monkeypatch):
    monkeypatch.setattr(program.sysconfig, "get_config_var", lambda name: None)
    with pytest.raises(flags.Impossible, match="a program needs Python's shared library"):
        program.support("cc", "")
