"""Metal operators for PyTorch's mps device, and that device in software without an Apple GPU.

Importing the package is enough: on a Mac it registers the operators with torch's own Metal backend; elsewhere it first
makes ``torch.device("mps")`` real. Without its compiled parts Metal kernels on CUDA tensors, the operators of
``metalops.ops`` on tensors of other devices, and the front end still work.
"""

from __future__ import annotations

import gc
import sys
from importlib import import_module

from . import _compiled, _environment, _sanitize
from ._version import VERSION as __version__

_environment.check()
_sanitize.ensure_runtime()
# One sentence with the reason why the compiled parts are left out, or None.
_problem = _compiled.check()

# The software device exists where torch has no Metal backend of its own.
_is_software = sys.platform != "darwin"

# Collecting garbage would walk through all of torch's objects, which takes longer than the import.
_collects = gc.isenabled()
gc.disable()
try:
    if _problem is None:
        if _is_software:
            from . import _host

            _compiled.check_names(_host)

            from ._torch import software_device

            software_device.bring_up()

        try:
            from . import _C

            _compiled.check_names(_C)
        except ImportError as error:
            raise ImportError(
                f"metalops cannot load its operators ({error}); install it again with `pip install .`."
            ) from error

        # Each is installed once per process, even if this module is imported again or reloaded.
        from ._torch import (
            attention,
            checkpoint,
            distributed,
            flex_attention,
            grouped_mm,
            inductor,
            mps_module,
            nested_attention,
            sharding,
            sync_batch_norm,
        )

        attention.install()
        checkpoint.install()
        distributed.install()
        flex_attention.install()
        grouped_mm.install()
        inductor.install()
        mps_module.install()
        nested_attention.install()
        sharding.install()
        sync_batch_norm.install()

    from . import debug, ops

    if _problem is None:
        from .fixes import settings as _settings

        _settings.install()

    _sanitize.turn_on()
finally:
    if _collects:
        gc.enable()

# Names that are loaded on first use, because they take longer than all of the above: a name and its module, ...
_FROM_MODULES = {
    "MetalParameter": "kernel",
    "TorchMetalKernel": "kernel",
    "compile_shader": "_shaders",
    "coverage": "_cli.coverage",
    "disable_fixes": "fixes",
    "enable_fixes": "fixes",
    "enable_transformer_fast_path": "_torch.fast_path",
    "functor": "kernel",
    "metal_kernel": "kernel",
    "sampler": "_textures",
    "set_attention": "_torch.attention",
    "texture": "_textures",
}
# ... and modules.
_MODULES = (
    "build",
    "cuda",
    "fixes",
    "flash_attn",
    "integrations",
    "kernel",
    "msl",
    "nn",
    "testing",
)
# Modules of the command line, which `from metalops import *` leaves out.
_OF_COMMANDS = ("demo", "selftest", "trace")
_COMPILED = ("_C", "_build_info", "_host", "_stock_overloads")

__all__ = ["debug", "ops", *_FROM_MODULES, *_MODULES]


def __getattr__(name: str):
    if _problem is not None and name in _COMPILED:
        raise ImportError(_problem)
    if name in _MODULES or name in _OF_COMMANDS:
        return import_module(f".{name}", __name__)
    if name in _FROM_MODULES:
        value = getattr(import_module(f".{_FROM_MODULES[name]}", __name__), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_OF_COMMANDS})
