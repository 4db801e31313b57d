"""torch.nn.attention.flex_attention under autocast on ``mps``, which torch has for CUDA and the CPU only: queries, keys and
values of several dtypes, as linear layers leave them, are an error there without it."""

from __future__ import annotations

import functools

import torch

from .internals import DispatchKey, DispatchKeySet, autocast_to, excluded_keys


@functools.cache
def install() -> None:
    attention = torch.ops.higher_order.flex_attention

    @attention.py_impl(DispatchKey.AutocastMPS)
    def with_autocast(query, key, value, *args, **keywords):
        dtype = torch.get_autocast_dtype("mps")
        query, key, value = (autocast_to(x, "mps", dtype) for x in (query, key, value))
        with excluded_keys(DispatchKeySet(DispatchKey.AutocastMPS)):
            return attention(query, key, value, *args, **keywords)
