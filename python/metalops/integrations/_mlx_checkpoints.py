"""Loads checkpoints of mlx-lm with transformers: see :func:`metalops.integrations.transformers.load_mlx`. Needs
transformers to be imported."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.quantizers import HfQuantizer, register_quantization_config, register_quantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from ..nn import QuantizedEmbedding, QuantizedLinear
from ..nn.quantized import replace_modules

_METHOD = "mlx"


@register_quantization_config(_METHOD)
class MlxConfig(QuantizationConfigMixin):
    """The quantisation of a checkpoint. quantization: as in config.json: bits, group_size and mode, and overrides of
    single layers by name."""

    def __init__(self, quantization: Mapping | None = None, **others: object) -> None:
        self.quant_method = _METHOD
        self.quantization = dict(quantization or {})

    def of_layer(self, name: str) -> dict:
        """Returns bits, group_size and mode of a layer."""
        own = self.quantization.get(name)
        chosen = self.quantization | (own if isinstance(own, Mapping) else {})
        return {key: chosen[key] for key in ("bits", "group_size", "mode") if key in chosen}


class _Head(nn.Module):
    """The head of a model, with weights tied to the embedding."""

    def __init__(self, embedding: QuantizedEmbedding) -> None:
        super().__init__()
        self._embedding = (embedding,)  # in a tuple, so not registered as a submodule

    def forward(self, x: Tensor) -> Tensor:
        return self._embedding[0].as_linear(x)


@register_quantizer(_METHOD)
class MlxQuantizer(HfQuantizer):
    """Replaces the layers whose weights a checkpoint has quantised by layers of metalops."""

    requires_calibration = False
    is_trainable = True  # in scales, biases and the parameters that are not quantised

    def __init__(self, quantization_config: MlxConfig, **others: object) -> None:
        super().__init__(quantization_config, **others)
        self.pre_quantized = True

    def is_serializable(self) -> bool:
        return False

    def _process_model_before_weight_loading(self, model, checkpoint_files=(), **others) -> None:
        names = set()
        for path in checkpoint_files or ():
            with safe_open(path, "pt") as file:
                names.update(
                    x.removesuffix(".scales") for x in file.keys() if x.endswith(".scales")
                )
        layers = dict(model.named_modules())
        wrong = [x for x in names if not isinstance(layers.get(x), (nn.Linear, nn.Embedding))]
        if wrong:
            raise ValueError(
                f"load_mlx: {type(model).__name__} has no linear layers or embeddings for the quantised weights of "
                f"{', '.join(sorted(wrong)[:3])}"
            )
        options = self.quantization_config.of_layer
        replace_modules(model, {name: _counterpart(layers[name], options(name)) for name in names})
        embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
        if isinstance(embedding, QuantizedEmbedding) and model.config.tie_word_embeddings:
            model.all_tied_weights_keys.clear()
            model.set_output_embeddings(
                head if isinstance(head, QuantizedLinear) else _Head(embedding)
            )

    def _process_model_after_weight_loading(self, model, **others):
        for layer in model.modules():
            if isinstance(layer, (QuantizedLinear, QuantizedEmbedding)):
                layer.weight = layer.weight.view(torch.uint8)
        return model


def _counterpart(layer: nn.Linear | nn.Embedding, options: dict) -> nn.Module:
    """Returns a layer for such weights, which at first are words of 32 bits, as in the file."""
    options |= {"device": "meta", "dtype": layer.weight.dtype}
    if isinstance(layer, nn.Linear):
        sizes = (layer.in_features, layer.out_features, layer.bias is not None)
        made = QuantizedLinear(*sizes, **options)
    else:
        made = QuantizedEmbedding(layer.num_embeddings, layer.embedding_dim, **options)
    rows, columns = made.weight.shape
    made.weight = torch.empty(rows, columns // 4, dtype=torch.uint32, device="meta")
    return made


def load(name: str, device: torch.device | str, **options: object) -> PreTrainedModel:
    config = AutoConfig.from_pretrained(name)
    quantization = getattr(config, "quantization", None)
    if quantization is None:
        raise ValueError(f"load_mlx: config.json of {name} has no 'quantization'")
    # The file's second copy of the configuration, which transformers does not understand.
    config.__dict__.pop("quantization_config", None)
    model = AutoModelForCausalLM.from_pretrained(
        name, config=config, quantization_config=MlxConfig(quantization), **options
    )
    return model.to(device)
