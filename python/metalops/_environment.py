"""The environment variables that metalops reads. README.md has the same table; a test compares the two."""

from __future__ import annotations

# name -> (default, meaning)
VARIABLES: dict[str, tuple[str, str]] = {
    "CXX": (
        "found",
        "the C++ compiler for host code and, if it can, for kernels (`clang++` is preferred for kernels)",
    ),
    "METALOPS_AUTOLOAD": ("0", "1: `import torch` alone brings the `mps` device up"),
    "METALOPS_CACHE_DIR": ("`~/.cache/metalops`", "where kernels compiled at run time are kept"),
    "METALOPS_CACHE_SIZE": ("2G", "the size up to which that folder may grow (K, M, G)"),
    "METALOPS_ENGINE": (
        "auto",
        "software device: `loop` runs kernels as plain loops, `group` as loops over the threads of a group, `fiber` "
        "thread by thread; `auto` picks for each kernel",
    ),
    "METALOPS_QUIET": (
        "0",
        "1: no line on stderr when compiling a kernel takes more than two seconds",
    ),
    "METALOPS_SANITIZE": (
        "none",
        "software device: `address,undefined` or `thread` runs every kernel under that sanitizer of the C++ compiler",
    ),
    "METALOPS_SANITIZE_HALT": (
        "1",
        "0: what a sanitizer finds is raised at `torch.mps.synchronize()` instead of at the launch",
    ),
    "METALOPS_SANITIZE_SEED": (
        "random",
        "the order in which sanitized launches run threadgroups and threads; 0: that of their positions",
    ),
    "PYTORCH_ENABLE_MPS_FALLBACK": (
        "0",
        "1: operators that stock PyTorch lacks on `mps` run on the CPU instead of raising, as on a Mac",
    ),
    "PYTORCH_MPS_FAST_MATH": (
        "0",
        "1: Metal sources compiled at run time are compiled in the fast math mode, unless they choose theirs; on the "
        "software device all that changes is that `__FAST_MATH__` is defined",
    ),
    "PYTORCH_MPS_HIGH_WATERMARK_RATIO": (
        "4 (macOS: 1.7)",
        "how much memory tensors may take, in units of what is recommended",
    ),
    "PYTORCH_MPS_LOW_WATERMARK_RATIO": (
        "0.5 (macOS: 1.4)",
        "up to how much memory, in the same units, freed tensors of 32 MiB and more are kept for reuse beside those "
        "in use",
    ),
    "PYTORCH_UNARY_FORCE_FLAVOR": (
        "chosen for each call",
        "which variant of an elementwise kernel of one input runs: `ilp`, `scalar` or `strided`",
    ),
    "PYTORCH_BINARY_FORCE_FLAVOR": ("chosen for each call", "the same for two inputs"),
    "TORCH_EXTENSIONS_DIR": (
        "torch's cache folder",
        "where `metalops.build.load` builds",
    ),
}
