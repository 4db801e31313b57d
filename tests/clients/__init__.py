"""Test suites of public projects on the software device: `python -m tests.clients` runs them from checkouts that the caller
has. Nothing of theirs is in this tree."""
