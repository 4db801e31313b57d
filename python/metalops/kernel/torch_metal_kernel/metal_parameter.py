"""MetalParameter: a thread attribute under a name of the user's choice."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ...msl.source.vocabulary import THREAD_ATTRIBUTES
from ..identifiers import check_identifier

_TYPES = {
    "uint": re.compile(r"(metal::)?(uint|ushort|uint32_t|uint16_t)"),
    "uint3": re.compile(r"(metal::)?(uint[23]?|ushort[23]?|uint32_t|uint16_t)"),
}


@dataclass(frozen=True)
class MetalParameter:
    """A thread attribute as a parameter of a kernel.

    name: its name in the kernel's source. msl_type: "uint", "ushort", or for positions and sizes also "uint2",
    "uint3", "ushort2", "ushort3". attribute: one of Metal's thread attributes, without brackets.

    >>> MetalParameter("gid", "uint2", "thread_position_in_grid")
    MetalParameter(name='gid', msl_type='uint2', attribute='thread_position_in_grid')

    Raises TypeError or ValueError for anything else.
    """

    name: str
    msl_type: str
    attribute: str

    def __post_init__(self) -> None:
        owner = f"MetalParameter {self.name!r}"
        check_identifier(owner, "name", self.name)
        for role in ("msl_type", "attribute"):
            if not isinstance(getattr(self, role), str):
                raise TypeError(
                    f"{owner}: {role} must be a string, but got {getattr(self, role)!r}"
                )
        if self.attribute not in THREAD_ATTRIBUTES:
            raise ValueError(
                f"{owner}: {self.attribute!r} is not a thread attribute of Metal; "
                f"those are {', '.join(THREAD_ATTRIBUTES)}"
            )
        widest = THREAD_ATTRIBUTES[self.attribute].type
        if not _TYPES[widest].fullmatch(self.msl_type):
            vectors = ", or a vector of 2 or 3 of them" if widest == "uint3" else ""
            raise ValueError(
                f"{owner}: {self.attribute} is a uint or ushort{vectors}, but got {self.msl_type!r}"
            )

    def __str__(self) -> str:
        return f"{self.msl_type} {self.name} [[{self.attribute}]]"
