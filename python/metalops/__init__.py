"""Metal operators for PyTorch's mps device, and that device in software without an Apple GPU.

Importing the package is all: on a Mac it registers the operators with torch's own Metal backend;
elsewhere it first makes ``torch.device("mps")`` real.
"""

from __future__ import annotations

import sys

from . import _check, _sanitize

_sanitize.ensure_runtime()
_check.check()

# The software device exists where torch has no Metal backend of its own.
_is_software = sys.platform != "darwin"

if _is_software:
    from . import _host

    _check.check_names(_host)

    from . import _device

    _device.bring_up()

try:
    from . import _C

    _check.check_names(_C)
except ImportError as error:
    raise ImportError(
        f"metalops cannot load its operators ({error}); install it again with `pip install .`."
    ) from error

from . import _fast_path, _inductor, debug, ops  # noqa: E402
from ._coverage import coverage  # noqa: E402
from .kernel import MetalParameter, TorchMetalKernel, functor, metal_kernel  # noqa: E402

_inductor.install()
_fast_path.install()
_sanitize.turn_on()
