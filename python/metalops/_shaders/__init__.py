"""compile_shader: torch.mps.compile_shader, with function constants, threadgroup memory that the host sizes, and a
choice of the Metal version."""

from .compile import Shader, compile_shader
from .values import Value

__all__ = ["Shader", "Value", "compile_shader"]
