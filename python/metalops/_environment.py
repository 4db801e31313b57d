"""The environment variables that metalops reads. The site's page of them is generated from this table, and all Python
code reads variables through this module. An empty variable counts as unset, for C++, too.

Imports nothing of metalops: the front end and the build use it before anything is built.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable

# name -> (default, meaning)
VARIABLES: dict[str, tuple[str, str]] = {
    "CXX": (
        "found",
        "the C++ compiler for host code and, if it can, for kernels (`clang++` is preferred for kernels)",
    ),
    "METALOPS_ATTENTION": (
        "auto",
        "who serves `torch.nn.functional.scaled_dot_product_attention` on `mps`: `metalops`, `stock` or `auto`, which is "
        "the faster of them; see `metalops.set_attention`",
    ),
    "METALOPS_AUTOLOAD": ("0", "1: `import torch` alone brings the `mps` device up"),
    "METALOPS_BUILD_ALL": (
        "0",
        "1: an installation compiles every kernel ahead of time, also those of the software device that are otherwise "
        "compiled when they are first used",
    ),
    "METALOPS_CACHE_DIR": ("`~/.cache/metalops`", "where kernels compiled at run time are kept"),
    "METALOPS_CACHE_SIZE": ("2G", "the size up to which that folder may grow (K, M, G)"),
    "METALOPS_COOPERATIVE_LAYOUT": (
        "apple10",
        "software device: where threads have the elements of cooperative tensors, as on GPUs of family 10 (M5) or before "
        "(`apple8`), or anywhere (`scramble`, `scramble:SEED`), which portable kernels do not notice; read at each compilation",
    ),
    "METALOPS_DISTRIBUTED_CHECK": (
        "1",
        "0: ranks do not compare what collectives and messages of `mps` tensors they call, which costs an exchange the first time "
        "that one is called and lets ranks with other shapes or dtypes raise; `collectives`: only those",
    ),
    "METALOPS_ENGINE": (
        "auto",
        "software device: `loop` runs kernels as plain loops, `group` as loops over the threads of a group, `fiber` "
        "thread by thread; `auto` picks for each kernel",
    ),
    "METALOPS_FIXES": (
        "the settings file's",
        "which of `metalops.fixes` are on: their names with commas between them, `all` or `none`",
    ),
    "METALOPS_INSTRUCTIONS": (
        "all",
        "software device: `baseline`: products of bytes and of bfloat are computed without AMX and AVX-512 VNNI, as on a CPU that "
        "lacks them; sums of bfloat then differ in the last bits",
    ),
    "METALOPS_MATMUL": (
        "chosen",
        "what matrix products of our kernels are made of: `tensor` (Metal 4's, where the Metal version and the system have them) or "
        "`simdgroup` (matrices)",
    ),
    "METALOPS_METAL_VERSION": (
        "4.0",
        "the Metal version, 3.1, 3.2, 4.0 or 4.1, of sources compiled at run time on the software device and on NVIDIA's "
        "GPUs, read at each compilation; kernel files built by `metalops.build` are Metal 3.1, and 4.0 too if they ask for `__HAVE_TENSOR__`",
    ),
    "METALOPS_PRIVATE_BUFFERS": (
        "0",
        "software device: 1: the memory of tensors is said to be out of the CPU's reach, as that of private Metal buffers is; "
        "torch.distributed then copies",
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
    "METALOPS_SETTINGS": (
        "`~/.config/metalops/settings.json`",
        "the settings file, which `python -m metalops doctor --apply` writes",
    ),
    "METALOPS_TIME_LIMIT": (
        "60",
        "software device: a launch raises RuntimeError when a CPU thread has computed for so many seconds without the launch making "
        "progress, as when a kernel waits for ever (ten times as many under sanitizers); 0: no limit; there is none under a debugger",
    ),
    "METALOPS_TORCH": (
        "chosen",
        "the version of torch, such as `2.14` or `2.14.1`, that an installation is built with; otherwise it is the one that the "
        "environment has",
    ),
    "METALOPS_VALIDATE": (
        "0",
        "software device: 1: extensions in Objective-C are held to all rules of Metal and of torch that a Mac does not "
        "check either, and their own command queues run on threads of their own; see [the rules](mac_extensions.md#the-rules)",
    ),
    "OBJCXX": (
        "found",
        "Linux: the compiler of sources in Objective-C, a `clang++`; the newest one on the PATH",
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
    "PYTORCH_MPS_METAL_VERSION": (
        "4.0 (macOS: the system's)",
        "the same, as newer versions of torch read it on a Mac: 3.1, 3.2 or 4.0; METALOPS_METAL_VERSION wins",
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


# Set by metalops for the processes that it starts.
INTERNAL = {"METALOPS_BUILD_MAC", "METALOPS_BUILD_MAC_MACHINE", "METALOPS_SANITIZE_RESTARTED"}


def unknown(names: Iterable[str]) -> list[str]:
    """Returns a sentence on each name that looks like a variable of metalops and is none. names: of the variables that
    are set."""
    return [
        f"{name} is set, but metalops reads no variable of this name{_meant(name)}"
        for name in sorted(names)
        if re.match(r"_?METAL_?OPS?_", name, re.IGNORECASE)
        and name not in VARIABLES
        and name not in INTERNAL
    ]


def _meant(name: str) -> str:
    import difflib  # only needed for misspelt names

    nearest = difflib.get_close_matches(name.upper(), VARIABLES, n=1, cutoff=0.8)
    return f"; do you mean {nearest[0]}?" if nearest else ""


_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMG]?)i?B?", re.IGNORECASE)


def _one_of(*names: str) -> tuple[Callable[[str], object], str]:
    *others, last = names
    return names.__contains__, f"{', '.join(others)} or {last}"


# The names in metalops.fixes.FIXES, which is not imported before the variables are checked.
FIXES = (
    "adaptive_max_pool",
    "convolution",
    "copy",
    "cumulative",
    "embedding_bag",
    "exponential",
    "grid_sample",
    "histogram",
    "indexing",
    "matmul",
    "median",
    "multinomial",
    "norm",
    "reduction",
    "sort",
    "unique",
)


def _matches(pattern: str, words: str) -> tuple[Callable[[str], object], str]:
    return re.compile(pattern).fullmatch, words


def _is_seed(text: str) -> bool:
    try:
        return 0 <= int(text, 0) < 2**64
    except ValueError:
        return False


# name -> (test of a value, allowed values in words), for variables that do not accept every value.
_VALUES: dict[str, tuple[Callable[[str], object], str]] = {
    "METALOPS_ATTENTION": _one_of("metalops", "stock", "auto"),
    "METALOPS_AUTOLOAD": _one_of("0", "1"),
    "METALOPS_BUILD_ALL": _one_of("0", "1"),
    "METALOPS_CACHE_SIZE": (_SIZE.fullmatch, "a number of bytes such as 500M or 2G"),
    "METALOPS_COOPERATIVE_LAYOUT": _matches(
        r"apple10|apple8|scramble(:\d{1,9})?", "apple10, apple8, scramble or scramble:SEED"
    ),
    "METALOPS_DISTRIBUTED_CHECK": _one_of("0", "1", "collectives"),
    "METALOPS_ENGINE": _one_of("auto", "loop", "group", "fiber"),
    "METALOPS_FIXES": _matches(
        rf"all|none|({'|'.join(FIXES)})( *, *({'|'.join(FIXES)}))*",
        f"all, none or names of fixes: {', '.join(FIXES)}",
    ),
    "METALOPS_INSTRUCTIONS": _one_of("all", "baseline"),
    "METALOPS_MATMUL": _one_of("tensor", "simdgroup"),
    "METALOPS_METAL_VERSION": _matches(r"3\.1|3\.2|4(\.0)?|4\.1", "3.1, 3.2, 4.0 or 4.1"),
    "METALOPS_PRIVATE_BUFFERS": _one_of("0", "1"),
    "METALOPS_QUIET": _one_of("0", "1"),
    "METALOPS_SANITIZE": _matches(
        r"address|thread|address *, *undefined|undefined *, *address", "address,undefined or thread"
    ),
    "METALOPS_SANITIZE_HALT": _one_of("0", "1"),
    "METALOPS_SANITIZE_SEED": (_is_seed, "an integer of 64 bits, not negative"),
    "METALOPS_TIME_LIMIT": _matches(r"\d{1,9}(\.\d*)?|\.\d+", "a number of seconds"),
    "METALOPS_VALIDATE": _one_of("0", "1"),
    "METALOPS_TORCH": _matches(
        r"\d+\.\d+(\.\d\w*(\.\w+)?(\+[\w.]+)?)?", "a version of torch such as 2.14 or 2.14.1"
    ),
}


def value(name: str) -> str:
    """Returns the value of a variable; "" if it is unset or empty. Raises ValueError for an invalid value."""
    text = os.environ.get(name, "").strip()
    if text and name in _VALUES:
        is_one, words = _VALUES[name]
        if not is_one(text):
            raise ValueError(f"{name} is {text!r}, but must be {words}")
    return text


def check() -> None:
    """Raises ValueError for the first variable of metalops's own with a value that is not allowed. For `python -m
    metalops` it ends the process with the sentence alone, before any command begins."""
    try:
        for name in _VALUES:
            value(name)
    except ValueError as error:
        if sys.argv[:1] == ["-m"] and "metalops" in sys.orig_argv:
            sys.exit(f"metalops: {error}")
        raise


def number_of_bytes(text: str) -> int:
    """Returns the number of bytes for a value of METALOPS_CACHE_SIZE."""
    number, unit = _SIZE.fullmatch(text).groups()
    return int(float(number) * 1024 ** " KMG".index(unit.upper() or " "))


def markdown() -> str:
    """Returns the table of variables as Markdown."""
    rows = [
        f"| `{name}` | {default} | {meaning} |" for name, (default, meaning) in VARIABLES.items()
    ]
    return "\n".join(["| Variable | Default | Meaning |", "|---|---|---|", *rows])
