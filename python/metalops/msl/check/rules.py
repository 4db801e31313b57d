"""The registry of rules: each has a name, the section of the Metal Shading Language Specification that it comes from
(numbered as in versions 3.1 and 3.2), and one sentence with its requirement. Each module of this package registers the
rules of its group and finds violations."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rule:
    """One rule. is_suspicion: true if its findings are warnings, which are wrong for some programs."""

    name: str
    section: str
    sentence: str
    is_suspicion: bool = False


RULES: dict[str, Rule] = {}


def rule(name: str, section: str, sentence: str, is_suspicion: bool = False) -> Rule:
    """Registers a rule."""
    if name in RULES:
        raise ValueError(f"two rules are called {name!r}")
    RULES[name] = Rule(name, section, sentence, is_suspicion)
    return RULES[name]
