"""Entry point of the group torch.backends: `import torch` alone brings the mps device up when METALOPS_AUTOLOAD=1."""

from __future__ import annotations

import os


def bring_up() -> None:
    if os.environ.get("METALOPS_AUTOLOAD") == "1":
        import metalops  # noqa: F401
