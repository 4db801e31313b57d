"""A plugin of pytest: tests of tilelang for Metal ask whether TVM's own runtime was built for it, and the package asks which
macOS there is. Kernels that it compiles for torch are launched by torch.mps.compile_shader, wherever that is. METAL4=1: as on a Mac
with Metal 4."""

import os

import tilelang.metal.target
import tilelang.testing

tilelang.metal.target.mac_ver = lambda: ("26.0", ("", "", ""), "arm64")
tilelang.metal.target.check_metal4_availability = lambda: os.environ.get("METAL4") == "1"
tilelang.testing.requires_metal = lambda test: test
