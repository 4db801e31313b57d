"""Integrations of the operators into other packages. Each module registers with one package when its ``enable()`` is
called, never before."""

from importlib import import_module

__all__ = ["bitsandbytes", "torchao", "transformers"]


def __getattr__(name: str):
    if name in __all__:
        return import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
