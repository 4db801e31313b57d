"""DTensor sharding rules for the operators of metalops: the dimensions over which they run without communication.

A rule lists the possible placements for a mesh dimension: the results', then the arguments', None for a non-tensor.
DTensor picks the one that moves least. Replicating everything is among them, so no call fails for its placements. For
operators that write into other tensors than their first, see sharding_written.py.
"""

from __future__ import annotations

import functools

import torch

from .internals import OpOverload, schema
from .when_loaded import when_loaded


@functools.cache
def install() -> None:
    """Registers the rules when DTensor is loaded, which takes half a second."""
    if torch.distributed.is_available():
        when_loaded("torch.distributed.tensor", _register)


def _register() -> None:
    from torch.distributed.tensor.experimental import register_sharding

    from . import sharding_written

    sharding_written.register()
    operators = torch.ops.metalops
    for overload, halving in _pointwise_overloads():
        register_sharding(overload)(_Pointwise(overload, halving))
    register_sharding(operators.attention_forward.default)(_attention_forward)
    register_sharding(operators.attention_backward.default)(_attention_backward)
    register_sharding(operators.paged_attention.default)(_paged_attention)
    for merging in ("merge_attention", "merge_attention_backward"):
        register_sharding(getattr(operators, merging).default)(_merge_attention)
    register_sharding(operators.quantized_matmul.default)(_quantized_matmul)
    register_sharding(operators.quantize.default)(_quantize)
    register_sharding(operators.dequantize.default)(_dequantize)
    register_sharding(operators.quantized_scales_gradient.default)(_scales_gradient)
    register_sharding(operators.gguf_linear.default)(_gguf_linear)
    register_sharding(operators.gguf_dequantize.default)(_gguf_dequantize)
    register_sharding(operators.rotate_tokens.default)(_rotate_tokens)
    register_sharding(operators.linear_act.default)(_linear_act)
    register_sharding(operators.linear_act_with_input.default)(_linear_act_with_input)
    register_sharding(operators.linear_act_backward.default)(_linear_act_backward)


def _pointwise_overloads() -> list[tuple[OpOverload, bool]]:
    """Returns the functional, in-place and gradient overloads, each with true if it takes halves of a tensor."""
    from ..ops._define.pointwise import declared

    found = []
    for name, operator in declared.items():
        for variant in (name, f"{name}_", f"{name}_backward"):
            packet = getattr(torch.ops.metalops, variant, None)
            if packet is not None:
                found.append((packet.default, operator.halving))
    return found


def _replicated(results: int, arguments):
    from torch.distributed.tensor import Replicate

    return ([Replicate()] * results, [Replicate() if _is_tensor(x) else None for x in arguments])


def _is_tensor(argument: object) -> bool:
    return hasattr(argument, "placements")


def _shard(dim: int):
    from torch.distributed.tensor import Shard

    return Shard(dim)


class _Pointwise:
    """Shards any dimension of the result; operands that are broadcast there are replicated. If an operand's last
    dimension holds two halves, all other dimensions."""

    def __init__(self, overload: OpOverload, halving: bool):
        self._results = len(schema(overload).returns)
        self._halving = halving

    def __call__(self, *arguments, **keywords):
        rank = max(x.ndim for x in arguments if _is_tensor(x))
        shardings = [_replicated(self._results, arguments)]
        for dim in range(rank - 1 if self._halving else rank):
            inputs = [self._place(x, dim, rank) for x in arguments]
            shardings.append(([_shard(dim)] * self._results, inputs))
        return shardings

    @staticmethod
    def _place(argument, dim: int, rank: int):
        from torch.distributed.tensor import Replicate

        if not _is_tensor(argument):
            return None
        own = dim - (rank - argument.ndim)
        return _shard(own) if own >= 0 and argument.shape[own] != 1 else Replicate()


def _of(argument, placement):
    """Returns the placement of an argument, or None if it is not given."""
    return placement if _is_tensor(argument) else None


def _attention_forward(query, key, value, *rest, **keywords):
    shardings = [_replicated(2, (query, key, value, *rest))]
    for inputs in _attention_inputs(query, key, value, rest):
        shardings.append(([inputs[0], _of_lse(query, inputs[0])], inputs))
    return shardings


def _of_lse(query, placement):
    """Returns the placement of the lse; for packed sequences it has heads before tokens."""
    return _shard(0) if query.ndim == 3 else placement


def _attention_backward(grad_out, grad_lse, query, key, value, out, lse, *rest, **keywords):
    arguments = (grad_out, grad_lse, query, key, value, out, lse, *rest)
    shardings = [_replicated(6, arguments)]
    mask, sinks, slopes = rest[:3]
    if _is_tensor(mask) or _is_tensor(sinks) or _is_tensor(slopes):
        return shardings  # the gradients of these are sums over the sharded dimension
    for inputs in _attention_inputs(query, key, value, rest):
        split = inputs[0]
        of_lse = _of_lse(query, split)
        placed = [split, _of(grad_lse, of_lse), *inputs[:3], split, of_lse, *inputs[3:]]
        shardings.append(([split] * 3 + [_replicate()] * 3, placed))
    return shardings


def _replicate():
    from torch.distributed.tensor import Replicate

    return Replicate()


def _attention_inputs(query, key, value, rest):
    """Yields placements over sequences and over heads, for (batch, heads, tokens, features); for packed sequences,
    (tokens, heads, features), over heads."""
    mask, sinks, slopes, starts_q, starts_k, used_k, rng, *numbers = rest
    if _is_tensor(rng):
        return  # random numbers depend on the position
    others = [None] * len(numbers)

    def of_mask(dim):
        if not _is_tensor(mask):
            return None
        own = dim - (4 - mask.ndim)
        return _shard(own) if own >= 0 and mask.shape[own] != 1 else _replicate()

    def place(split, of_mask, of_sinks, of_slopes, of_lengths):
        options = [_of(sinks, of_sinks), _of(slopes, of_slopes)]
        starts = [_of(x, _replicate()) for x in (starts_q, starts_k)]
        lengths = _of(used_k, of_lengths)
        return [split, split, split, of_mask, *options, *starts, lengths, None, *others]

    if query.ndim == 4:
        of_slopes = _shard(0) if _is_tensor(slopes) and slopes.ndim == 2 else _replicate()
        yield place(_shard(0), of_mask(0), _replicate(), of_slopes, _shard(0))
    # Query heads that share key heads (GQA) stay together.
    if key.ndim == query.ndim and key.shape[1] % query.mesh.size() == 0:
        of_slopes = _shard(slopes.ndim - 1) if _is_tensor(slopes) else None
        yield place(_shard(1), of_mask(1), _shard(0), of_slopes, _replicate())


def _paged_attention(
    query, key, value, table, lengths, starts, sinks, slopes, k_scale, v_scale, *numbers
):
    """Shards over heads, of (batch, tokens, heads, features) and caches like it, and over sequences, which share the
    pages."""
    options = (table, lengths, starts, sinks, slopes, k_scale, v_scale)
    shardings = [_replicated(2, (query, key, value, *options, *numbers))]

    def add(results, of_query, of_cache, of_options):
        placed = map(_of, options, of_options)
        shardings.append((results, [of_query, of_cache, of_cache, *placed, *[None] * len(numbers)]))

    same, first, heads = _replicate(), _shard(0), _shard(2)
    has_pages = _is_tensor(table)
    of_slopes = first if _is_tensor(slopes) and slopes.ndim == 2 else same
    of_options = [first, first, first, same, of_slopes, same, same]
    add([first, first], first, same if has_pages else first, of_options)
    if key.shape[2] % query.mesh.size() == 0:
        of_slopes = _shard(slopes.ndim - 1) if _is_tensor(slopes) else None
        of_options = [same, same, same, first, of_slopes, same, same]
        add([heads, _shard(1)], heads, heads, of_options)
    return shardings


def _merge_attention(*parts):
    """Shards over everything but the features, the last dimension of some."""
    results = 2 if len(parts) == 4 else 4
    rank = min(x.ndim for x in parts)
    shardings = [_replicated(results, parts)]
    for dim in range(rank):
        shardings.append(([_shard(dim)] * results, [_shard(dim)] * len(parts)))
    return shardings


def _splits(tensor, dim: int) -> bool:
    """Returns true if a dimension splits evenly over the ranks."""
    return tensor.shape[dim] % tensor.mesh.size() == 0


def _splits_groups(packed, scales, bits: int, group_size: int) -> bool:
    """Returns true if a row splits into equal numbers of whole groups, with their scales, for all ranks."""
    last = packed.ndim - 1
    whole = packed.shape[last] * 8 == scales.shape[last] * group_size * bits
    return whole and _splits(packed, last) and _splits(scales, last)


def _partial():
    from torch.distributed.tensor import Partial

    return Partial()


def _quantized_matmul(
    x, packed, scales, biases, bias, global_scale, left, right, transpose, *numbers
):
    arguments = (x, packed, scales, biases, bias, global_scale, left, right, transpose, *numbers)
    shardings = [_replicated(1, arguments)]
    if _is_tensor(left) or _is_tensor(right):
        return shardings
    last, rows = x.ndim - 1, packed.ndim - 2
    same = _of(global_scale, _replicate())
    none = [None] * (3 + len(numbers))

    def add(result, of_x, of_weights, of_bias):
        weights = [of_weights, of_weights, _of(biases, of_weights), _of(bias, of_bias)]
        shardings.append(([result], [of_x, *weights, same, *none]))

    for dim in range(last):
        if x.shape[dim] > 1 and (dim == last - 1 or packed.shape[0] == 1):
            add(_shard(dim), _shard(dim), _replicate(), _replicate())
    # Output features; then the reduction dimension K, over which each rank has a partial sum.
    features, summed = (rows, rows + 1) if transpose else (rows + 1, rows)
    can_split = {
        rows: _splits(packed, rows) and _splits(scales, rows),
        rows + 1: _splits_groups(packed, scales, *numbers[:2]),
    }
    if can_split[features]:
        add(_shard(last), _replicate(), _shard(features), _shard(0))
    if can_split[summed]:
        add(_partial(), _shard(last), _shard(summed), _partial())
    return shardings


def _quantize(weight, global_scale, bits, group_size, mode):
    """Shards over rows, and over columns between groups; the last result is a real one only in the mode with biases."""
    arguments = (weight, global_scale, bits, group_size, mode)
    shardings = [_replicated(3, arguments)]
    last = weight.ndim - 1
    same = _of(global_scale, _replicate())
    for dim in range(weight.ndim):
        if dim < last or weight.shape[last] % (group_size * weight.mesh.size()) == 0:
            split = _shard(dim)
            of_biases = split if mode == "affine" else _replicate()
            shardings.append(([split, split, of_biases], [split, same, None, None, None]))
    return shardings


def _dequantize(packed, scales, biases, global_scale, indices, bits, group_size, mode, dtype):
    """Shards as _quantize; for embeddings over indices, and over columns."""
    arguments = (packed, scales, biases, global_scale, indices, bits, group_size, mode, dtype)
    shardings = [_replicated(1, arguments)]
    last = packed.ndim - 1

    def add(result, of_weights, of_indices):
        weights = [of_weights, of_weights, _of(biases, of_weights), _of(global_scale, _replicate())]
        shardings.append(([result], [*weights, _of(indices, of_indices), None, None, None, None]))

    rows = packed if indices is None else indices
    lines = last if indices is None else indices.ndim
    for dim in range(lines):
        if rows is packed:
            add(_shard(dim), _shard(dim), None)
        else:
            add(_shard(dim), _replicate(), _shard(dim))
    if _splits_groups(packed, scales, bits, group_size):
        add(_shard(lines), _shard(last), _replicate())
    return shardings


def _scales_gradient(grad, packed, scales, bits, group_size, mode):
    """Shards over rows, and over columns between groups; the gradient of partial sums is partial sums."""
    arguments = (grad, packed, scales, bits, group_size, mode)
    shardings = [_replicated(2, arguments)]

    def add(result, of_weights):
        of_biases = result if mode == "affine" else _replicate()
        placed = [result, of_weights, of_weights, None, None, None]
        shardings.append(([result, of_biases], placed))

    last = packed.ndim - 1
    for dim in range(last):
        add(_shard(dim), _shard(dim))
    if _splits_groups(packed, scales, bits, group_size):
        add(_shard(last), _shard(last))
    add(_partial(), _replicate())
    return shardings


def _splits_blocks(data, qtype: int) -> bool:
    """Returns true if a row splits into equal numbers of whole blocks for all ranks."""
    from ..ops._formats.gguf import BY_NUMBER

    blocks = data.shape[data.ndim - 1] // BY_NUMBER[qtype].bytes
    return blocks % data.mesh.size() == 0


def _gguf_dequantize(data, indices, qtype, dtype):
    shardings = [_replicated(1, (data, indices, qtype, dtype))]
    last = data.ndim - 1
    lines = last if indices is None else indices.ndim
    for dim in range(lines):
        of_data = _shard(dim) if indices is None else _replicate()
        shardings.append(([_shard(dim)], [of_data, _of(indices, _shard(dim)), None, None]))
    if _splits_blocks(data, qtype):
        inputs = [_shard(last), _of(indices, _replicate()), None, None]
        shardings.append(([_shard(lines)], inputs))
    return shardings


def _rotate_tokens(tokens, lengths, cosines, sines, interleaved, advances):
    """Shards over sequences and heads, of (batch, tokens, heads, features)."""
    arguments = (tokens, lengths, cosines, sines, interleaved, advances)
    shardings = [_replicated(1, arguments)]
    same = _replicate()
    for dim, of_lengths in ((0, _shard(0)), (2, same)):
        shardings.append(([_shard(dim)], [_shard(dim), of_lengths, same, same, None, None]))
    return shardings


def _gguf_linear(x, data, bias, qtype):
    last = x.ndim - 1
    shardings = [_replicated(1, (x, data, bias, qtype))]
    for dim in range(last):
        of_bias = _of(bias, _replicate())
        shardings.append(([_shard(dim)], [_shard(dim), _replicate(), of_bias, None]))
    shardings.append(([_shard(last)], [_replicate(), _shard(0), _of(bias, _shard(0)), None]))
    if _splits_blocks(data, qtype):
        of_bias = _of(bias, _partial())
        shardings.append(([_partial()], [_shard(last), _shard(1), of_bias, None]))
    return shardings


def _linear_act(x, weight, bias=None, activation="none"):
    last = x.ndim - 1
    arguments = (x, weight, bias, activation)
    shardings = [_replicated(1, arguments)]
    for dim in range(last):
        of_bias = _of(bias, _replicate())
        shardings.append(([_shard(dim)], [_shard(dim), _replicate(), of_bias, None]))
    if activation != "silu_and_mul":
        shardings.append(([_shard(last)], [_replicate(), _shard(0), _of(bias, _shard(0)), None]))
    if activation == "none":
        of_bias = _of(bias, _partial())
        shardings.append(([_partial()], [_shard(last), _shard(1), of_bias, None]))
    return shardings


def _linear_act_with_input(x, weight, bias=None, activation="none"):
    # Both results have the features of the weights' rows.
    shardings = [_replicated(2, (x, weight, bias, activation))]
    for results, arguments in _linear_act(x, weight, bias, activation)[1:]:
        if not results[0].is_partial():
            shardings.append((results * 2, arguments))
    return shardings


def _linear_act_backward(grad_output, x, weight, bias, saved, activation, output_mask):
    last = x.ndim - 1
    arguments = (grad_output, x, weight, bias, saved, activation, output_mask)
    shardings = [_replicated(3, arguments)]

    def add(of_results, of_grad, of_x, of_weight, of_bias):
        inputs = [of_grad, of_x, of_weight, _of(bias, of_bias), _of(saved, of_grad), None, None]
        shardings.append((of_results, inputs))

    if activation == "none" and list(output_mask) == [False, False, True]:
        # Sums of grad_output, the gradient of quantized_matmul's bias, too: the other arguments are not used.
        for dim in range(last):
            add([_partial()] * 3, *[_shard(dim)] * 3, _replicate())
        add([_shard(0)] * 3, *[_shard(last)] * 3, _replicate())
        add([_partial()] * 3, *[_partial()] * 3, _replicate())
        return shardings
    for dim in range(last):
        split = _shard(dim)
        add([split, _partial(), _partial()], split, split, _replicate(), _replicate())
    if activation != "silu_and_mul":
        rows = _shard(0)
        add([_partial(), rows, rows], _shard(last), _replicate(), rows, rows)
    columns = [_shard(last), _shard(1), _replicate()]
    add(columns, _replicate(), _shard(last), _shard(1), _replicate())
    return shardings
