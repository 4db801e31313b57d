"""Contexts of threads, with a double of the driver's library."""

import threading

import pytest
from metalops.cuda import driver


class Library:
    """Some functions of the driver, for one thread after the other."""

    def __init__(self):
        self.calls = []
        self.current = {}

    def __getattr__(self, name):
        def call(*arguments):
            self.calls.append(name)
            own = vars(Library).get(f"_{name}")
            return own(self, *arguments) if own else 0

        return call

    def _cuCtxGetCurrent(self, context):
        context._obj.value = self.current.get(threading.get_ident())
        return 0

    def _cuDevicePrimaryCtxRetain(self, context, device):
        context._obj.value = 77
        return 0

    def _cuCtxSetCurrent(self, context):
        self.current[threading.get_ident()] = context.value
        return 0


@pytest.fixture
def library(monkeypatch):
    library = Library()
    monkeypatch.setattr(driver, "_library", lambda: library)
    monkeypatch.setattr(driver, "_thread", threading.local())
    return library


def test_a_thread_without_a_context_is_given_the_primary_one_once(library):
    driver.ensure_context(0)
    driver.ensure_context(0)
    assert library.current == {threading.get_ident(): 77}
    assert library.calls == [
        "cuCtxGetCurrent",
        "cuDeviceGet",
        "cuDevicePrimaryCtxRetain",
        "cuCtxSetCurrent",
    ]


def test_a_context_that_is_there_stays(library):
    library.current[threading.get_ident()] = 5
    driver.ensure_context(0)
    assert library.calls == ["cuCtxGetCurrent"]


def test_every_thread_is_asked(library):
    driver.ensure_context(0)
    worker = threading.Thread(target=driver.ensure_context, args=(0,))
    worker.start()
    worker.join()
    assert list(library.current.values()) == [77, 77]
