"""The compiler of builds with Objective-C: passes a command on to the user's C or C++ compiler, or, for a source that is
Objective-C, to clang. Flags of Apple's compilers that mean nothing here are dropped.

A program, started as

    python -E compiler.py [--cc CC] [--cxx CXX] [--objcxx OBJCXX] [--objective-c always|scan] [--mac] [--c] -- ARGUMENTS

--c: the wrapper of a C compiler. --mac: links to the software device whatever uses it. It imports neither torch nor the
device.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tempfile

_SOURCES = (".c", ".cc", ".cpp", ".cxx", ".c++", ".C", ".m", ".mm", ".M")
_WITH_VALUE = frozenset(
    "-o -I -isystem -iquote -idirafter -include -imacros -D -U -L -l -MF -MT -MQ -Xclang".split()
)
# Headers that those of Apple's standard library include, and g++'s do not: sources forget to.
_INCLUDED_ON_MACS = ("-include", "memory", "-include", "optional")
_NO_LINK = frozenset("-c -S -E -fsyntax-only -M -MM --version -dumpversion -dumpmachine".split())


if __name__ == "__main__":
    from shells import import_without_device  # it lies beside this file

    del sys.path[0]
    import_without_device()

from metalops.build import objective_c  # noqa: E402
from metalops.build.mac import assembly, program  # noqa: E402
from metalops.build.mac import flags as mac_flags  # noqa: E402


class Command:
    """A compiler's arguments: the sources, with the language that -x gives them, and all others in order."""

    def __init__(self, arguments: list[str]) -> None:
        self.sources: list[tuple[str, str]] = []
        self.others: list[str] = []
        self.include_dirs: list[str] = []
        self.output = ""
        self._order: list[tuple[str, str]] = []  # (kind, word)
        language = ""
        words = iter(arguments)
        for word in words:
            if word == "-x":
                language = next(words, "")
                continue
            if word.startswith("-x") and len(word) > 2:
                language = word[2:]
                continue
            value = next(words, "") if word in _WITH_VALUE else None
            if word in ("-I", "-isystem", "-iquote") and value is not None:
                self.include_dirs.append(value)
            elif word.startswith("-I"):
                self.include_dirs.append(word[2:])
            elif word == "-o" and value is not None:
                self.output = value
            if (
                value is None
                and (language not in ("", "none") or word.endswith(_SOURCES))
                and not word.startswith("-")
            ):
                if os.path.splitext(word)[1] not in (".o", ".a", ".so", ".dylib"):
                    self.sources.append((word, language))
                    self._order.append(("source", word))
                    continue
            if value is None and word == "-" and language:
                self.sources.append((word, language))
                self._order.append(("source", word))
                continue
            self._order += [("other", word)] + ([("other", value)] if value is not None else [])
        self.others = [word for kind, word in self._order if kind == "other"]
        self.links = not _NO_LINK & set(self.others)

    def without_output(self) -> list[str]:
        """Returns the arguments that are not sources, without -o and its value."""
        words = iter(self.others)
        return [word for word in words if word != "-o" or not next(words, "x")]

    def with_objects(self, objects: dict[str, str]) -> list[str]:
        """Returns all arguments with some of the sources replaced by objects."""
        languages = dict(self.sources)
        result = []
        for kind, word in self._order:
            if kind == "other":
                result.append(word)
            elif word in objects:
                result.append(objects[word])
            else:
                language = _plain(languages[word], word)
                result += ["-x", language, word, "-x", "none"] if language else [word]
        return result


def _plain(language: str, source: str) -> str:
    """Returns the value of -x for a source that is not Objective-C: "" where its name says it."""
    if language in ("objective-c++", "objc++") or source.endswith((".mm", ".M")):
        return "c++"
    return {"objective-c": "c"}.get(language, "" if language == "none" else language)


class Driver:
    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options

    def _objcxx(self, found: objective_c.Evidence, source: str) -> list[str]:
        chosen = self._options.objcxx
        command = objective_c.find_compiler(chosen)
        if command is None:
            raise objective_c.NoObjectiveC(
                objective_c.no_compiler(found, source, self._options.cxx, chosen)
            )
        return shlex.split(command)

    def _evidence(
        self, command: Command, source: str, language: str
    ) -> objective_c.Evidence | None:
        if language in ("c", "c++", "c-header", "c++-header") or source == "-":
            return None
        if self._options.objective_c == "always":
            return objective_c.Evidence(os.path.abspath(source), 1, "its build says so")
        return objective_c.evidence(source, command.include_dirs)

    def _compile(
        self, command: Command, source: str, found: objective_c.Evidence, output: str | None
    ) -> int:
        """Compiles one Objective-C source; output: of the object, or None for what the arguments say."""
        missing = objective_c.missing_class(source, command.include_dirs)
        if missing:
            raise objective_c.NoObjectiveC(missing)
        others = (
            command.others if output is None else [*command.without_output(), "-c", "-o", output]
        )
        words = [
            *self._objcxx(found, source),
            *self._included(Command([*others, source])),
            *objective_c.flags_for_clang(others),
            *objective_c.language(source),
            source,
        ]
        status = subprocess.run(words, check=False).returncode
        made = output or command.output
        if (
            status == 0
            and made
            and os.path.isfile(made)
            and "-E" not in others
            and "-S" not in others
        ):
            missing = objective_c.missing_class_of_object(source, made)
            if missing:
                os.unlink(made)
                raise objective_c.NoObjectiveC(missing)
        return status

    def _included(self, command: Command) -> tuple[str, ...]:
        is_cpp = any(
            language in ("", "none", "c++", "objective-c++") and not source.endswith((".c", ".m"))
            for source, language in command.sources
        )
        has_library = not {"-nostdinc", "-nostdinc++"} & set(command.others)
        return _INCLUDED_ON_MACS if self._options.mac and is_cpp and has_library else ()

    def run(self, arguments: list[str]) -> int:
        command = Command(mac_flags.for_linux(_expanded(arguments)))
        found = {
            source: evidence
            for source, language in command.sources
            if (evidence := self._evidence(command, source, language)) is not None
        }
        if len(command.sources) == len(found) == 1 and not command.links:
            ((source, evidence),) = found.items()
            return self._compile(command, source, evidence, None)
        with tempfile.TemporaryDirectory(prefix="metalops") as folder:
            objects = {}
            for number, (source, evidence) in enumerate(found.items()):
                default = os.path.splitext(os.path.basename(source))[0] + ".o"
                objects[source] = os.path.join(folder, f"{number}.o") if command.links else default
                status = self._compile(command, source, evidence, objects[source])
                if status:
                    return status
            if not command.links and len(objects) == len(command.sources) > 0:
                return 0
            words = mac_flags.without_objective_c(
                command.with_objects(objects if command.links else {})
            )
            if not command.links:
                words = [word for word in words if word not in objects]
            return self._finish(command, _with_assembly(words, folder), folder)

    def _finish(self, command: Command, words: list[str], folder: str) -> int:
        """Compiles what is not Objective-C, and links."""
        # Linked by the C++ compiler, since the device's library is C++.
        links_device = command.links and self._options.mac
        compiler = self._options.cc if self._options.c and not links_device else self._options.cxx
        links_device = bool(links_device and (command.sources or _has_objects(words)))
        if links_device:
            words = words + _device(words)
        if self._options.mac and not self._options.c:
            words = [*self._included(command), *objective_c.HEADERS_FOR_CPP, *words]
        status = subprocess.run([*shlex.split(compiler), *words], check=False).returncode
        made = command.output or "a.out"
        if status or not links_device or not program.is_program(words):
            return status
        if not program.uses(made, objective_c.LIBRARY):
            return 0
        words = words + program.support(self._options.cc, folder)
        return subprocess.run([*shlex.split(compiler), *words], check=False).returncode


def _with_assembly(words: list[str], folder: str) -> list[str]:
    """Returns the arguments with assembly of a Mac replaced by what it is for Linux, in files of `folder`."""
    result = []
    for word in words:
        if word.endswith((".s", ".S")) and not word.startswith("-") and os.path.isfile(word):
            with open(word, encoding="utf-8", errors="replace") as stream:
                text = stream.read()
            if assembly.is_of_mac(text):
                word = os.path.join(folder, f"{len(result)}-{os.path.basename(word)}")
                with open(word, "w", encoding="utf-8") as stream:
                    stream.write(assembly.for_linux(text))
        result.append(word)
    return result


def _has_objects(words: list[str]) -> bool:
    return any(word.endswith((".o", ".a", ".lo")) for word in words)


def _device(words: list[str]) -> list[str]:
    """Returns the flags that link what needs the software device to it."""
    libraries = [os.path.join(objective_c.PACKAGE, "_host.so"), objective_c.LIBRARY]
    present = [library for library in libraries if os.path.isfile(library)]
    return [
        "-Wl,--push-state,--as-needed",
        *present,
        "-Wl,--pop-state",
        f"-Wl,-rpath,{objective_c.PACKAGE}",
        *([] if "-shared" in words else ["-Wl,--allow-shlib-undefined"]),
    ]


def _expanded(arguments: list[str]) -> list[str]:
    """Returns the arguments with those of response files (`@file`) in their place."""
    result = []
    for word in arguments:
        if word.startswith("@") and os.path.isfile(word[1:]):
            with open(word[1:], encoding="utf-8") as stream:
                result += _expanded(shlex.split(stream.read()))
        else:
            result.append(word)
    return result


def main(arguments: list[str]) -> int:
    own, rest = arguments[: arguments.index("--")], arguments[arguments.index("--") + 1 :]
    stand_ins = os.environ.get("METALOPS_BUILD_MAC")
    if stand_ins:  # the compilers of a Mac are this program
        folders = os.environ.get("PATH", "").split(os.pathsep)
        os.environ["PATH"] = os.pathsep.join(f for f in folders if not f.startswith(stand_ins))
    parser = argparse.ArgumentParser()
    parser.add_argument("--cc", default="gcc")
    parser.add_argument("--cxx", default="g++")
    parser.add_argument("--objcxx", default="")
    parser.add_argument("--objective-c", choices=["always", "scan"], default="scan")
    parser.add_argument("--mac", action="store_true")
    parser.add_argument("--c", action="store_true")
    try:
        return Driver(parser.parse_args(own)).run(rest)
    except objective_c.NoObjectiveC as error:
        print(error, file=sys.stderr)
    except mac_flags.Impossible as error:
        print(f"metalops: {error}.", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
