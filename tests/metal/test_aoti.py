"""AOTInductor: models are compiled for mps into packages, which run on the device without Python code."""

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

# Each compiles C++ code and Metal kernels for a minute of CPU time.
pytestmark = [pytest.mark.nightly, pytest.mark.usefixtures("fresh_compiler")]


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        # Inductor writes parameters of up to eight elements into its code: these are longer.
        self.first, self.norm, self.second = nn.Linear(16, 32), nn.LayerNorm(32), nn.Linear(32, 10)

    def forward(self, x):
        return torch.softmax(self.second(self.norm(torch.relu(self.first(x)))), dim=-1)


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        x = F.max_pool2d(torch.relu(self.norm(self.conv(x))), 2)
        return self.head(x.mean((2, 3)))


def package(model, x, folder, **options):
    with torch.no_grad():
        program = torch.export.export(model, (x,), **options)
        return torch._inductor.aoti_compile_and_package(
            program, package_path=str(folder / "model.pt2")
        )


@pytest.mark.parametrize(
    ("model", "shape"), [(Layers, (5, 16)), (Convolutions, (2, 3, 8, 8))], ids=["layers", "conv"]
)
def test_a_package_computes_what_the_model_computes(model, shape, tmp_path):
    model, x = model().eval(), torch.randn(shape)
    expected = model(x).detach()
    model, x = model.to("mps"), x.to("mps")
    path = package(model, x, tmp_path)
    torch.testing.assert_close(torch._inductor.aoti_load_package(path)(x).cpu(), expected)

    # In another process, which ends well.
    torch.save((x.cpu(), expected), tmp_path / "data.pt")
    program = (
        "import sys, metalops, torch\n"
        "x, expected = torch.load(sys.argv[2])\n"
        "actual = torch._inductor.aoti_load_package(sys.argv[1])(x.to('mps'))\n"
        "torch.testing.assert_close(actual.cpu(), expected)\n"
    )
    command = [sys.executable, "-c", program, path, str(tmp_path / "data.pt")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_shapes_may_vary_and_weights_be_replaced(tmp_path):
    model, x = Layers().eval().to("mps"), torch.randn(5, 16, device="mps")
    rows = torch.export.Dim("rows", min=2, max=100)
    loaded = torch._inductor.aoti_load_package(
        package(model, x, tmp_path, dynamic_shapes=({0: rows},))
    )
    other = Layers().eval().to("mps")
    for y in (x, torch.randn(17, 16, device="mps")):
        torch.testing.assert_close(loaded(y), model(y).detach())
    weights = {name: value.detach() for name, value in other.state_dict().items()}
    loaded.load_constants(weights, check_full_update=True)
    torch.testing.assert_close(loaded(x), other(x).detach())
