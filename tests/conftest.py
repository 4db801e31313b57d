"""What every test needs: the device, before torch's testing modules look for it."""

import gc
import importlib.util
import json
import os
import sys
import unittest
from pathlib import Path

# Attention is tested on our kernels, also in other processes. "auto" leaves small calls to torch on the software device.
os.environ.setdefault("METALOPS_ATTENTION", "metalops")

# torch.testing._internal reads at import whether there is an mps device.
import metalops
import pytest
import torch
import torch.testing._internal.common_utils  # loads a profile of hypothesis of its own, so it comes before ours
from filelock import FileLock
from hypothesis import settings
from metalops.msl.targets.host import sanitizers

from . import durations, tiers

# Of random tests: a few examples, always the same; --hypothesis-profile=thorough takes many new ones.
settings.register_profile("quick", max_examples=50, derandomize=True, deadline=None, database=None)
settings.register_profile(
    "thorough", max_examples=2000, deadline=None, database=None, print_blob=True
)
settings.load_profile("quick")


# Folders about the inside of the software device, which a Mac has not got.
INSIDE = {"device", "exec", "fuzz", "msl", "mutation", "sanitize", "tensorops", "trace"}


class _Inside(pytest.Module):
    def collect(self):
        pytest.skip("about the software device; this machine has an Apple GPU")


def pytest_pycollect_makemodule(module_path, parent):
    if not metalops._is_software and module_path.parent.name in INSIDE:
        return _Inside.from_parent(parent, path=module_path)
    return None


def pytest_xdist_auto_num_workers(config):
    """Single files run in this process: others would take longer to start than most files to run."""
    if config.args and all(Path(argument.split("::")[0]).is_file() for argument in config.args):
        return 0
    return None  # as many as there are CPUs


def pytest_addoption(parser):
    tiers.add_options(parser)
    parser.addoption(
        "--compare-engines",
        action="store_true",
        help="run each launch on every engine that takes its kernel, and fail tests where they differ",
    )
    parser.addoption(
        "--record-launches",
        metavar="FOLDER",
        help="write traces of the first launches of each kernel, for `python -m metalops replay --check`",
    )


def pytest_configure(config):
    if record := config.getoption("record_durations"):
        config.pluginmanager.register(durations.Recorder(record))
    if is_xdist_worker(config):
        # They share the CPUs. Tests that are about several threads ask for them.
        threads = torch.get_num_threads() // config.workerinput["workercount"]
        torch.set_num_threads(max(1, threads))


def _leave_out_devices_that_are_not_there():
    # torch keeps seeds for them until they are there, each with a printed stack: milliseconds, thousands of times.
    for device in (torch.cuda, torch.mtia, torch.xpu):
        if not device.is_available():
            device.manual_seed_all = lambda seed: None


def _test_function():
    """What torch's extract_test_fn returns, which takes 0.1 s for it: inspect.stack() reads the source of all frames."""
    frame = sys._getframe()
    while frame is not None:
        test = frame.f_locals.get("self")
        if isinstance(test, unittest.TestCase):
            return getattr(test, test._testMethodName).__func__
        frame = frame.f_back
    return None


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Collects without Python's collector of garbage, which took two fifths of the time to go through objects that stay, and
    has it leave these alone afterwards."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_finish():
    _leave_out_devices_that_are_not_there()
    for name in ("torch.testing._internal.common_utils", "torch.testing._internal.opinfo.core"):
        if name in sys.modules:
            sys.modules[name].extract_test_fn = _test_function


def is_xdist_worker(config):
    """Not by xdist's environment variables: pytest started by a test has them too."""
    return hasattr(config, "workerinput")


@pytest.hookimpl(tryfirst=True)  # before pytest selects by mark
def pytest_collection_modifyitems(config, items):
    tiers.select(config, items)
    mode = sanitizers.loaded() if metalops._is_software else ""
    for item in items:
        for mark in item.iter_markers("reported"):
            if mode in mark.kwargs.get("modes", ("address", "thread")):
                errors = (RuntimeError, AssertionError)  # another one than the test expects
                item.add_marker(pytest.mark.xfail(reason=mark.args[0], raises=errors, strict=True))


@pytest.fixture(autouse=True)
def _same_random_numbers_in_every_test():
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _launches_are_compared(pytestconfig):
    if not pytestconfig.getoption("compare_engines"):
        yield
        return
    from .exec.engines import compared

    with compared() as record:
        yield
    assert not record.differences, "\n".join(record.differences)


@pytest.fixture(scope="session", autouse=True)
def _launches_are_recorded(pytestconfig):
    folder = pytestconfig.getoption("record_launches")
    if folder is None:
        yield
        return
    from .trace.recording import recorded

    with recorded(folder):
        yield


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory, pytestconfig):
    """A folder of this run that all workers of pytest-xdist share."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if is_xdist_worker(pytestconfig) else folder


@pytest.fixture(scope="session")
def once(shared_folder):
    """once(name, make): what make() returns, which JSON can hold. The first worker that asks makes it, others wait."""

    def result(name, make):
        path = shared_folder / f"{name}.json"
        with FileLock(f"{path}.lock"):
            if not path.exists():
                path.write_text(json.dumps(make()))
        return json.loads(path.read_text())

    return result


@pytest.fixture(scope="session")
def load_script():
    """A function from the path of a Python file outside of any package to its module."""

    def load(path):
        spec = importlib.util.spec_from_file_location(Path(path).stem, path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # where its dataclasses look for their annotations
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture
def fresh_compiler():
    """torch.compile with nothing remembered from earlier tests, and nothing left to later ones."""
    from torch._inductor.utils import fresh_cache  # takes seconds to import

    torch._dynamo.reset()
    with fresh_cache():
        yield
    torch._dynamo.reset()
