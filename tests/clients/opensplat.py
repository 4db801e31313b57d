"""A test of OpenSplat's operators, which have none: its test program fits the same Gaussians to an image with its Metal back end
and on the CPU. Its code for CPUs cuts a Gaussian off at three standard deviations, where that for GPUs draws whole tiles, so
that the images differ a little at first, and more with each step."""

import re
import subprocess

import pytest

STEPS = 20


def losses(width: int, points: int, *options: str) -> list[float]:
    sizes = {"width": width, "height": width, "points": points, "iters": STEPS}
    arguments = [f"--{name}={value}" for name, value in sizes.items()]
    command = ["build/simple_trainer", *arguments, *options]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert ("Using MPS" in printed) == ("--cpu" not in options)
    return [float(loss) for loss in re.findall(r"Loss: (\S+)", printed)]


@pytest.mark.parametrize("width, points", [(32, 50), (64, 500), (100, 2000)])
def test_training_is_as_on_the_cpu(width, points):
    found, expected = losses(width, points), losses(width, points, "--cpu")
    assert len(found) == STEPS
    assert found[0] == pytest.approx(expected[0], rel=0.002)
    assert found == pytest.approx(expected, rel=0.1)
    assert found[-1] < 0.95 * found[0]
