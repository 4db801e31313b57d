"""Rejects Metal text that would reach outside of Metal: functions and variables of this process, its compilers and its
files.

Kernels become C++ that this process loads, so every way that C++ has to leave Metal (assembly, linkage, attributes and
builtins of the compiler, directives) is an error at its position. The tokens are read here once more, exactly as a C++
compiler reads them, both in the user's text and in the emitted text: what other stages take for a string or a comment
may be code to the compiler. Forbidden functions that a text calls nevertheless are found in the object file
(targets/host/objects.py).

Not prevented: a kernel may write through any pointer that it can make, and run for ever. This is not a sandbox.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

# The attributes of GNU and clang that say how a function is compiled or a type is laid out.
COMPILER_ATTRIBUTES = frozenset(
    """
    address_space aligned always_inline annotate artificial assume_aligned availability cold const convergent deprecated
    diagnose_if enable_if enum_extensibility ext_vector_type fallthrough flag_enum flatten gnu_inline hot internal_linkage
    matrix_type may_alias maybe_unused minsize no_sanitize nodebug noduplicate noescape noinline nonnull noreturn nothrow
    nouwtable objc_bridge_id optnone overloadable packed pure returns_nonnull swift_name type_visibility unavailable unused
    used vector_size visibility warn_unused_result
    """.split()
)
_NAMESPACES = frozenset({"clang", "gnu", "metal", "air"})

# Builtins that compute on numbers, types and vectors. Others call the C library or touch registers and stack.
_BUILTIN = re.compile(
    r"""__builtin_(?:
      (?:acos|asin|atan|cos|sin|tan)h?|atan2|cbrt|ceil|copysign|cospi|erfc?|exp|exp2|exp10|expm1|fabs|fdim|floor|fma
     |fmax|fmin|fmod|frexp|hypot|ilogb|ldexp|lgamma|log|log10|log1p|log2|logb|lrint|lround|llrint|llround|modf|nearbyint
     |nextafter|pow|powi|remainder|rint|round|roundeven|scalbn|scalbln|sincos|sqrt|tgamma|trunc|nans?|inf|huge_val|signbit
     )(?:f|f16|l)?
     |__builtin_(?:isfinite|isinf|isinf_sign|isnan|isnormal|isgreater|isgreaterequal|isless|islessequal|islessgreater
     |isunordered|fpclassify|issignaling|is_fpclass|abs|labs|llabs
     |(?:clz|ctz|popcount|parity|ffs|clrsb)(?:l|ll|s|g)?|bswap(?:16|32|64|128)|bitreverse(?:8|16|32|64)
     |rotateleft(?:8|16|32|64)|rotateright(?:8|16|32|64)
     |(?:[su]?(?:add|sub|mul)(?:l|ll)?)_overflow(?:_p)?|(?:add|sub)c(?:s|l|ll|b)?
     |mem(?:cpy|move|set|cmp)(?:_inline)?|trivially_relocate|is_constant_evaluated|constant_p|choose_expr|types_compatible_p
     |expect|expect_with_probability|unpredictable|unreachable|assume|assume_aligned|is_aligned|align_up|align_down|prefetch
     |nontemporal_(?:load|store)|offsetof|bit_cast|addressof|launder|convertvector|shuffle|shufflevector|assoc_barrier
     |elementwise_\w+|reduce_\w+|matrix_\w+|canonicalizef?|flt_rounds|bitcast)$""".replace(
        "\n", ""
    ).replace(" ", "")
)
# Names of the C++ that is emitted around the user's code.
_OURS = re.compile(r"(?:msl_|MSL_)\w")
_AIR_LABEL = re.compile(r'\s*(?:volatile\b\s*)?\(\s*"(?:\\0?1|\\01)?air\.[\w.]+"\s*\)')
_MARKER = re.compile(r'\#[ ]\d+[ ]"(?:\\.|[^"\\\n])*"[ \d]*$', re.M)

_LITERAL = r'"(?:\\[^\n]|[^"\\\n])*"|\'(?:\\[^\n]|[^\'\\\n])*\''
# Tokens that may need to be rejected, and tokens that must be skipped to find them. A word is examined only if it
# begins like one of those that matter. The first character stands by itself, since a search passes fast over others than
# those of a set that its expression begins with.
_SUSPECT = re.compile(
    r"""["'\#\[\\/<:%_aegimM\d.](?:
        (?P<directive>(?<=\#)[^\n]*)
      | (?P<string>(?<=")(?<![uULR]")(?<!u8")(?:\\[^\n]|[^"\\\n])*"|(?<=')(?<!\w')(?:\\[^\n]|[^'\\\n])*')
      | (?P<number>(?:(?<=\d)(?<![\w.]\d)|(?<=\.)(?<![\w.]\.)\d)(?:[eEpP][+-]|'(?=\w)|[\w.])*)
      | (?P<word>(?<!\w[_aegimM])
          (?:(?<=_)[_A-Z]\w*|(?<=a)sm\b|(?<=e)xtern\b|(?<=g)oto\b|(?<=i)mport\b|(?<=m)sl\w*|(?<=M)SL_\w*))
      | (?P<attributes>(?<=\[)\s*\[)
      | (?P<character>(?<=\\)(?:u[\da-fA-F]{4}|U[\da-fA-F]{8}))
      | (?P<spelling>(?<=["'\\])|(?<=/)[/*]|(?<=<):(?!:)|(?<=<)::(?=[:>])|(?<=:)>|(?<=<)%|(?<=%)[>:]))""",
    re.M | re.X,
)
_TOKEN = re.compile(rf"\s+|{_LITERAL}|[A-Za-z_]\w*|::|.", re.S)


@dataclass(frozen=True)
class Breach:
    """A rejected construct at an offset of the text. kind: "asm", "linkage", "attribute", "builtin", "name" or
    "spelling"."""

    offset: int
    kind: str
    message: str


def breaches(text: str, emitted: bool = False) -> Iterator[Breach]:
    """Yields the breaches of a preprocessed text, in order. emitted: the text is C++ emitted for a user's source, with
    internal names and pragmas in it."""
    control = re.search(r"[\0-\x08\x0e-\x1f\x7f]|\r(?!\n)", text)
    if control is not None:  # some compilers end a line here, others see white space
        yield Breach(control.start(), "spelling", f"stray character {control[0]!r} in program")
    position = 0
    while match := _SUSPECT.search(text, position):
        position = match.end()
        kind = match.lastgroup
        if kind in ("string", "character"):
            continue
        start = match.start()
        if kind == "number":
            if "'" in match[0] and re.search(r"[^\w]'", match[0]):
                yield Breach(start, "spelling", "a digit separator stands between digits")
        elif kind == "directive":
            if text[text.rfind("\n", 0, start) + 1 : start].strip(" \t"):
                position = start + 1
                message = "'#' stands for nothing outside of a directive"
            else:
                message = _directive(match[0])
            if message is not None:
                yield Breach(start, "spelling", message)
        elif kind == "attributes":
            opening = re.compile(r"\[\s*\[").match(text, start).end()
            position = opening  # the attribute list may hold code, too
            if opening - start > 2:
                message = "the brackets of an attribute stand together: [["
                yield Breach(start, "spelling", message)
            yield from _attributes(text, opening)
        elif kind == "spelling":
            yield Breach(start, "spelling", _spelling(text, start, match[0]))
            position = _end_of_literal(text, start)
        else:
            found, position = _word(text, match, emitted)
            if found is not None:
                yield found


def _directive(line: str) -> str | None:
    """Returns what is wrong with a line that begins with #, in a preprocessed text, or None."""
    if _MARKER.match(line) or not line[1:].strip():
        return None
    name = re.match(r"#\s*(\w*)", line)[1]
    if name == "pragma":
        # Nothing in the line may look to the compiler like a line continuation.
        code = re.sub(_LITERAL, "", line)
        return "a pragma ends with its line" if "\\" in code else None
    return f"the directive #{name} does not exist in Metal" if name else "'#' stands for nothing"


def _spelling(text: str, start: int, found: str) -> str:
    if found == "'" and re.search(r"\w$", text[max(0, start - 1) : start]):
        return "a character literal stands apart from what is before it, and has no prefix"
    if found in "\"'":
        if re.search(r"(?:u8|[uUL])?R$", text[max(0, start - 3) : start]) and found == '"':
            return "raw string literals do not exist in Metal"
        if re.search(r"\b(?:u8|[uUL])$", text[max(0, start - 3) : start]):
            return "literals have no encoding prefix in Metal"
        return f"missing terminating {found} character"
    if found == "\\":
        return "stray '\\' in program"
    if found in ("//", "/*"):
        return "a comment cannot come out of a macro"
    return f"digraphs such as {found} do not exist in Metal"


def _end_of_literal(text: str, start: int) -> int:
    """Returns where reading continues after text that could not be read."""
    match = re.compile(_LITERAL).match(text, start)
    return match.end() if match else start + 1


def _word(text: str, match: re.Match, emitted: bool) -> tuple[Breach | None, int]:
    """Returns (what is wrong with a word, where reading continues)."""
    word, start, end = match[0], match.start(), match.end()

    def wrong(kind: str, message: str, after: int = end) -> tuple[Breach, int]:
        return Breach(start, kind, message), after

    if word in ("asm", "__asm", "__asm__"):
        label = _AIR_LABEL.match(text, end)
        if label:  # the label of a function of Apple's compiler
            return None, label.end()
        return wrong("asm", "inline assembly does not exist; use a function of metal_stdlib")
    if word == "extern":
        language = re.match(r'\s*(?:u8|[uUL])?R?"(?:(C|C\+\+)")?', _next(text, end))
        if language and (emitted or not language[1]):
            return wrong(
                "linkage", "there is no linkage but that of C and C++; leave the string out"
            )
        return None, end
    if word in ("__attribute__", "__attribute"):
        return _gnu_attributes(text, start, end), end
    if word.startswith("__builtin_"):
        if _BUILTIN.match(word):
            return None, end
        return wrong("builtin", f"{word} is no function of Metal; use one of metal_stdlib")
    if word in ("_Pragma", "__pragma", "__declspec", "__label__", "__import__"):
        return wrong("spelling", f"{word} does not exist in Metal")
    if word.startswith(("__has_include", "__has_embed")):
        return wrong("spelling", f"{word} stands in #if")
    if word == "goto":
        if _next(text, end).startswith("*"):
            return wrong("spelling", "goto does not go to an address")
        return None, end
    if word == "import":
        if _next(text, end)[:1] in ("<", '"'):
            return wrong("spelling", "Metal has no modules; use #include")
        return None, end
    if not emitted and (_OURS.match(word) or (word == "msl" and _is_scope(text, start, end))):
        return wrong("name", f"{word} is a name of generated code; choose another one")
    return None, end


def _next(text: str, position: int) -> str:
    """Returns the next few characters after white space and line markers."""
    while True:
        match = re.compile(r"\s*").match(text, position)
        position = match.end()
        marker = _MARKER.match(text, position)
        if not marker:
            return text[position : position + 8]
        position = marker.end()


def _is_scope(text: str, start: int, end: int) -> bool:
    before = text[max(0, start - 40) : start]
    return _next(text, end).startswith("::") or bool(
        re.search(r"\bnamespace\s+(?:\w+\s*=\s*)?$", before)
    )


def _gnu_attributes(text: str, start: int, end: int) -> Breach | None:
    """Returns what is wrong in `__attribute__((...))`, or None; start, end: the extent of its first word."""
    depth, begins = 0, False
    for token in _TOKEN.finditer(text, end):
        word = token[0]
        if word.isspace():
            continue
        if depth == 0 and word != "(":
            break
        if word == "(":
            depth += 1
            begins = depth == 2
        elif word == ")":
            depth -= 1
            if depth == 0:
                return None
        elif depth == 2 and word == ",":
            begins = True
        elif depth <= 2 and begins:
            begins = False
            if word.strip("_") not in COMPILER_ATTRIBUTES:
                return _foreign(token.start(), word)
        elif depth == 2 and word == "::":
            begins = True
    return Breach(start, "attribute", "__attribute__ is followed by ((, attributes and ))")


def _attributes(text: str, start: int) -> Iterator[Breach]:
    """Yields what is wrong in a `[[...]]` list from `start` on: compiler attributes that Metal does not have. Other
    stages check Metal's own attributes."""
    depth, begins, scope = 0, True, None
    for token in _TOKEN.finditer(text, start):
        word = token[0]
        if word.isspace():
            continue
        if word in "([{":
            depth += 1
        elif word in ")]}":
            depth -= 1
            if depth < 0:
                return
        elif depth == 0 and word == ",":
            begins, scope = True, None
        elif depth == 0 and begins:
            begins = False
            if word == "using":
                yield Breach(token.start(), "spelling", "using stands in no attribute")
            elif scope is not None and word.strip("_") not in COMPILER_ATTRIBUTES:
                yield _foreign(token.start(), f"{scope}::{word}")
            elif scope is None and _next(text, token.end()).startswith("::"):
                scope = word
                if word.strip("_") not in _NAMESPACES:
                    yield _foreign(token.start(), word)
        elif depth == 0 and word == "::":
            begins = scope is not None


def _foreign(offset: int, name: str) -> Breach:
    return Breach(offset, "attribute", f"{name} is no attribute of Metal; leave it out")


def names_of_headers(words: Iterable[str]) -> list[str]:
    """Returns the names among the words of a text that C++ reserves for its implementation, and that headers may have made macros:
    glibc has some for linkage and assembly. Numbers that compilers predefine are left out."""
    names = {word for word in words if re.match(r"__\w|_[A-Z]", word)}
    return sorted(n for n in names if n != "__cplusplus" and not re.fullmatch(r"__[A-Z\d_]+__", n))
