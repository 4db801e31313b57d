import pytest

from .group import Groups


@pytest.fixture(scope="session")
def groups():
    """groups(size): processes that are the ranks of a group; see group.py."""
    groups = Groups()
    yield groups
    groups.close()


@pytest.fixture
def pair(groups):
    return groups(2)
