"""Actions on modules that take long to load, deferred until they are loaded."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from importlib.abc import Loader, MetaPathFinder


def when_loaded(module: str, action: Callable[[], None]) -> None:
    """Calls action() now if the module is loaded, else as soon as it is."""
    if module in sys.modules:
        action()
    else:
        sys.meta_path.insert(0, _WhenLoaded(module, action))


class _WhenLoaded(MetaPathFinder, Loader):
    """Loads the module as usual and then calls the action."""

    def __init__(self, module: str, action: Callable[[], None]):
        self._module = module
        self._action = action

    def find_spec(self, name, path=None, target=None):
        if name != self._module:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        self._loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._action()
