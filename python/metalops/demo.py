"""`python -m metalops demo`: the operators at work on a photograph.

Every operator runs on the mps device in float32 and float16, on views as they come (permuted, transposed, sliced,
broadcast), and is checked against torch on the CPU in float64. Prints a table and writes the photograph before and
after.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F

from metalops import _is_software, _outputs, ops

# Largest error allowed, relative to max(1, |result|): a few roundings of the dtype.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3}
REPEATS = 7


class MissingDependency(Exception):
    """A package that the demo needs and metalops does not."""


@dataclass
class Row:
    """One operator's line in the table. Times are in milliseconds; None if torch's CPU operator rejects the dtype."""

    name: str
    dtype: torch.dtype
    ours: float
    torchs: float | None
    error: float

    @property
    def passed(self) -> bool:
        return self.error <= TOLERANCE[self.dtype]

    @property
    def ratio(self) -> float | None:
        """The speedup over torch."""
        return self.torchs / self.ours if self.torchs is not None else None


def _best_times(*functions: Callable[[], object]) -> list[float]:
    """Returns the best times of several runs each, taken in turns, so that other load affects all alike."""
    best = [float("inf")] * len(functions)
    for _ in range(REPEATS):
        for i, function in enumerate(functions):
            start = time.perf_counter()
            function()
            torch.mps.synchronize()
            best[i] = min(best[i], time.perf_counter() - start)
    return [1000 * seconds for seconds in best]


def _takes(function: Callable[[], object]) -> bool:
    try:
        function()
    except NotImplementedError:
        return False
    return True


def _results(result) -> list[torch.Tensor]:
    return list(result) if isinstance(result, tuple) else [result]


@dataclass
class Checker:
    """Runs operators on the device and on the CPU and keeps the results of the comparison."""

    rows: list[Row] = field(default_factory=list)

    def __call__(self, name: str, operator: Callable, reference: Callable, *inputs: torch.Tensor):
        """Returns operator(*inputs), for inputs on the device; `reference` does the same with torch's CPU operators."""
        result = operator(*inputs)
        on_cpu = [tensor.cpu() for tensor in inputs]
        expected = reference(*[tensor.double() for tensor in on_cpu])
        error = 0.0
        for ours, theirs in zip(_results(result), _results(expected), strict=True):
            difference = (ours.cpu().double() - theirs).abs() / theirs.abs().clamp(min=1)
            error = max(error, difference.max().item())
        calls = [lambda: operator(*inputs)]
        if _takes(lambda: reference(*on_cpu)):
            calls.append(lambda: reference(*on_cpu))
        ours, *torchs = _best_times(*calls)
        self.rows.append(Row(name, inputs[0].dtype, ours, next(iter(torchs), None), error))
        return result


_PATCH = 16
_MOST_PATCHES = (26, 40)  # torch keeps the square of their number for each head
_WINDOW = 64


def _patches(image: torch.Tensor) -> torch.Tensor:
    """Returns patches of [3, height, width] in the layout of the heads of vision transformers: [1, 12, patches, 64]."""
    rows, columns = (
        min(size // _PATCH, most) for size, most in zip(image.shape[1:], _MOST_PATCHES, strict=True)
    )
    part = image[:, : rows * _PATCH, : columns * _PATCH]
    part = part.unflatten(2, (columns, _PATCH)).unflatten(1, (rows, _PATCH))
    part = part.permute(1, 3, 0, 2, 4).reshape(rows * columns, 12, 64)
    return part.transpose(0, 1)[None]


def _neighbours(x: torch.Tensor) -> torch.Tensor:
    return ops.attention(x, x, x, window_size=(_WINDOW, _WINDOW), softcap=20.0)


def _neighbours_by_torch(x: torch.Tensor) -> torch.Tensor:
    scores = 20 * torch.tanh(x @ x.transpose(-1, -2) / x.shape[-1] ** 0.5 / 20)
    place = torch.arange(x.shape[-2], device=x.device)
    seen = (place[:, None] - place).abs() <= _WINDOW
    return scores.masked_fill(~seen, -torch.inf).softmax(-1) @ x


def develop(photo: torch.Tensor, dtype: torch.dtype, check: Checker) -> torch.Tensor:
    """Runs the pipeline on a photograph [height, width, 3] with values in [0, 1]; returns one of the same kind."""
    height, width, _ = photo.shape
    image = photo.to("mps", dtype).permute(2, 0, 1)  # channels first, a view
    gain = torch.full((3, 1, 1), 2.0, device="mps", dtype=dtype)
    offset = torch.tensor([-1.0, -0.95, -0.9], device="mps", dtype=dtype).view(3, 1, 1)

    def fma(a, b, c):
        return torch.addcmul(c, a, b)

    signed = check("fma", ops.fma, fma, image, gain, offset)
    capped = check(
        "softcap", lambda x: ops.softcap(x, 0.8), lambda x: 0.8 * torch.tanh(x / 0.8), signed
    )
    glow = check(
        "gelu_quick", ops.gelu_quick, lambda x: x * torch.sigmoid(1.702 * x), signed.transpose(1, 2)
    ).transpose(1, 2)
    check("gelu_new", ops.gelu_new, lambda x: F.gelu(x, approximate="tanh"), signed[:, 1:, 1:])
    check("relu_squared", ops.relu_squared, lambda x: F.relu(x) ** 2, signed[:, ::2, ::2])

    even = signed[..., : width // 2 * 2]  # [..., 2 d]: the left half gates the right half
    check(
        "silu_and_mul",
        ops.silu_and_mul,
        lambda x: F.silu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1],
        even,
    )
    check(
        "gelu_and_mul",
        ops.gelu_and_mul,
        lambda x: F.gelu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1],
        even,
    )
    check("swiglu", ops.swiglu, lambda a, b: F.silu(a) * b, glow, capped)

    check("special.airy_ai", torch.special.airy_ai, torch.special.airy_ai, 4 * capped)
    check("special.ndtri", torch.special.ndtri, torch.special.ndtri, image.clamp(0.01, 0.99))
    check("special.log_ndtr", torch.special.log_ndtr, torch.special.log_ndtr, 3 * signed)
    check("frexp", torch.frexp, torch.frexp, image)
    check("rrelu", F.rrelu, F.rrelu, signed)

    # Brighten towards the middle, harder at edges; the weight leaves [0, 1] and is clamped.
    edge = (capped - capped.roll(1, 2)).abs() - 0.1
    zero = torch.zeros((), device="mps", dtype=dtype)
    mask = check("heaviside", torch.heaviside, torch.heaviside, edge, zero)
    y = torch.linspace(-1, 1, height, device="mps", dtype=dtype).view(1, height, 1)
    x = torch.linspace(-1, 1, width, device="mps", dtype=dtype).view(1, 1, width)
    weight = 1.2 - (x * x + y * y) + 0.3 * mask

    def lerp_clamped(a, b, w):
        return torch.lerp(a, b, w.clamp(0, 1))

    if min(height, width) >= _PATCH:
        patches = _patches(image)
        check("attention", _neighbours, _neighbours_by_torch, patches)
    toned = check("lerp_clamped", ops.lerp_clamped, lerp_clamped, image, glow + 0.35, weight)
    return toned.permute(1, 2, 0).float().cpu().clamp(0, 1)


def _load(path: str | None) -> torch.Tensor:
    try:
        import numpy
        from PIL import Image
    except ImportError as error:
        raise MissingDependency(
            f"the demo needs the package {error.name}: pip install pillow scikit-learn"
        ) from None
    if path is not None:
        try:
            with Image.open(path) as file:
                pixels = numpy.asarray(file.convert("RGB"))
        except OSError as error:
            raise MissingDependency(f"the image {path} cannot be read: {error}") from None
    else:
        try:
            from sklearn.datasets import load_sample_image
        except ImportError:
            raise MissingDependency(
                "the demo takes its photograph from scikit-learn: pip install scikit-learn, or give one of your own "
                "with --image PATH"
            ) from None
        pixels = load_sample_image("china.jpg")
    return torch.from_numpy(numpy.array(pixels)).float() / 255


def _save(photo: torch.Tensor, path: str) -> None:
    from PIL import Image

    Image.fromarray((255 * photo).round().to(torch.uint8).numpy()).save(path)


# Explains the columns, and the marks in place of missing numbers.
_LEGEND = """\
ours: the operator on the mps device, {where}, one kernel each, new or changed by metalops.
torch: the same by torch's own operators on the same values in CPU tensors, one after the other where torch has no operator
of that kind (softcap is 0.8 * tanh(x / 0.8), attention one with a window and softcap). Best of {repeats} runs in milliseconds, in turns; both use {threads} CPU threads.
ratio: how many times as fast as torch, the most first. "-": torch's CPU has no such operator of float16.
error: the largest distance from torch on the CPU in float64, relative to max(1, |result|)."""


_OF_SOFTWARE = """\
fma takes a number for each channel, and a pixel's three lie together: rows of three elements are what a device in software is
slowest at. What is gained is memory that is not written and read again between operators that torch runs one after the other, so
nothing where torch's CPU has a kernel in one piece (fma, frexp) or vectorises a function that this compiler does not (tanh)."""


def _legend() -> str:
    where = "which here is software on this CPU" if _is_software else "the GPU"
    threads = torch.get_num_threads()
    text = _LEGEND.format(where=where, repeats=REPEATS, threads=threads)
    return f"{text}\n{_OF_SOFTWARE}" if _is_software else text.replace("; both use", "; torch uses")


def _print_table(rows: list[Row]) -> None:
    print(f"{'operator':18} {'dtype':8} {'ours':>9} {'torch':>9} {'ratio':>7} {'error':>9}")
    dtypes = list(dict.fromkeys(row.dtype for row in rows))
    for row in sorted(rows, key=lambda row: (dtypes.index(row.dtype), -(row.ratio or 0))):
        dtype = str(row.dtype).removeprefix("torch.")
        theirs = "-" if row.torchs is None else f"{row.torchs:.3f}"
        ratio = "-" if row.ratio is None else f"{row.ratio:.1f}x"
        verdict = "" if row.passed else "  WRONG"
        print(
            f"{row.name:18} {dtype:8} {row.ours:9.3f} {theirs:>9} {ratio:>7} {row.error:9.1e}{verdict}"
        )
    print(f"\n{_legend()}")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m metalops demo", description=__doc__)
    parser.add_argument("--image", metavar="PATH", help="a photograph of your own")
    parser.add_argument(
        "--output", metavar="FOLDER", default=".", help="where the PNG files go (default: here)"
    )
    options = parser.parse_args(arguments)
    try:
        photo = _load(options.image)
    except MissingDependency as error:
        print(f"metalops demo: {error}", file=sys.stderr)
        return 1
    _outputs.make_folder(options.output)

    print(
        f"A photograph of {photo.shape[1]} x {photo.shape[0]} pixels, developed on "
        f"{torch.backends.mps.get_name()}\nand compared with torch on the CPU, on the same values in the same memory layouts.\n"
    )
    check = Checker()
    for dtype in TOLERANCE:
        developed = develop(photo, dtype, check)
        if dtype == torch.float32:
            after = developed
    _print_table(check.rows)

    print()
    for name, pixels in (("before", photo), ("after", after)):
        path = os.path.join(options.output, f"metalops_{name}.png")
        _save(pixels, path)
        print(f"wrote {path}")
    wrong = sum(not row.passed for row in check.rows)
    if wrong:
        print(f"{wrong} of {len(check.rows)} results are wrong", file=sys.stderr)
        return 1
    print(f"all {len(check.rows)} results agree with torch on the CPU")
    return 0
