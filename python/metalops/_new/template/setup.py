from metalops.build import BuildExtension, MetalExtension
from setuptools import setup

setup(
    ext_modules=[
        MetalExtension("metal_example._kernels", ["csrc/example.mm", "kernels/example.metal"])
    ],
    # The library registers operators and is no Python module, so its name needs no Python version.
    cmdclass={"build_ext": BuildExtension.with_options(no_python_abi_suffix=True)},
)
