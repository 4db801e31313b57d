"""A small language model in 4 bits, and the memory that quantised layers take."""

import copy
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from metalops import debug
from metalops.nn import QuantizedEmbedding, QuantizedLinear, quantize_model
from torch import nn

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "text_model.py"


@pytest.fixture(scope="module")
def trained(load_script):
    """benchmarks/text_model.py after sixty steps on the CPU, its text and the script."""
    script = load_script(SCRIPT)
    model, data, losses = script.train(60, "cpu")
    assert losses[-10:].mean() < 0.7 * losses[0]
    return model.eval().requires_grad_(False), data, script


def perplexity(model, data, context):
    """Over characters that it has not been trained with."""
    windows = data[len(data) * 9 // 10 :][: 64 * (context + 1)].view(64, context + 1)
    logits = model(windows[:, :-1].to(next(model.parameters()).device))
    return F.cross_entropy(logits.flatten(0, 1).cpu(), windows[:, 1:].flatten()).exp().item()


@pytest.mark.sampled(2)
@pytest.mark.full
@pytest.mark.parametrize("mode", ["affine", "mxfp4", "nvfp4", "nf4"])
def test_perplexity_in_4_bits(trained, mode):
    model, data, script = trained
    quantized = quantize_model(copy.deepcopy(model).to("mps"), mode=mode)
    whole = perplexity(model, data, script.CONTEXT)
    assert perplexity(quantized, data, script.CONTEXT) < 1.02 * whole < 15


def _is_layer(module, fqn):
    return True


def test_generation_runs_on_quantised_products_and_our_attention(trained, tmp_path):
    """Greedily, with the embedding quantised too; and the same as with these weights unpacked on the CPU."""
    model, data, script = trained
    quantized = quantize_model(copy.deepcopy(model).to("mps"), filter_fn=_is_layer)
    unpacked = copy.deepcopy(model)
    for name, layer in quantized.named_modules():
        if isinstance(layer, QuantizedEmbedding):
            rows = layer(torch.arange(layer.num_embeddings, device="mps"))
            unpacked.get_submodule(name).weight.copy_(rows)
        elif isinstance(layer, QuantizedLinear):
            columns = layer(torch.eye(layer.in_features, device="mps"))
            columns = columns if layer.bias is None else columns - layer.bias
            unpacked.get_submodule(name).weight.copy_(columns.T)

    def generate(model, device, steps=12):
        tokens = data[None, :20].to(device)
        for _ in range(steps):
            tokens = torch.cat([tokens, model(tokens)[:, -1:].argmax(-1)], 1)
        return tokens.tolist()

    with debug.capture(tmp_path / "a.trace", contents=False) as trace, debug.standins() as served:
        actual = generate(quantized, "mps")
    kernels = [launch.kernel for launch in trace.launches]
    layers = sum(isinstance(layer, QuantizedLinear) for layer in quantized.modules())
    assert layers == 4 * script.LAYERS + 1
    assert sum(name.startswith("quantized_matmul_") for name in kernels) == 12 * layers
    assert sum(name.startswith("attention_") for name in kernels) >= 12 * script.LAYERS
    # Rows of the embedding.
    assert sum(name.startswith("quantized_dequantize_") for name in kernels) == 12
    products = [name for name in served if "mm" in name or "linear" in name or "attention" in name]
    assert products == []
    assert actual == generate(unpacked, "cpu")


# ---- memory --------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 64])
@pytest.mark.parametrize("kind", [("affine", 4), ("affine", 8), ("nvfp4", 4), ("nf4", 4)], ids=str)
def test_a_product_takes_no_more_than_what_goes_in_and_out(kind, rows):
    """Nothing is unpacked to memory: all that is allocated, with weights and activations, and at its peak."""
    mode, bits = kind
    memory = torch.accelerator.memory
    torch.mps.synchronize()
    torch.mps.empty_cache()
    before = memory.memory_allocated()
    layer = QuantizedLinear(1024, 2048, bits=bits, mode=mode, device="mps")
    x = torch.randn(rows, 1024, device="mps")
    with torch.no_grad():
        layer(x)
        torch.mps.synchronize()
        memory.reset_peak_memory_stats()
        result = layer(x)
        torch.mps.synchronize()
    peak = memory.max_memory_allocated() - before
    tensors = (*layer.parameters(), *layer.buffers(), x, result)
    packed = sum(t.nbytes for t in tensors if t is not None)
    assert packed < 0.5 * nn.Linear(1024, 2048).weight.nbytes + x.nbytes + result.nbytes
    assert packed <= peak < 1.2 * packed
