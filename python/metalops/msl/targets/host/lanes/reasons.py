"""Why kernels do not run as vector lanes."""


class NoLanes(Exception):
    """Why a kernel does not run as vector lanes: what it has, as a noun."""
