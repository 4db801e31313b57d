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

from metalops import ops

# Largest error allowed, relative to max(1, |result|): a few roundings of the dtype.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3}
REPEATS = 5


class MissingDependency(Exception):
    """A package that the demo needs and metalops does not."""


@dataclass
class Row:
    """One operator's line in the table. Times are in milliseconds; None where torch's CPU operator refuses the dtype."""

    name: str
    dtype: torch.dtype
    device_time: float
    cpu_time: float | None
    error: float

    @property
    def passed(self) -> bool:
        return self.error <= TOLERANCE[self.dtype]


def _best_time(function: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(REPEATS):
        start = time.perf_counter()
        function()
        torch.mps.synchronize()
        best = min(best, time.perf_counter() - start)
    return 1000 * best


def _cpu_time(function: Callable[[], object]) -> float | None:
    try:
        return _best_time(function)
    except NotImplementedError:
        return None


def _outputs(result) -> list[torch.Tensor]:
    return list(result) if isinstance(result, tuple) else [result]


@dataclass
class Checker:
    """Runs operators on the device and on the CPU and keeps what it finds."""

    rows: list[Row] = field(default_factory=list)

    def __call__(self, name: str, operator: Callable, reference: Callable, *inputs: torch.Tensor):
        """operator(*inputs), for inputs on the device; `reference` does the same with torch's CPU operators."""
        result = operator(*inputs)
        on_cpu = [tensor.cpu() for tensor in inputs]
        expected = reference(*[tensor.double() for tensor in on_cpu])
        error = 0.0
        for ours, theirs in zip(_outputs(result), _outputs(expected), strict=True):
            difference = (ours.cpu().double() - theirs).abs() / theirs.abs().clamp(min=1)
            error = max(error, difference.max().item())
        self.rows.append(
            Row(
                name,
                inputs[0].dtype,
                _best_time(lambda: operator(*inputs)),
                _cpu_time(lambda: reference(*on_cpu)),
                error,
            )
        )
        return result


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

    toned = check("lerp_clamped", ops.lerp_clamped, lerp_clamped, image, glow + 0.35, weight)
    return toned.permute(1, 2, 0).float().cpu().clamp(0, 1)


def _load(path: str | None) -> torch.Tensor:
    try:
        import numpy
        from PIL import Image
    except ImportError as error:
        raise MissingDependency(
            f"the demo needs the package {error.name}: pip install 'metalops[demo]'"
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
                "the demo takes its photograph from scikit-learn: pip install 'metalops[demo]', or give one of "
                "your own with --image PATH"
            ) from None
        pixels = load_sample_image("china.jpg")
    return torch.from_numpy(numpy.array(pixels)).float() / 255


def _save(photo: torch.Tensor, path: str) -> None:
    from PIL import Image

    Image.fromarray((255 * photo).round().to(torch.uint8).numpy()).save(path)


def _print_table(rows: list[Row]) -> None:
    print(f"{'operator':18} {'dtype':8} {'device ms':>10} {'torch CPU ms':>13} {'max error':>10}")
    for row in rows:
        dtype = str(row.dtype).removeprefix("torch.")
        cpu_time = "-" if row.cpu_time is None else f"{row.cpu_time:.3f}"
        verdict = "" if row.passed else "  WRONG"
        print(
            f"{row.name:18} {dtype:8} {row.device_time:10.3f} {cpu_time:>13} {row.error:10.1e}{verdict}"
        )


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

    print(
        f"A photograph of {photo.shape[1]} x {photo.shape[0]} pixels on {torch.backends.mps.get_name()}\n"
    )
    check = Checker()
    for dtype in TOLERANCE:
        developed = develop(photo, dtype, check)
        if dtype == torch.float32:
            after = developed
    _print_table(check.rows)

    os.makedirs(options.output, exist_ok=True)
    for name, pixels in (("before", photo), ("after", after)):
        path = os.path.join(options.output, f"metalops_{name}.png")
        _save(pixels, path)
        print(f"{'' if name == 'after' else chr(10)}wrote {path}")
    wrong = sum(not row.passed for row in check.rows)
    if wrong:
        print(f"{wrong} of {len(check.rows)} results are wrong", file=sys.stderr)
        return 1
    print(f"all {len(check.rows)} results agree with torch on the CPU")
    return 0
