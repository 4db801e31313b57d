"""Where the front end's own headers are: the metal_stdlib that emitted code is compiled against, for all targets."""

from __future__ import annotations

import os

HEADERS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "include")
