"""Locks that a forked child can acquire although another thread of its parent held them."""

from __future__ import annotations

import os
import threading
import weakref

_locks: weakref.WeakSet = weakref.WeakSet()


def lock() -> threading.Lock:
    """Returns a threading.Lock that is free in a forked child."""
    return _known(threading.Lock())


def recursive_lock() -> threading.RLock:
    """Returns a threading.RLock that is free in a forked child."""
    return _known(threading.RLock())


def _known(lock):
    _locks.add(lock)
    return lock


def _free_all() -> None:
    for one in list(_locks):
        one._at_fork_reinit()  # as the standard library does with its own locks


os.register_at_fork(after_in_child=_free_all)
