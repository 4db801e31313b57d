"""Time and memory of a program on mps: metalops.debug.profile() and metalops.debug.memory().

calls.py sees the calls of operators, and knows the module that makes them; profile.py times them and the kernels that they
launch, events.py writes them as a trace, and memory.py follows the memory that they allocate.
"""

from __future__ import annotations
