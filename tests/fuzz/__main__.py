"""Puts random texts through the Metal front end: python -m tests.fuzz [--minutes M] [--seed N] [--compile FRACTION]

Each text is a Metal source of kernels/, of the tests or of torch's headers with a few of its tokens deleted, repeated,
swapped or inserted. What breaks the promise of front_end.py is printed with the seed and, made smaller, as the text; the
exit status is 1 then. A text that is being tried lies in the file that the first line names, in case it ends this process.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import sys
import tempfile
import time
from collections import Counter

from . import corpus, front_end


def text_of(seed: int) -> tuple[str, str, bool]:
    """(name of the source, changed text, whether it is small enough to be compiled)."""
    chance = random.Random(seed)
    is_small = chance.random() < 0.7
    sources = corpus.small_sources() if is_small else corpus.large_sources()
    source, other = chance.choice(sources), chance.choice(corpus.small_sources())
    return source.name, corpus.changed(source, other, chance), is_small


def fault_of(text: str, with_compiler: bool) -> tuple[str, str]:
    """(the stage that was reached, what is wrong or "")."""
    try:
        stage = front_end.check(text, with_compiler)
        front_end.check_checker(text, with_compiler)
    except front_end.Fault as fault:
        return "", str(fault)
    return stage, ""


def smaller(text: str, with_compiler: bool, seconds: float = 60) -> str:
    """A shorter text with a fault of the same kind, by leaving out lines and tokens."""
    end = time.monotonic() + seconds
    kind = fault_of(text, with_compiler)[1][:20]
    for split in (lambda t: t.splitlines(keepends=True), corpus.tokens):
        pieces = split(text)
        size = max(1, len(pieces) // 2)
        while size and time.monotonic() < end:
            at = 0
            while at < len(pieces) and time.monotonic() < end:
                rest = pieces[:at] + pieces[at + size :]
                if fault_of("".join(rest), with_compiler)[1][:20] == kind:
                    pieces = rest
                else:
                    at += size
            size //= 2
        text = "".join(pieces)
    return text


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=10, help="how long (10)")
    parser.add_argument("--seed", type=int, help="of the first text (by the clock)")
    parser.add_argument("--count", type=int, help="how many texts, instead of --minutes")
    parser.add_argument(
        "--compile", type=float, default=0.2, help="of which fraction the C++ is compiled (0.2)"
    )
    arguments = parser.parse_args()
    first = int(time.time()) * 1000 if arguments.seed is None else arguments.seed
    handle, current = tempfile.mkstemp(suffix=".metal", prefix="metalops-fuzz-")
    os.close(handle)
    print(f"seeds from {first}; the text that is being tried: {current}", flush=True)
    end = time.monotonic() + 60 * arguments.minutes
    stages: Counter[str] = Counter()
    faults = 0
    for seed in itertools.count(first):
        if arguments.count is None and time.monotonic() > end:
            break
        if arguments.count is not None and seed - first >= arguments.count:
            break
        name, text, is_small = text_of(seed)
        with open(current, "w", encoding="utf-8") as stream:
            stream.write(text)
        with_compiler = is_small and random.Random(-seed).random() < arguments.compile
        stage, fault = fault_of(text, with_compiler)
        stages[stage] += 1
        if fault:
            faults += 1
            print(
                f"\nseed {seed}, from {name}: {fault}\n{smaller(text, with_compiler)}", flush=True
            )
    os.remove(current)
    counts = ", ".join(f"{n} {stage}" for stage, n in sorted(stages.items()) if stage)
    print(f"{sum(stages.values())} texts: {counts}; {faults} faults")
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main())
