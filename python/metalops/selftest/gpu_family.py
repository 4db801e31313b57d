"""The GPU families of this Mac according to Metal, which determine the features that kernels may use."""

from __future__ import annotations

import ctypes
import sys

# MTLGPUFamily. Families of one kind contain those before them.
_APPLE = {f"Apple{n}": 1000 + n for n in range(1, 13)}
_METAL = {"Metal3": 5001, "Metal4": 5002}


def names() -> list[str]:
    """Returns the newest of Apple's families and of Metal's, or nothing without Metal."""
    if sys.platform != "darwin":
        return []
    metal = ctypes.CDLL("/System/Library/Frameworks/Metal.framework/Metal")
    metal.MTLCreateSystemDefaultDevice.restype = ctypes.c_void_p
    device = metal.MTLCreateSystemDefaultDevice()
    if not device:
        return []
    objc = ctypes.CDLL("/usr/lib/libobjc.dylib")
    objc.sel_registerName.restype = ctypes.c_void_p
    objc.sel_registerName.argtypes = [ctypes.c_char_p]
    selector = objc.sel_registerName(b"supportsFamily:")
    prototype = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long)
    supports = prototype(("objc_msgSend", objc))
    found = []
    for families in (_APPLE, _METAL):
        supported = [name for name, n in families.items() if supports(device, selector, n)]
        found += supported[-1:]
    return found
