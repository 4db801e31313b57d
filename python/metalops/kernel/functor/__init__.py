"""Elementwise operators from Metal expressions: `functor`."""

from .functor import Functor, functor

__all__ = ["Functor", "functor"]
