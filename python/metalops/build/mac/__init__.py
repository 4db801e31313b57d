"""Builds of Mac projects on Linux, unmodified: `python -m metalops build-mac -- COMMAND` runs a command among stand-ins for
the programs of a Mac's developer tools (see docs/mac_extensions.md)."""
