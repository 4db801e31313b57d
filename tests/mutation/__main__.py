"""Shows that the tests notice faults in the kernels: python -m tests.mutation [FAMILY...] [--all] [--sample N]

Every kernel file FAMILY.metal of kernels/ (default: all), is tried with one small fault at a time (see mutants.py): by
default each barrier and each bound check is deleted, with --all many more things are changed. The family's tests run
with each such mutant in place of the real kernels, at last under the compiler's sanitizers; one that nothing notices has
survived. The exit status is 1 if one survives.

Most mutants of a family are compiled at once, into one library that asks a variable which of them it is; what cannot
depend on a variable, such as a number that C++ wants to be constant, becomes a library of its own.

The package itself is not changed: the tests import a copy of it that consists of links to its files, but for the mutant.
A header's mutant is built into each family that includes it and must be noticed in one of them. What cannot be noticed
stands in equivalent.txt, with the reason; it must indeed survive.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from glob import glob

import metalops
from metalops.build import compilers, metal_sources, paths
from metalops.msl.build import Options, compile_emitted
from metalops.msl.source.preprocess import preprocess
from metalops.msl.targets.host.emit import emit

from .mutants import Mutant, find, with_switch

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PACKAGE = os.path.dirname(os.path.abspath(metalops.__file__))
HERE = os.path.dirname(os.path.abspath(__file__))
LIBRARIES = "_C.kernels"
HEADERS = os.path.join("include", "metalops")
PUBLIC_HEADERS = os.path.join("python", "metalops", HEADERS)
# Which of the compiler's sanitizers sees what a mutant does wrong, if results do not show it.
SANITIZERS = {"barrier": "thread", "bound check": "address"}
FOLDERS_WITH_MUTANTS = (LIBRARIES, HEADERS)
# Says to a library with many mutants which one it is.
SWITCH = """#include <cstdlib>
static const int mutant = std::getenv("MUTANT") ? std::atoi(std::getenv("MUTANT")) : -1;
"""


@dataclasses.dataclass(frozen=True)
class Stage:
    """A round of tests for the mutants that survived the rounds before. sanitize: how kernels are compiled."""

    tests: tuple[str, ...]
    sanitize: str = ""


def _path_of_tests(name: str) -> str:
    pattern = os.path.join("tests", "ops", "**", f"test_{name}.py")
    return next(iter(glob(pattern, root_dir=ROOT, recursive=True)), pattern)


def _tests_of(name: str) -> tuple[str, ...]:
    """The files of tests of a kernel file; first those of its kernels alone, which run few other things."""
    paths = (_path_of_tests(f"{name}_kernels"), _path_of_tests(name))
    return tuple(path for path in paths if os.path.exists(os.path.join(ROOT, path)))


def stages(family: str, mutant: Mutant, expression: str, sanitizers: bool) -> list[Stage]:
    """The rounds for a mutant that is built into a library of a family. The fast tests first: most do not survive these.
    expression: which tests, if not all; sanitizers: whether there are rounds under these."""
    own, of_file = (os.path.splitext(os.path.basename(name))[0] for name in (family, mutant.file))
    if not _tests_of(own):
        raise FileNotFoundError(f"{family}.metal has no tests {_path_of_tests(own)}")
    chosen = ("-k", expression) if expression else ()
    tests = (*_tests_of(own), *chosen)
    rounds = [Stage(tests), Stage((*tests, "--nightly"))]
    if of_file != own and _tests_of(of_file):
        rounds.insert(0, Stage((*_tests_of(of_file), *chosen)))
    if sanitizers and mutant.kind in SANITIZERS:
        rounds.append(Stage(tests, sanitize=SANITIZERS[mutant.kind]))
    return rounds


Rounds = Callable[[str, Mutant], list[Stage]]


def _include_dirs() -> list[str]:
    # The headers of this tree, also where an installed package has its own.
    headers = os.path.join(ROOT, os.path.dirname(PUBLIC_HEADERS))
    return [ROOT, headers, *paths.include_paths(), paths.torch_include()]


class Family:
    """One of the libraries of a kernel file, and its mutants."""

    def __init__(self, variant: metal_sources.Variant):
        self.name = variant.name
        self._language = variant.language
        self.has_tensors = variant.language >= compilers.TENSORS
        self._preprocessed = preprocess(
            path=variant.source, include_dirs=_include_dirs(), language=variant.language
        )

    def mutants(self, thorough: bool) -> list[Mutant]:
        return find(self._preprocessed, _name_of_kernel_file, thorough)

    def build(self, mutant: Mutant, output: str, sanitize: str) -> None:
        """Compiles the family with a mutant to a library at `output`. Raises SyntaxError."""
        text = mutant.apply(self._preprocessed.text)
        self._compile(text, output, sanitize, (), bool(sanitize), optimize=0)

    def build_with_switch(self, mutants: dict[int, Mutant], output: str, sanitize: str) -> set[int]:
        """Compiles the family with many mutants, of which the environment chooses one, to a library at `output`. Returns
        the numbers of those that it could have. A barrier that is passed over still cuts loops over a group's threads
        in two, so that mutants without one run on fibers."""
        mutants = {number: mutant for number, mutant in mutants.items() if mutant.is_whole}
        fibers = bool(sanitize) or any(m.kind == "barrier" for m in mutants.values())
        header = f"{output}.h"
        with open(header, "w", encoding="utf-8") as stream:
            stream.write(SWITCH)
        while mutants:
            text = with_switch(self._preprocessed.text, mutants)
            try:
                self._compile(text, output, sanitize, ("-include", header), fibers, optimize=1)
                break
            except SyntaxError as error:
                wrong = {(os.path.realpath(d.file), d.line) for d in error.diagnostics}
                left = {
                    number: mutant
                    for number, mutant in mutants.items()
                    if (os.path.realpath(mutant.path), mutant.line) not in wrong
                }
                mutants = left if len(left) < len(mutants) else {}
        return set(mutants)

    def _compile(
        self,
        text: str,
        output: str,
        sanitize: str,
        flags: tuple[str, ...],
        fibers: bool,
        optimize: int,
    ) -> None:
        changed = dataclasses.replace(self._preprocessed, text=text)
        # No thread finds what it has stored from one cooperative tensor where it loads another.
        options = Options(
            optimize=optimize,
            sanitize=sanitize or None,
            language=self._language,
            cooperative_layout="scramble" if sanitize else None,
            flags=flags,
        )
        compile_emitted(emit(changed, group_loops=not fibers), output, options)


def _name_of_kernel_file(path: str) -> str | None:
    name = os.path.relpath(os.path.realpath(path), ROOT)
    return name if name.startswith(("kernels" + os.sep, PUBLIC_HEADERS + os.sep)) else None


class Package:
    """A copy of the package that consists of links, and a process that runs tests with it."""

    def __init__(self, folder: str, family: Family):
        """folder: where to make it; must not exist. family: whose kernels the tests are to run."""
        self._copy = os.path.join(folder, "metalops")
        for part in FOLDERS_WITH_MUTANTS:
            os.makedirs(os.path.join(self._copy, part))
        for part in ("", "include", *FOLDERS_WITH_MUTANTS):
            for name in os.listdir(os.path.join(PACKAGE, part)):
                place = os.path.join(self._copy, part, name)
                if not os.path.isdir(place):
                    os.symlink(os.path.join(PACKAGE, part, name), place)
        self.folder = folder
        self._environment = {**os.environ, "PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1"}
        self._environment["METALOPS_MATMUL"] = "tensor" if family.has_tensors else "simdgroup"
        self._servers: dict[str, subprocess.Popen] = {}

    def _server(self, sanitize: str) -> subprocess.Popen:
        """The process that runs tests, with a sanitizer's runtime or ("") without."""
        if sanitize not in self._servers:
            wrapper = ["-m", "metalops", "sanitize", "--mode", sanitize] if sanitize else []
            self._servers[sanitize] = subprocess.Popen(
                [sys.executable, *wrapper, os.path.join(HERE, "server.py")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=ROOT,
                env=self._environment,
            )
        return self._servers[sanitize]

    def run(self, stage: Stage, seconds: float, mutant: int = -1) -> dict[str, str]:
        """Runs a round of tests until the first that fails. mutant: the number that a library with many will see."""
        server = self._server(stage.sanitize)
        common = ["-x", "-q", "--tb=no", "--no-header", "-p", "no:cacheprovider"]
        environment = {"MUTANT": str(mutant)}
        request = {
            "arguments": [*common, *stage.tests],
            "seconds": seconds,
            "environment": environment,
        }
        print(json.dumps(request), file=server.stdin, flush=True)
        answer = server.stdout.readline()
        result = json.loads(answer) if answer else {"result": "error", "detail": "it has ended"}
        if result["result"] == "error":
            raise RuntimeError(f"the process that runs the tests: {result['detail']}")
        return result

    @contextlib.contextmanager
    def with_mutant(self, family: str, mutant: Mutant, library: str) -> Iterator[None]:
        """While the block runs, the family's kernels are those of `library`, and the header that the mutant is in has its
        fault for kernels that tests compile themselves."""
        places = {os.path.join(self._copy, LIBRARIES, f"{family}.so"): library}
        header = os.path.join(self._copy, HEADERS, os.path.basename(mutant.file))
        if os.path.exists(header):
            places[header] = os.path.join(self.folder, "mutant.h")
            with open(places[header], "w", encoding="utf-8") as stream:
                stream.write(mutant.text_of_file())
        originals = {place: os.readlink(place) for place in places}
        try:
            for place, changed in places.items():
                _link(place, changed)
            yield
        finally:
            for place, original in originals.items():
                _link(place, original)

    def close(self) -> None:
        for server in self._servers.values():
            server.stdin.close()
            server.wait()


def _link(place: str, target: str) -> None:
    os.remove(place)
    os.symlink(target, place)


class Trial:
    """Tries the mutants of one family on a package."""

    def __init__(self, family: Family, package: Package, mutants: list[Mutant], rounds: Rounds):
        self._family = family
        self._package = package
        self._rounds = rounds
        self._mutants = dict(enumerate(mutants))
        self._limits: dict[Stage, float | None] = {}
        self._switched: dict[tuple[str, bool], tuple[str, set[int]]] = {}

    def _limit(self, stage: Stage) -> float | None:
        """How long a round of tests may take; None if there are none. They must pass with the kernels as they are."""
        if stage not in self._limits:
            start = time.monotonic()
            answer = self._package.run(stage, 3000)
            if answer["result"] not in ("passed", "no tests"):
                name = self._family.name
                raise RuntimeError(f"the tests of {name} fail without a mutant: {answer['detail']}")
            limit = 120 + 10 * (time.monotonic() - start)
            self._limits[stage] = limit if answer["result"] == "passed" else None
        return self._limits[stage]

    def _library(self, number: int, sanitize: str) -> str:
        """The path of a library with a mutant. Raises SyntaxError."""
        folder = self._package.folder
        is_barrier = self._mutants[number].kind == "barrier"
        kind = sanitize, is_barrier
        if kind not in self._switched:
            path = os.path.join(folder, f"mutants{len(self._switched)}.so")
            alike = {n: m for n, m in self._mutants.items() if (m.kind == "barrier") == is_barrier}
            numbers = self._family.build_with_switch(alike, path, sanitize)
            self._switched[kind] = path, numbers
        path, numbers = self._switched[kind]
        if number not in numbers:
            path = os.path.join(folder, "mutant.so")
            self._family.build(self._mutants[number], path, sanitize)
        return path

    def verdict(self, number: int) -> tuple[str, str]:
        """("killed", how), ("survived", "") or ("does not compile", why)."""
        family, mutant = self._family.name, self._mutants[number]
        for stage in self._rounds(family, mutant):
            limit = self._limit(stage)
            if limit is None:
                continue
            try:
                library = self._library(number, stage.sanitize)
            except SyntaxError as error:
                return "does not compile", str(error.msg).splitlines()[0]
            with self._package.with_mutant(family, mutant, library):
                answer = self._package.run(stage, limit, number)
            if answer["result"] != "passed":
                return "killed", f"{answer['result']}, {answer['detail']}"
        return "survived", ""


class Report:
    """The verdicts on all mutants; those on one fault of a header are one verdict."""

    def __init__(self) -> None:
        self._equivalents = equivalents()
        self._verdicts: dict[tuple, dict[str, str]] = defaultdict(dict)
        self._mutants: dict[tuple, Mutant] = {}

    def is_decided(self, mutant: Mutant) -> bool:
        """Whether no other family need try it."""
        verdicts = self._verdicts[mutant.identity].values()
        return "killed" in verdicts or (self._is_equivalent(mutant) and "survived" in verdicts)

    def _is_equivalent(self, mutant: Mutant) -> bool:
        return any(equivalent.is_of(mutant) for equivalent in self._equivalents)

    def add(self, family: str, mutant: Mutant, verdict: str, detail: str) -> None:
        self._mutants[mutant.identity] = mutant
        self._verdicts[mutant.identity][family] = verdict
        print(f"{family}: {mutant}: {verdict}{detail and f' ({detail})'}", flush=True)

    def finish(self) -> int:
        """Prints the figures and what is wrong; the number of wrong verdicts."""
        counts: Counter[str] = Counter()
        wrong = []
        for identity, verdicts in self._verdicts.items():
            mutant = self._mutants[identity]
            verdict = next(
                v for v in ("killed", "survived", "does not compile") if v in verdicts.values()
            )
            if self._is_equivalent(mutant) and verdict != "does not compile":
                wrong += [f"listed as equivalent: {mutant}"] * (verdict == "killed")
                verdict = "equivalent"
            counts[verdict] += 1
            wrong += [f"survived: {mutant}"] * (verdict == "survived")
        print(", ".join(f"{n} {verdict}" for verdict, n in sorted(counts.items())) or "no mutants")
        for line in wrong:
            print(line)
        return len(wrong)


@dataclasses.dataclass(frozen=True)
class Equivalent:
    """Mutants that compute the same as the original. around: what their line has, where others are not equivalent."""

    file: str
    original: str
    around: str
    replacement: str

    def is_of(self, mutant: Mutant) -> bool:
        return (
            self.file == mutant.file
            and self.original == mutant.original
            and self.replacement == mutant.replacement
            and self.around in mutant.source_line()
        )


def equivalents() -> list[Equivalent]:
    """What equivalent.txt lists."""
    result = []
    with open(os.path.join(HERE, "equivalent.txt"), encoding="utf-8") as stream:
        for line in stream:
            if line.strip() and not line.startswith("#"):
                file, original, replacement, _ = (part.strip() for part in line.split(" | "))
                original, _, around = original.partition(" in: ")
                result.append(Equivalent(file, original, around, replacement))
    return result


def _families(wanted: list[str]) -> list[Family]:
    paths = sorted(glob(os.path.join(ROOT, "kernels", "**", "*.metal"), recursive=True))
    known = {metal_sources.family(path): path for path in paths}
    for name in wanted:
        if name not in known:
            sys.exit(f"no {name}.metal in kernels; there are {', '.join(known)}")
    files = [known[name] for name in wanted or known]
    return [Family(variant) for variant in metal_sources.variants(files, _include_dirs())]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("families", metavar="FAMILY", nargs="*")
    parser.add_argument("--all", action="store_true", help="faults of every kind")
    parser.add_argument("--quick", action="store_true", help="no rounds under sanitizers")
    parser.add_argument("--tests", metavar="EXPRESSION", default="", help="as pytest's -k")
    parser.add_argument("--sample", type=int, metavar="N", help="only N mutants, chosen at random")
    parser.add_argument("--seed", type=int, default=0, help="of that choice (0)")
    parser.add_argument(
        "--at", metavar="FILE[:LINE]", nargs="+", help="only the mutants of these files or lines"
    )
    parser.add_argument("--list", action="store_true", help="print the mutants and try none")
    parser.add_argument("-j", "--jobs", type=int, default=1, help="families at a time (1)")
    arguments = parser.parse_args()

    with tempfile.TemporaryDirectory(prefix="metalops-mutation") as folder:
        families = _families(arguments.families)
        chosen = [(f, m) for f in families for m in f.mutants(arguments.all)]
        if arguments.at:
            chosen = [
                (f, m) for f, m in chosen if {m.file, f"{m.file}:{m.line}"} & set(arguments.at)
            ]
        if arguments.sample is not None and arguments.sample < len(chosen):
            chosen = random.Random(arguments.seed).sample(chosen, arguments.sample)
        if arguments.list:
            for line in dict.fromkeys(str(mutant) for _, mutant in chosen):
                print(line)
            return 0
        report = Report()
        rounds = partial(stages, expression=arguments.tests, sanitizers=not arguments.quick)

        def try_family(family: Family) -> None:
            mutants = [m for f, m in chosen if f is family]
            if not mutants:
                return
            with contextlib.closing(Package(os.path.join(folder, family.name), family)) as package:
                trial = Trial(family, package, mutants, rounds)
                for number, mutant in enumerate(mutants):
                    if not report.is_decided(mutant):
                        report.add(family.name, mutant, *trial.verdict(number))

        with ThreadPoolExecutor(arguments.jobs) as pool:
            list(pool.map(try_family, families))
        return int(report.finish() > 0)


if __name__ == "__main__":
    sys.exit(main())
