"""Entry point torch.backends: with METALOPS_AUTOLOAD=1, `import torch` brings the device up.

Not part of the package, because torch imports this module in every process, and importing anything of metalops is what
brings the device up.
"""

from __future__ import annotations

import os


def bring_up() -> None:
    if os.environ.get("METALOPS_AUTOLOAD") == "1":
        import metalops  # noqa: F401
