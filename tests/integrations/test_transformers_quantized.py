"""Models of Hugging Face's transformers with quantised weights: tiny ones with random weights."""

import json

import pytest
import torch
from metalops import nn as layers
from metalops import ops

from .launches import kernels_of

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from metalops.integrations import transformers as integration  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

OPTIONS = {"max_new_tokens": 8, "do_sample": False}


@pytest.fixture(scope="module", autouse=True)
def enabled():
    integration.enable()
    integration.enable()


def llama(**options):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=64,
        pad_token_id=0,
        **options,
    )
    return transformers.LlamaForCausalLM(config).eval()


def tokens(*shape):
    return torch.randint(1, 64, shape, generator=torch.Generator().manual_seed(1))


def generated(model, prompt):
    prompt = prompt.to(model.device)
    return model.generate(prompt, attention_mask=torch.ones_like(prompt), **OPTIONS).tolist()


def test_generation_by_quantised_products_and_our_attention(tmp_path):
    model = llama().to("mps")
    layers.quantize_model(model, bits=4, group_size=32)
    model.set_attn_implementation("metalops")
    prompt = tokens(2, 7)
    result, kernels = kernels_of(lambda: generated(model, prompt), tmp_path)
    steps = OPTIONS["max_new_tokens"]
    assert sum(kernel.startswith("quantized_matmul_") for kernel in kernels) == steps * (2 * 7 + 1)
    assert sum(kernel.startswith("attention_") for kernel in kernels) >= 2 * steps
    # The same weights, unpacked, on the CPU.
    assert result == generated(unpacked(model), prompt)


def unpacked(model):
    """On the CPU, with torch's operators."""
    whole = llama(tie_word_embeddings=model.config.tie_word_embeddings)
    whole.set_attn_implementation("eager")
    for name, layer in model.named_modules():
        if isinstance(layer, (layers.QuantizedLinear, layers.QuantizedEmbedding)):
            packed = (layer.weight, layer.scales, layer.biases)
            weight = ops.dequantize(*packed, bits=layer.bits, group_size=layer.group_size)
            whole.get_submodule(name).weight.data = weight.detach().cpu()
    return whole


# ---- checkpoints of mlx-lm -----------------------------------------------------------------------


def save_as_mlx(model, folder, quantization, *, left_out=()):
    state = {name: x.detach() for name, x in model.named_parameters()}
    for name, layer in model.named_modules():
        kinds = (torch.nn.Linear, torch.nn.Embedding)
        if isinstance(layer, kinds) and f"{name}.weight" in state and name not in left_out:
            own = quantization.get(name) or quantization
            options = {key: own[key] for key in ("bits", "group_size")}
            packed, scales, biases = ops.quantize(layer.weight, **options)
            state[f"{name}.weight"] = packed.view(torch.uint32)
            state[f"{name}.scales"], state[f"{name}.biases"] = scales, biases
    save_file(state, folder / "model.safetensors", metadata={"format": "mlx"})
    config = model.config.to_dict() | {"architectures": ["LlamaForCausalLM"]}
    both = {"quantization": quantization, "quantization_config": quantization}
    (folder / "config.json").write_text(json.dumps(config | both))


@pytest.mark.parametrize("tied", [False, True])
def test_checkpoints_of_mlx(tied, tmp_path):
    """Some layers with options of their own, and one that is not quantised."""
    model = llama(tie_word_embeddings=tied)
    own = {"bits": 6, "group_size": 64}
    quantization = {"bits": 4, "group_size": 32, "mode": "affine", "model.embed_tokens": own}
    left_out = "model.layers.1.mlp.down_proj"
    save_as_mlx(model, tmp_path, quantization | {left_out: False}, left_out=(left_out,))
    loaded = integration.load_mlx(str(tmp_path), attn_implementation="metalops")
    assert (loaded.device.type, loaded.dtype) == ("mps", torch.float32)
    assert type(loaded.get_submodule(left_out)) is torch.nn.Linear
    embedding = loaded.model.embed_tokens
    assert type(embedding) is layers.QuantizedEmbedding and embedding.bits == 6
    linear = loaded.model.layers[0].mlp.up_proj
    assert type(linear) is layers.QuantizedLinear and (linear.bits, linear.group_size) == (4, 32)
    reference = unpacked(loaded)
    inputs = tokens(2, 9)
    with torch.no_grad():
        logits, kernels = kernels_of(lambda: loaded(inputs.to("mps")).logits, tmp_path)
        torch.testing.assert_close(logits.cpu(), reference(inputs).logits, rtol=1e-3, atol=1e-4)
        # The layers of two blocks, of which one is whole, and the head.
        assert sum(kernel.startswith("quantized_matmul_") for kernel in kernels) == 2 * 7 - 1 + 1
    assert generated(loaded, inputs) == generated(reference, inputs)


def test_checkpoints_that_are_others_are_refused(tmp_path):
    model = llama()
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="config.json of .* has no 'quantization'"):
        integration.load_mlx(str(tmp_path))
    save_as_mlx(model, tmp_path, {"bits": 4, "group_size": 32})
    path = tmp_path / "config.json"
    config = json.loads(path.read_text()) | {"num_hidden_layers": 1}
    path.write_text(json.dumps(config))
    with pytest.raises(ValueError, match="no linear layers or embeddings for .* model.layers.1"):
        integration.load_mlx(str(tmp_path))


# ---- MetalConfig ---------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_metal_config(bits, tmp_path):
    llama().save_pretrained(tmp_path)
    config = transformers.MetalConfig(bits=bits, group_size=32)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, quantization_config=config, device_map=None
    ).to("mps")
    layer = model.model.layers[0].self_attn.q_proj
    assert type(layer).__name__ == "MetalLinear" and layer.weight.dtype == torch.uint32
    x = torch.randn(3, 64, device="mps")
    actual, kernels = kernels_of(lambda: layer(x), tmp_path)
    assert [kernel.startswith("quantized_matmul_") for kernel in kernels] == [True]
    from transformers.integrations.metal_quantization import _affine_dequantize_tensor

    weights = (layer.weight.cpu(), layer.scales.cpu(), layer.qbiases.cpu())
    weight = _affine_dequantize_tensor(*weights, 32, bits)
    torch.testing.assert_close(actual.cpu(), x.cpu() @ weight.T, rtol=1e-4, atol=1e-5)
