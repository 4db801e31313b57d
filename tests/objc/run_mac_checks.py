"""Runs the tests of gallery/mac_checks.mm, in a process of their own because they replace methods. Prints a JSON object of what failed,
by test. The arguments: the compiled file, and the names of the tests.
"""

from __future__ import annotations

import ctypes
import json
import sys

import metalops  # noqa: F401  the device


def main() -> None:
    library = ctypes.CDLL(sys.argv[1])
    library.begin_checks()
    failures = {}
    for name in sys.argv[2:]:
        function = library[f"test_{name}"]
        function.restype = ctypes.c_char_p
        failures[name] = (function() or b"").decode()
    print(json.dumps(failures))


if __name__ == "__main__":
    main()
