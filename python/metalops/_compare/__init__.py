"""Every operator of mps tensors is also run on the CPU: metalops.debug.compare().

mode.py sees the calls, compiled.py the kernels of compiled functions. For each, arguments.py copies what it is given,
reference.py runs it on the CPU, judgement.py says whether the results agree, and random_numbers.py what can be said of
random ones. modules.py tells the module that a call belongs to, report.py describes a difference, file.py writes one to a
file and reads it, and replay.py runs it again.
"""

from __future__ import annotations
