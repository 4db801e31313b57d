"""How DTensor shards the operators of metalops: over what dimensions they can run without talking to other ranks.

A rule gives what each placement of a mesh's dimension may be: the results', then the arguments', None for what is no tensor.
DTensor picks the one that moves least. Replicating everything is among them, so no call fails for its placements.
"""

from __future__ import annotations

import torch

from ._torch_internals import OpOverload, schema
from ._when_loaded import when_loaded


def install() -> None:
    """Does it when DTensor is loaded, which takes half a second."""
    if torch.distributed.is_available():
        when_loaded("torch.distributed.tensor", _register)


def _register() -> None:
    from torch.distributed.tensor.experimental import register_sharding

    operators = torch.ops.metalops
    for overload, halving in _pointwise_overloads():
        register_sharding(overload)(_Pointwise(overload, halving))
    register_sharding(operators.attention_forward.default)(_attention_forward)
    register_sharding(operators.attention_backward.default)(_attention_backward)
    register_sharding(operators.paged_attention.default)(_paged_attention)
    for merging in ("merge_attention", "merge_attention_backward"):
        register_sharding(getattr(operators, merging).default)(_merge_attention)
    register_sharding(operators.quantized_matmul.default)(_quantized_matmul)
    register_sharding(operators.gguf_linear.default)(_gguf_linear)
    register_sharding(operators.linear_act.default)(_linear_act)
    register_sharding(operators.linear_act_with_input.default)(_linear_act_with_input)
    register_sharding(operators.linear_act_backward.default)(_linear_act_backward)


def _pointwise_overloads() -> list[tuple[OpOverload, bool]]:
    """The functional ones, those in place and those of gradients (DTensor takes no out= of operators that are not torch's), and
    whether they take the two halves of a tensor.
    """
    from .ops._pointwise import declared

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
    """Any dimension of the result; of operands that are broadcast there, nothing. Where an operand's last dimension holds two
    halves, all others.
    """

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
    """The placement of an argument, unless it is not given."""
    return placement if _is_tensor(argument) else None


def _attention_forward(query, key, value, *rest, **keywords):
    shardings = [_replicated(2, (query, key, value, *rest))]
    for inputs in _attention_inputs(query, key, value, rest):
        dim = inputs[0].dim
        shardings.append(([_shard(dim), _shard(dim)], inputs))
    return shardings


def _attention_backward(grad_out, grad_lse, query, key, value, out, lse, *rest, **keywords):
    arguments = (grad_out, grad_lse, query, key, value, out, lse, *rest)
    shardings = [_replicated(6, arguments)]
    mask, sinks, slopes = rest[:3]
    if _is_tensor(mask) or _is_tensor(sinks) or _is_tensor(slopes):
        return shardings  # their gradients are sums over what would be sharded
    for inputs in _attention_inputs(query, key, value, rest):
        split = _shard(inputs[0].dim)
        placed = [split, _of(grad_lse, split), *inputs[:3], split, split, *inputs[3:]]
        shardings.append(([split] * 3 + [_replicate()] * 3, placed))
    return shardings


def _replicate():
    from torch.distributed.tensor import Replicate

    return Replicate()


def _attention_inputs(query, key, value, rest):
    """Placements over sequences and over heads, for (batch, heads, tokens, features)."""
    mask, sinks, slopes, starts_q, starts_k, used_k, rng, *numbers = rest
    if query.ndim != 4 or _is_tensor(rng):
        return  # packed sequences share a dimension; random numbers depend on the position
    others = [None] * len(numbers)

    def of_mask(dim):
        if not _is_tensor(mask):
            return None
        own = dim - (4 - mask.ndim)
        return _shard(own) if own >= 0 and mask.shape[own] != 1 else _replicate()

    def of_slopes(dim):
        if not _is_tensor(slopes):
            return None
        own = dim - (2 - slopes.ndim)
        return _shard(own) if own >= 0 else _replicate()

    batch, heads = _shard(0), _shard(1)
    yield [batch, batch, batch, of_mask(0), _of(sinks, _replicate()), of_slopes(0), None, None] + [
        _of(used_k, batch),
        None,
        *others,
    ]
    # Heads that share keys stay together.
    if key.shape[1] % query.mesh.size() == 0:
        yield [heads, heads, heads, of_mask(1), _of(sinks, _shard(0)), of_slopes(1), None, None] + [
            _of(used_k, _replicate()),
            None,
            *others,
        ]


def _paged_attention(
    query, key, value, table, lengths, starts, sinks, slopes, k_scale, v_scale, *numbers
):
    """Over heads, of (batch, tokens, heads, features) and caches like it, and over sequences, which share the pages."""
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
    """Over everything but the features, the last dimension of some."""
    results = 2 if len(parts) == 4 else 4
    rank = min(x.ndim for x in parts)
    shardings = [_replicated(results, parts)]
    for dim in range(rank):
        shardings.append(([_shard(dim)] * results, [_shard(dim)] * len(parts)))
    return shardings


def _splits(tensor, dim: int) -> bool:
    """Whether all ranks get as much of a dimension, in which the groups of a format lie."""
    return tensor.shape[dim] % tensor.mesh.size() == 0


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
    # Features of the result; then those that are summed over, of which each rank has a part of the sum.
    features, summed = (rows, rows + 1) if transpose else (rows + 1, rows)
    if _splits(packed, features) and _splits(scales, features):
        add(_shard(last), _replicate(), _shard(features), _shard(0))
    if _splits(packed, summed) and _splits(scales, summed):
        add(_partial(), _shard(last), _shard(summed), _partial())
    return shardings


def _gguf_linear(x, data, bias, qtype):
    last = x.ndim - 1
    shardings = [_replicated(1, (x, data, bias, qtype))]
    for dim in range(last):
        of_bias = _of(bias, _replicate())
        shardings.append(([_shard(dim)], [_shard(dim), _replicate(), of_bias, None]))
    shardings.append(([_shard(last)], [_replicate(), _shard(0), _of(bias, _shard(0)), None]))
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

    for dim in range(last):
        split = _shard(dim)
        add([split, _partial(), _partial()], split, split, _replicate(), _replicate())
    if activation != "silu_and_mul":
        rows = _shard(0)
        add([_partial(), rows, rows], _shard(last), _replicate(), rows, rows)
    columns = [_shard(last), _shard(1), _replicate()]
    add(columns, _replicate(), _shard(last), _shard(1), _replicate())
    return shardings
