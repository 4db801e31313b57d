"""Which kernels a program launches."""

from metalops import debug


def kernels_of(call, folder):
    """What call() gives, and the names of the kernels that it launches, in order."""
    with debug.capture(folder / "launches.trace", contents=False) as trace:
        result = call()
    return result, [launch.kernel for launch in trace.launches]
