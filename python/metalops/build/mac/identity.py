"""A Mac's answers about itself, for build scripts. Imports nothing of metalops: the private sitecustomize loads it."""

from __future__ import annotations

import os
import platform

MACOS = "26.0"
DARWIN = "25.0.0"


def machine() -> str:
    """Returns the processor's name: the true one, by its name on a Mac, unless METALOPS_BUILD_MAC_MACHINE chooses."""
    true = os.uname().machine
    return os.environ.get("METALOPS_BUILD_MAC_MACHINE") or {"aarch64": "arm64"}.get(true, true)


def processor() -> str:
    return "arm" if machine() == "arm64" else "i386"


def uname() -> os.uname_result:
    version = f"Darwin Kernel Version {DARWIN}"
    return os.uname_result(("Darwin", os.uname().nodename, DARWIN, version, machine()))


def functions_of_platform() -> dict[str, object]:
    """Returns what the module `platform` has on a Mac, by name."""

    def mac_uname() -> platform.uname_result:
        u = uname()
        return platform.uname_result(u.sysname, u.nodename, u.release, u.version, u.machine)

    return {
        "system": lambda: "Darwin",
        "machine": machine,
        "processor": processor,
        "release": lambda: DARWIN,
        "version": lambda: uname().version,
        "uname": mac_uname,
        "mac_ver": lambda *_, **__: (MACOS, ("", "", ""), machine()),
        "platform": lambda *_, **__: f"macOS-{MACOS}-{machine()}-64bit",
    }
