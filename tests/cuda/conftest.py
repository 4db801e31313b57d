from .recorded import recorder

__all__ = ["recorder"]
