"""Layers with quantised weights; :mod:`metalops.ops.quantized` lists the modes, bits and groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from .. import ops
from ..ops._formats import quantized as formats


class _Quantized(nn.Module):
    """Holds ``weight``, packed, and ``scales`` and ``biases``, which are parameters if they are floats, at first
    without requires_grad. Weights of MLX, uint32, load as they are."""

    weight: Tensor
    scales: Tensor
    biases: Tensor | None

    def __init__(
        self,
        shape: tuple[int, ...],
        bits: int | None,
        group_size: int | None,
        mode: str,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
        bias: bool | None = None,
    ) -> None:
        """bias: true if there is one; None if there never is."""
        super().__init__()
        self.bits, self.group_size = formats.usual(mode, bits, group_size)
        self.mode = mode
        *lines, columns = shape
        formats.check_columns(type(self).__name__, columns, self.group_size, mode)
        about = formats.MODES[mode]
        groups = [*lines, -(-columns // self.group_size)]
        type_of_scales = about.scale or dtype or torch.get_default_dtype()
        packed = torch.zeros([*lines, columns * self.bits // 8], dtype=torch.uint8, device=device)
        scales = torch.zeros(groups, dtype=type_of_scales, device=device)
        self._hold(packed, scales, torch.zeros_like(scales) if about.biases else None)
        if bias is not None:
            zeros = torch.zeros(lines, dtype=dtype, device=device) if bias else None
            self.register_parameter("bias", None if zeros is None else nn.Parameter(zeros))

    @classmethod
    def _of(
        cls,
        weight: Tensor,
        sizes: tuple[int, ...],
        bits: int | None,
        group_size: int | None,
        mode: str,
        **bias: Tensor | None,
    ) -> _Quantized:
        """Returns a layer with these weights, quantised, and the bias, if it has one. sizes: the first arguments of the
        class."""
        options = {"bits": bits, "group_size": group_size, "mode": mode}
        without = dict.fromkeys(bias, False)
        made = cls(*sizes, **without, **options, device="meta", dtype=weight.dtype)
        made._hold(*ops.quantize(weight, **made._keywords))
        for name, x in bias.items():
            setattr(made, name, x if x is None or isinstance(x, nn.Parameter) else nn.Parameter(x))
        return made

    def _hold(self, packed: Tensor, scales: Tensor, biases: Tensor | None) -> None:
        self.register_buffer("weight", packed)
        for name, x in (("scales", scales), ("biases", biases)):
            if x is None or x.is_floating_point():
                self.register_parameter(name, None if x is None else nn.Parameter(x, False))
            else:
                self.register_buffer(name, x)

    @property
    def _keywords(self) -> dict:
        return {"bits": self.bits, "group_size": self.group_size, "mode": self.mode}

    @property
    def _weights(self) -> tuple[Tensor, Tensor, Tensor | None]:
        return self.weight, self.scales, self.biases

    def _load_from_state_dict(self, state_dict, prefix, *args) -> None:
        key = f"{prefix}weight"
        if key in state_dict and state_dict[key].dim() > 0:
            packed = state_dict[key]
            if packed.dtype in (torch.int32, torch.uint32):
                # The mapping belongs to the caller, who may load it again.
                state_dict[key] = packed.contiguous().view(torch.uint8)
                super()._load_from_state_dict(state_dict, prefix, *args)
                state_dict[key] = packed
                return
            if packed.dtype != torch.uint8:
                args[-1].append(
                    f"{key} must be packed, uint8, int32 or uint32, but is {packed.dtype}"
                )
                return
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extra_repr(self) -> str:
        *lines, _ = self.weight.shape
        columns = self.weight.shape[-1] * 8 // self.bits
        return f"{', '.join(map(str, [columns, *lines[::-1]]))}, bits={self.bits}, group_size={self.group_size}, mode={self.mode!r}"


class QuantizedLinear(_Quantized):
    """``x weight^T + bias``, :func:`metalops.ops.quantized_linear`. dtype: of scales, biases and bias."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        bits: int | None = None,
        group_size: int | None = None,
        mode: str = "affine",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        shape = (out_features, in_features)
        super().__init__(shape, bits, group_size, mode, device, dtype, bias)
        self.in_features, self.out_features = in_features, out_features

    @classmethod
    def from_linear(
        cls,
        linear: nn.Linear,
        bits: int | None = None,
        group_size: int | None = None,
        mode: str = "affine",
    ) -> QuantizedLinear:
        """Returns a layer with the quantised weights of a layer, and with its bias itself."""
        sizes = (linear.in_features, linear.out_features)
        made = cls._of(linear.weight, sizes, bits, group_size, mode, bias=linear.bias)
        return made.train(linear.training)

    def forward(self, x: Tensor) -> Tensor:
        return ops.quantized_linear(x, *self._weights, self.bias, **self._keywords)


class QuantizedEmbedding(_Quantized):
    """Rows of weights, :func:`metalops.ops.quantized_embedding`. dtype: of scales, biases and results."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        *,
        bits: int | None = None,
        group_size: int | None = None,
        mode: str = "affine",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__((num_embeddings, embedding_dim), bits, group_size, mode, device, dtype)
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.dtype = dtype or torch.get_default_dtype()

    @classmethod
    def from_embedding(
        cls,
        embedding: nn.Embedding,
        bits: int | None = None,
        group_size: int | None = None,
        mode: str = "affine",
    ) -> QuantizedEmbedding:
        """Returns a layer with the quantised weights of a layer. Raises ValueError for one that changes its weights
        (``max_norm``)."""
        if embedding.max_norm is not None:
            raise ValueError(
                f"QuantizedEmbedding: weights that are quantised cannot be renormalised, but max_norm is {embedding.max_norm}"
            )
        sizes = (embedding.num_embeddings, embedding.embedding_dim)
        return cls._of(embedding.weight, sizes, bits, group_size, mode).train(embedding.training)

    def forward(self, indices: Tensor) -> Tensor:
        dtype = self.scales.dtype if self.biases is not None else self.dtype
        return ops.quantized_embedding(indices, *self._weights, **self._keywords, dtype=dtype)

    def as_linear(self, x: Tensor) -> Tensor:
        """Computes ``x weight^T``, for heads of language models that share the weights of their embedding."""
        return ops.quantized_linear(x, *self._weights, **self._keywords)


class QuantizedSwitchLinear(_Quantized):
    """A linear layer for each of several experts (mixture of experts), :func:`metalops.ops.gather_quantized_matmul`.

    ``weight``: of ``(num_experts, out_features, in_features)``; ``bias``: ``(num_experts, out_features)``.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        num_experts: int,
        bias: bool = True,
        *,
        bits: int | None = None,
        group_size: int | None = None,
        mode: str = "affine",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        shape = (num_experts, out_features, in_features)
        super().__init__(shape, bits, group_size, mode, device, dtype, bias)
        self.in_features, self.out_features = in_features, out_features
        self.num_experts = num_experts

    @classmethod
    def from_weight(
        cls,
        weight: Tensor,
        bias: Tensor | None = None,
        bits: int | None = None,
        group_size: int | None = None,
        mode: str = "affine",
    ) -> QuantizedSwitchLinear:
        """Returns a layer with these weights, quantised. weight: ``(num_experts, out_features, in_features)``. bias:
        ``(num_experts, out_features)``."""
        if weight.dim() != 3:
            raise ValueError(
                f"QuantizedSwitchLinear: weight must have 3 dimensions, but has sizes {list(weight.shape)}"
            )
        if bias is not None and bias.shape != weight.shape[:2]:
            raise ValueError(
                f"QuantizedSwitchLinear: bias must have sizes {list(weight.shape[:2])}, but has {list(bias.shape)}"
            )
        return cls._of(weight, tuple(weight.shape)[::-1], bits, group_size, mode, bias=bias)

    def forward(self, x: Tensor, indices: Tensor, sorted_indices: bool = False) -> Tensor:
        """x: ``(..., M, in_features)``; indices: of experts, broadcast against the dimensions before M. Returns ``(...,
        M, out_features)`` of the broadcast dimensions."""
        result = ops.gather_quantized_matmul(
            x,
            *self._weights,
            rhs_indices=indices,
            sorted_indices=sorted_indices,
            **self._keywords,
        )
        return result if self.bias is None else result + self.bias[indices].unsqueeze(-2)


def _is_linear(module: nn.Module, fqn: str) -> bool:
    return type(module) is nn.Linear


def quantize_model(
    module: nn.Module,
    *,
    bits: int | None = None,
    group_size: int | None = None,
    mode: str = "affine",
    filter_fn: Callable[[nn.Module, str], bool] | None = None,
) -> nn.Module:
    """Replaces linear layers and embeddings by quantised ones, in the module itself, and returns it (its replacement if
    it is such a layer).

    filter_fn: called with each torch.nn.Linear and torch.nn.Embedding and its name; returns whether to replace it, with
    all that is in it. By default all torch.nn.Linear, but none of derived classes, whose weights other modules may
    read. Any exception, also one of filter_fn, leaves the module as it was; replaced layers stay in memory until all of
    their replacements exist. Raises ValueError for layers that cannot be quantised so.
    """
    accepts = filter_fn or _is_linear
    accepted: dict[nn.Module, bool] = {}  # a layer may have several names
    places: dict[str, nn.Module] = {}
    outer = None  # the prefix of the names inside the last accepted layer, which come next
    for fqn, layer in list(module.named_modules(remove_duplicate=False)):
        is_inside = outer is not None and fqn.startswith(outer)
        if is_inside or not isinstance(layer, (nn.Linear, nn.Embedding)):
            continue
        if layer not in accepted:
            accepted[layer] = bool(accepts(layer, fqn))
        if accepted[layer]:
            places[fqn] = layer
            outer = f"{fqn}." if fqn else ""
    made = {
        layer: _quantized(layer, bits, group_size, mode) for layer in dict.fromkeys(places.values())
    }
    if "" in places:
        return made[module]
    replace_modules(module, {fqn: made[layer] for fqn, layer in places.items()})
    return module


def _quantized(
    layer: nn.Module, bits: int | None, group_size: int | None, mode: str
) -> QuantizedLinear | QuantizedEmbedding:
    if isinstance(layer, nn.Linear):
        return QuantizedLinear.from_linear(layer, bits, group_size, mode)
    return QuantizedEmbedding.from_embedding(layer, bits, group_size, mode)


def replace_modules(module: nn.Module, successors: Mapping[str, nn.Module]) -> None:
    """Replaces the modules of these names; if interrupted, leaves all as they were."""
    before = {fqn: module.get_submodule(fqn) for fqn in successors}
    try:
        for fqn, successor in successors.items():
            module.set_submodule(fqn, successor)
    except BaseException:
        for fqn, layer in before.items():
            module.set_submodule(fqn, layer)
        raise
