"""Quantisation-aware training as users do it: torch.ao on the device."""

import copy
import warnings
from pathlib import Path

import metalops
import pytest
import torch

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "qat.py"


@pytest.fixture(scope="module")
def qat(load_script):
    return load_script(SCRIPT)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:.*reduce_range:UserWarning")
def test_a_network_with_fake_quantisation_is_within_one_point_of_float(qat):
    in_float, quantized = qat.run()
    assert in_float > 95
    assert quantized >= in_float - 1


@pytest.mark.filterwarnings("ignore:.*reduce_range:UserWarning")
def test_graph_mode_trains_on_the_device_as_on_the_cpu(qat):
    from torch.ao import quantization
    from torch.ao.quantization.quantize_fx import prepare_qat_fx

    images, labels, *_ = qat.load("cpu")
    network = torch.nn.Sequential(
        torch.nn.Conv2d(1, 8, 3, padding=1),
        torch.nn.BatchNorm2d(8),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(8 * 64, 10),
    ).train()
    mapping = quantization.get_default_qat_qconfig_mapping("fbgemm")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        prepared = prepare_qat_fx(network, mapping, (images[:2],))

    def losses(device):
        model = copy.deepcopy(prepared).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for batch in torch.arange(640).split(64):
            optimizer.zero_grad()
            output = model(images[batch].to(device))
            loss = torch.nn.functional.cross_entropy(output, labels[batch].to(device))
            loss.backward()
            optimizer.step()
            yield loss.item()

    with metalops.debug.standins() as served:
        on_device = list(losses("mps"))
    assert on_device == pytest.approx(list(losses("cpu")), rel=0.05)
    assert on_device[-1] < 0.75 * on_device[0]
    assert not [name for name in served if "fake_quant" in name or "moving_avg" in name]
