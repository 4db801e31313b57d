"""Builds Metal kernels and their host stubs into a Python extension, for macOS and Linux alike.

A package's setup.py lists `.metal`, `.mm` and `.cpp` files as sources of one extension::

    from metalops.build import BuildExtension, MetalExtension
    from setuptools import setup

    setup(
        name="my_package",
        packages=["my_package"],
        ext_modules=[MetalExtension("my_package._C", ["ops.mm", "kernels/my_kernels.metal"])],
        cmdclass={"build_ext": BuildExtension},
    )

and an `.mm` file reaches its kernels as `metalops::library("my_kernels")` after including <metalops/library.h>.
`load` does the same just in time. This package does not import the device and needs no Metal at build time.
"""

from metalops.build.extension import BuildExtension, MetalExtension
from metalops.build.jit import load
from metalops.build.paths import host_library, include_paths

__all__ = ["BuildExtension", "MetalExtension", "host_library", "include_paths", "load"]
