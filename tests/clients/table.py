"""The public projects whose suites `python -m tests.clients` can run: how each is built and tested, and what cannot run."""

from __future__ import annotations

from dataclasses import dataclass, field

# Commands run in the copied checkout. {python}: this environment's; {copy}: the copy; {clients}: this folder, whose
# modules can be imported; {OTHER}: the checkout of another name.
BUILD_MAC = "{python} -m metalops build-mac --"
PYTEST = "{python} -m pytest --metalops -p no:cacheprovider -q"
# The headers of torch 2.13 are C++20.
CXX20 = (("setup.py", "-std=c++17", "-std=c++20"),)
IN_PLACE = f"{BUILD_MAC} {{python}} setup.py build_ext --inplace"


@dataclass(frozen=True)
class Client:
    """A project. checkout: its repository, of which the folder `copied` is copied; folder: where commands run. path: folders
    there for PYTHONPATH. submodules: of a folder to the checkout that belongs there. known: of parts of the names of tests
    that cannot pass to the reason. changes: (file, text, replacement), without which this torch cannot build the project, on
    a Mac either. report: "pytest", or "ggml" for the output of test-backend-ops."""

    checkout: str
    tests: tuple[str, ...]
    build: tuple[str, ...] = ()
    copied: str = "."
    folder: str = "."
    path: tuple[str, ...] = (".",)
    needs: tuple[str, ...] = ()
    submodules: dict[str, str] = field(default_factory=dict)
    known: dict[str, str] = field(default_factory=dict)
    changes: tuple[tuple[str, str, str], ...] = ()
    report: str = "pytest"


def _of_hub(name: str, *tests: str, known: dict[str, str] | None = None) -> Client:
    """A kernel of the Hugging Face Hub, built by the CMake project that kernel-builder writes for a Mac."""
    return Client(
        "kernels-community",
        (f"{PYTEST} -p hub {' '.join(tests)}",),
        ("{python} {clients}/kernel_builder.py {copy} {kernel-builder}", IN_PLACE),
        copied=name,
        path=("torch-ext",),
        needs=("kernel-builder",),
        known=known or {},
    )


def _of_mpsops(name: str, known: dict[str, str] | None = None) -> Client:
    """An operator of github.com/mpsops, whose test file has a main()."""
    tests = (f"{PYTEST} -p main_arguments tests",)
    return Client(name, tests, (IN_PLACE,), known=known or {}, changes=CXX20)


CLIENTS: dict[str, Client] = {
    "relu": _of_hub("relu", "tests"),
    "bitsandbytes-mps": _of_hub("bitsandbytes-mps", "tests"),
    "metal-flash-sdpa": _of_hub("metal-flash-sdpa", "tests"),
    # A folder of its tests is called kernels, too.
    "paged-attention": _of_hub("paged-attention", "--import-mode=importlib", "tests"),
    "causal-conv1d-mps": Client("causal-conv1d-mps", (f"{PYTEST} test.py",), (IN_PLACE,)),
    "mps-deform-conv": _of_mpsops(
        "mps-deform-conv",
        {
            "test_bf16_precision_acceptable": "its bound of 3 % for the mean relative error holds for some random inputs only: "
            "results near zero decide"
        },
    ),
    "mps-conv3d": _of_mpsops("mps-conv3d"),
    "mps-carafe": _of_mpsops("mps-carafe"),
    "mps-correlation": _of_mpsops(
        "mps-correlation",
        {
            f"test_corrblock[{dtype}]": "torch's grid_sample on mps wants a grid of the input's dtype"
            for dtype in ("FP16", "BF16")
        },
    ),
    "mps-bitsandbytes": Client(
        "mps-bitsandbytes",
        (f"{PYTEST} tests",),
        (IN_PLACE,),
        known={
            "test_fused_nf4_matmul": "its bound of 0.1 is below the spacing of float16 at its results, up to 300"
        },
        changes=CXX20,
    ),
    "natten-mps": Client("natten-mps", (f"{PYTEST} tests",), path=("src",)),
    # Its package asks platform.system() which back end it has.
    "mtlgemm": Client(
        "mtlgemm",
        (f"{BUILD_MAC} {PYTEST} tests",),
        (IN_PLACE,),
        known=dict.fromkeys(
            (
                "test_fwd_vs_manual_im2col",
                "test_bwd_grad_values",
                "test_bwd_large_channels_error_bound",
                "test_cross_algorithm_bwd_parity",
                "test_spconv_bwd_grad_values",
            ),
            "its bounds are below the rounding of sums of float32 products, for random inputs without a seed",
        ),
        changes=CXX20,
    ),
    "mtlbvh": Client("mtlbvh", (f"{PYTEST} tests",), (IN_PLACE,), changes=CXX20),
    # So does this one, and skips its tests without one.
    "mtlmesh": Client(
        "mtlmesh",
        (f"{BUILD_MAC} {PYTEST} tests",),
        (
            IN_PLACE,
            f"{BUILD_MAC} sh -c 'cd third_party/mtlbvh && {{python}} setup.py build_ext --inplace'",
        ),
        path=(".", "third_party/mtlbvh"),
        submodules={"third_party/mtlbvh": "mtlbvh"},
        changes=(*CXX20, ("third_party/mtlbvh/setup.py", "-std=c++17", "-std=c++20")),
    ),
    "ThunderMittens": Client(
        "ThunderMittens",
        (f"{BUILD_MAC} {PYTEST} tk_torch/tests/test_mps.py",),
        folder="ThunderMittens/kernels",
        changes=(("tk_torch/__init__.py", "-std=c++17", "-std=c++20"),),
    ),
    # Its kernels are for Apple silicon, which it asks platform for.
    "mps-pointops": Client(
        "mps-pointops",
        ("{python} -m metalops build-mac --machine arm64 -- " + PYTEST + " tests",),
    ),
    # Its CMake project downloads three libraries of headers, whose checkouts are given instead; OpenCV has to be installed.
    "OpenSplat": Client(
        "OpenSplat",
        (f"{PYTEST} {{clients}}/opensplat.py",),
        (
            f"sh -c '{BUILD_MAC} cmake -S . -B build -GNinja -DGPU_RUNTIME=MPS -DOPENSPLAT_BUILD_SIMPLE_TRAINER=ON "
            '-DCMAKE_PREFIX_PATH=$({python} -c "import torch; print(torch.utils.cmake_prefix_path)") '
            "-DFETCHCONTENT_SOURCE_DIR_NLOHMANN_JSON={json} -DFETCHCONTENT_SOURCE_DIR_NANOFLANN={nanoflann} "
            "-DFETCHCONTENT_SOURCE_DIR_CXXOPTS={cxxopts}'",
            f"{BUILD_MAC} cmake --build build --target simple_trainer gsplat_metal",
        ),
        needs=("json", "nanoflann", "cxxopts"),
    ),
    # Its tests run with an installed tilelang, whose packages for Linux generate Metal, too.
    "tilelang": Client(
        "tilelang",
        (
            f"{PYTEST} -p tilelang_metal python/metal",
            f"env METAL4=1 {PYTEST} -p tilelang_metal python/metal",
        ),
        copied="testing",
        known={
            "execute_on_metal[tvm_ffi]": "its host code is for TVM's own runtime for Metal, which packages for Linux do not have",
            "test_metal_codegen.test_gemm_float32": "its bound is that two sums of 1,024 products in float32 are equal",
        },
    ),
    # Its tests ask sys.platform whether they run on a Mac.
    "helion": Client(
        "helion", (f"{BUILD_MAC} env HELION_BACKEND=metal {PYTEST} test/test_metal.py",)
    ),
    "ggml": Client(
        "ggml",
        ("build/bin/test-backend-ops test -b MTL0",),
        (
            f"{BUILD_MAC} cmake -S . -B build -GNinja -DGGML_BLAS=OFF",
            f"{BUILD_MAC} cmake --build build --target test-backend-ops",
        ),
        report="ggml",
    ),
}

# Projects of the same kind whose suites cannot run here at all.
CANNOT = {
    "mlx": "a C++ file of its Metal back end, fft.cpp, returns a tuple as a pair, which Apple's standard library allows and "
    "g++'s does not; with libc++ (CXX='clang++ -stdlib=libc++') its build was not run to its end",
    "kernels-community rotary": "its build.toml has no Metal backend",
    "kernels-community activation": "its tests name CUDA devices only",
    "kernels-community mlx-rmsnorm": "it has no tests",
    "kernels-community mlx-quantization-metal-kernels": "its test imports a package of another name, which it does not build",
    "kernels-community gpt-oss-metal-kernels": "its tests are C++ with googletest, which no build script of it compiles",
    "gsplat-mps": "its tests are skipped without CUDA",
    "Metal-GS": "it has no tests",
    "mps-flash-attention": "its kernels are in Swift",
    "FireANTs": "its operators are in CUDA; those for Metal are in forks",
}
