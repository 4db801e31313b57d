"""What the gallery contains."""

import re
from pathlib import Path

GALLERY = Path(__file__).parent / "gallery"


def names_in(name: str) -> list[str]:
    """The names of the tests in a file of the gallery."""
    return re.findall(r"^TEST\((\w+)\)", (GALLERY / f"{name}.mm").read_text(), re.MULTILINE)
