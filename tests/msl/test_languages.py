"""The versions of the Metal language: which one a source is compiled in, and what it predefines."""

import pytest
import torch
from metalops import metal_kernel, msl
from metalops.msl import main_compile, main_sweep
from metalops.msl.check.cli import main as main_check
from metalops.msl.source import languages
from metalops.msl.source.preprocess import preprocess

VERSION = """
kernel void version(device int* out, uint i [[thread_position_in_grid]]) {
  out[0] = __METAL_VERSION__;
}
"""

TENSORS = ["__HAVE_TENSOR__", "__HAVE_PACKED_NUMERIC__", "__HAVE_INT4B_FORMAT_TYPE__"]
PLANES = ["__HAVE_TENSOR_MULTIPLANE__", "__HAVE_METAL_FP8_UE8M0_FORMAT_TYPE__"]


@pytest.fixture(autouse=True)
def no_choice(monkeypatch):
    monkeypatch.delenv(languages.VARIABLE, raising=False)
    monkeypatch.delenv(languages.TORCH_VARIABLE, raising=False)
    return monkeypatch


def version_of(shader):
    out = torch.zeros(1, dtype=torch.int, device="mps")
    shader.version(out, threads=1)
    return out.item()


def last_line(source, **options):
    return preprocess(source, **options).text.rstrip().split("\n")[-1].strip()


@pytest.mark.parametrize(
    "name, number, cplusplus, features",
    [
        ("3.1", 310, "201402L", []),
        ("3.2", 320, "201402L", []),
        ("4.0", 400, "201703L", TENSORS),
        ("4.1", 410, "201703L", TENSORS + PLANES),
    ],
)
@pytest.mark.parametrize("compiler", ["g++", "clang++-19"])
def test_what_a_language_predefines(name, number, cplusplus, features, compiler, monkeypatch):
    monkeypatch.setenv("CXX", compiler)
    monkeypatch.setenv("METALOPS_METAL_VERSION", name)
    assert last_line("__METAL_VERSION__ __cplusplus") == f"{number} {cplusplus}"
    for feature in TENSORS + PLANES:
        # Without a header: the compiler itself defines them.
        assert last_line(f"#ifdef {feature}\n{feature}\n#else\nno\n#endif") == (
            "1" if feature in features else "no"
        )
    has_constexpr_if = last_line("#if __cpp_if_constexpr\nyes\n#else\nno\n#endif")
    assert has_constexpr_if == ("yes" if number >= 400 else "no")


def test_the_language_is_read_at_each_compilation(monkeypatch):
    found = []
    for name in (None, "3.1", "4.1", "3.2", "4"):
        if name:
            monkeypatch.setenv("METALOPS_METAL_VERSION", name)
        found.append(version_of(torch.mps.compile_shader(VERSION)))
    assert found == [400, 310, 410, 320, 400]


def test_the_variable_of_newer_versions_of_torch(monkeypatch):
    monkeypatch.setenv("PYTORCH_MPS_METAL_VERSION", "3.1")
    assert version_of(torch.mps.compile_shader(VERSION)) == 310
    monkeypatch.setenv("METALOPS_METAL_VERSION", "3.2")
    assert version_of(torch.mps.compile_shader(VERSION)) == 320


@pytest.mark.parametrize("value", ["4.2", "3.0", "400", "metal3.1", "4. 0", "."])
def test_a_language_that_there_is_not(value, monkeypatch):
    monkeypatch.setenv("METALOPS_METAL_VERSION", value)
    message = f"METALOPS_METAL_VERSION is '{value}', but must be 3.1, 3.2, 4.0 or 4.1"
    with pytest.raises(ValueError) as raised:
        torch.mps.compile_shader(VERSION)
    assert str(raised.value) == message
    with pytest.raises(ValueError) as raised:
        preprocess(VERSION)
    assert str(raised.value) == message


def test_torchs_variable_knows_no_4_1(monkeypatch):
    monkeypatch.setenv("PYTORCH_MPS_METAL_VERSION", "4.1")
    with pytest.raises(
        ValueError, match=r"PYTORCH_MPS_METAL_VERSION is '4\.1', but must be 3\.1, 3\.2 or 4\.0"
    ):
        torch.mps.compile_shader(VERSION)


@pytest.mark.full
def test_each_language_has_its_place_in_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("METALOPS_CACHE_DIR", str(tmp_path))
    paths = {}
    for name in languages.LANGUAGES:
        monkeypatch.setenv("METALOPS_METAL_VERSION", name)
        paths[name] = msl.compile_source(VERSION)
        assert msl.compile_source(VERSION) == paths[name]
    assert len(set(paths.values())) == 4
    monkeypatch.delenv("METALOPS_METAL_VERSION")
    assert msl.compile_source(VERSION) == paths["4.0"]


def test_kernels_of_python_follow_it(monkeypatch):
    def run():
        kernel = metal_kernel(
            name="version",
            input_names=[],
            output_names=["out"],
            source="out[0] = __METAL_VERSION__;",
        )
        (out,) = kernel(
            inputs=[], output_shapes=[(1,)], output_dtypes=[torch.int], grid=(1, 1, 1),
            threadgroup=(1, 1, 1),
        )  # fmt: skip
        return out.item()

    assert run() == 400
    monkeypatch.setenv("METALOPS_METAL_VERSION", "3.1")
    assert run() == 310


def test_kernels_on_cuda_tensors_follow_it(monkeypatch):
    from metalops.cuda.library import Library

    monkeypatch.setenv("METALOPS_METAL_VERSION", "4.1")
    assert "= 410;" in Library(VERSION)._code.text
    assert "= 320;" in Library(VERSION, language=320)._code.text


@pytest.mark.nightly
def test_kernel_files_of_extensions_stay_at_3_1(monkeypatch, tmp_path):
    from metalops import build

    monkeypatch.setenv("METALOPS_METAL_VERSION", "4.1")
    source = tmp_path / "which.metal"
    source.write_text(
        "#if __METAL_VERSION__ == 310\n"
        "kernel void floor_language(device int* out) { out[0] = 0; }\n"
        "#endif\n"
    )
    stub = tmp_path / "which.mm"
    stub.write_text("")
    build.load("which_language", [str(source), str(stub)], build_directory=str(tmp_path / "build"))
    (library,) = (tmp_path / "build").rglob("which.so")
    assert b"floor_language" in library.read_bytes()


def test_commands_take_the_same_names(tmp_path, capsys, monkeypatch):
    path = tmp_path / "a.metal"
    path.write_text("#if __METAL_VERSION__ != 410\n#error wrong language\n#endif\n" + VERSION)
    for command in (
        lambda *words: main_compile([str(path), "--list", *words]),
        lambda *words: main_sweep([str(tmp_path), "--stop-at", "preprocess", *words]),
        lambda *words: main_check([str(path), *words]),
    ):
        assert command() == 1
        assert command("--language", "4.1") == 0
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            command("--language", "5.0")
        assert ended.value.code == 2
        assert "language is '5.0', but must be 3.1, 3.2, 4.0 or 4.1" in capsys.readouterr().err
    monkeypatch.setenv("METALOPS_METAL_VERSION", "4.1")
    assert main_compile([str(path), "--list"]) == 0
    monkeypatch.setenv("METALOPS_METAL_VERSION", "5.0")
    with pytest.raises(SystemExit):
        main_compile([str(path), "--list"])
    assert "METALOPS_METAL_VERSION is '5.0'" in capsys.readouterr().err


@pytest.mark.parametrize("name", [None, 4, 4.0])
def test_a_language_is_named_by_text(name):
    with pytest.raises(TypeError, match="language must be a str such as '4.0'"):
        languages.number_of(name)
