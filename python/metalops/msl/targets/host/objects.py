"""Checks a linked kernel library before it is loaded, by reading the object itself (ELF): whatever the text said, it
may call only a fixed list of functions, and none of its code runs while it is loaded."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

_MATH = """
    acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh erf erfc exp exp10 exp2 expm1 fabs fdim floor fma fmax
    fmin fmod frexp hypot ilogb ldexp lgamma llrint llround log log10 log1p log2 logb lrint lround modf nan nearbyint nextafter
    pow remainder remquo rint round roundeven scalbln scalbn sin sincos sinh sqrt tan tanh tgamma trunc
""".split()
# Functions that compute: of the mathematical library (glibc's vector functions included), on memory that they are
# handed (os_log formats numbers by snprintf), and of the compiler's runtime, for arithmetic, static variables and
# exceptions.
_ALLOWED = re.compile(
    rf"""(?:__)?(?:{"|".join(_MATH)})(?:f|l|f16|f32|f64)?(?:_finite)?
       |_ZGV[a-zA-Z]\w*v_(?:{"|".join(_MATH)})f?
       |mem(?:cpy|move|set|cmp)|bcmp|strlen
       |(?:__)?snprintf(?:_chk)?|__(?:mem(?:cpy|move|set))_chk
       |__(?:add|sub|mul|div|neg|pow|eq|ne|lt|le|gt|ge|cmp|ucmp|unord|extend|trunc|fix|fixuns|float|floatuns|floatun|floatdi)
        (?:[sdthxb]i|[sdtxhb]f|[sdtxhb]c){{1,3}}i?\d?
       |__(?:u?div|u?mod|u?divmod|ashl|ashr|lshr|mulo|clz|ctz|ffs|popcount|parity|clrsb|bswap|mul)[sdt]i[234]?
       |__gnu_(?:h2f|f2h)_ieee|__extendhfsf2|__truncsfbf2
       |__atomic_\w+|__aarch64_(?:cas|swp|ld(?:add|clr|eor|set))\d+_(?:relax|acq|rel|acq_rel|sync)
       |__aarch64_have_lse_atomics|__aarch64_cpu_features|__init_cpu_features\w*|__getauxval|__cpu_model|__cpu_indicator_init|__tls_get_addr
       |__cxa_(?:finalize|guard_acquire|guard_release|guard_abort|begin_catch|end_catch|call_unexpected|call_terminate)
       |__g(?:xx|cc)_personality_v0|_Unwind_Resume|_ZSt9terminatev|__stack_chk_fail
       |__gmon_start__|_ITM_(?:de)?registerTMCloneTable|_Jv_RegisterClasses|__dso_handle
    """.replace("\n", "").replace(" ", "")
)
_SANITIZERS = re.compile(r"__(?:asan|tsan|ubsan|sanitizer|hwasan|lsan|msan)_\w+|__odr_asan\S*")
# Functions beside those of the kernels' own object: the start and end of every shared library, and sanitizers.
_START_AND_END = re.compile(
    r"frame_dummy|__do_global_(?:c|d)tors_aux|__do_(?:init|fini)|_init|_fini|[at]san\.module_[cd]tor(?:\.\d+)?"
    r"|_sub_[ID]_\d+_\d+|_GLOBAL__sub_[ID]_0*\d+_\d+|__cpu_indicator_init(?:@\S*)?|init_have_lse_atomics|init_cpu_features|__init_cpu_features\w*"
)
_RESOLVER = re.compile(r"(?<![a-zA-Z_])msl_\w+\.resolver")
_LIBRARIES = re.compile(
    r"(?:libm|libmvec|libc|libstdc\+\+|libc\+\+|libc\+\+abi|libgcc_s|libunwind|libatomic|libpthread|libdl"
    r"|libasan|libtsan|libubsan|libclang_rt\.[\w-]+|ld-linux[\w-]*|ld-musl-\w+|libc\.musl-\w+)\.so(?:\.\d+)*"
)
# The construct in the text from which a call comes, where the text does not name the function.
_WORDS = {
    "_Zn": "new",
    "_Zd": "delete",
    "__cxa_allocate_exception": "throw",
    "__cxa_free_exception": "throw",
    "__cxa_throw": "throw",
    "__cxa_rethrow": "throw",
    "__cxa_init_primary_exception": "throw",
    "__cxa_pure_virtual": "virtual",
    "_ZTVN10__cxxabiv1": "virtual",
    "_ZTI": "typeid",
    "__cxa_bad_cast": "typeid",
    "__cxa_bad_typeid": "typeid",
    "__dynamic_cast": "dynamic_cast",
    "__cxa_thread_atexit": "thread_local",
    "__cxa_atexit": "",
}


@dataclass(frozen=True)
class Fault:
    """A violation by a library. word: a word in the text from which it comes; None if unknown."""

    message: str
    word: str | None = None


@dataclass
class _Elf:
    data: bytes
    sections: dict[str, tuple] = field(default_factory=dict)

    def __post_init__(self):
        data = self.data
        if data[:6] != b"\x7fELF\x02\x01":
            raise ValueError("no 64-bit ELF object")
        (self.machine,) = struct.unpack_from("<H", data, 18)
        program, table = struct.unpack_from("<QQ", data, 32)
        size, count, entry, entries, names = struct.unpack_from("<HHHHH", data, 54)
        self.segments = [
            struct.unpack_from("<IIQQQQQQ", data, program + i * size) for i in range(count)
        ]
        headers = [
            struct.unpack_from("<IIQQQQIIQQ", data, table + i * entry) for i in range(entries)
        ]
        strings = headers[names][4] if headers else 0
        for header in headers:
            self.sections[self.string(strings + header[0])] = header

    def string(self, at: int) -> str:
        return self.data[at : self.data.index(b"\0", at)].decode("latin-1")

    def symbols(self, name: str) -> list[tuple[str, int, int, int]]:
        """Returns (name, type, section, value) of each symbol of a table."""
        header = self.sections.get(name)
        if header is None:
            return []
        strings = list(self.sections.values())[header[6]][4]
        table = self.data[header[4] : header[4] + header[5]]
        return [
            (self.string(strings + n), info & 15, section, value)
            for n, info, _, section, value, _ in struct.iter_unpack("<IBBHQQ", table)
        ]

    def content(self, name: str) -> bytes:
        header = self.sections.get(name)
        return b"" if header is None else self.data[header[4] : header[4] + header[5]]

    def dynamic(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for tag, value in struct.iter_unpack("<qQ", self.content(".dynamic")):
            if tag == 0:
                break
            found.setdefault(tag, []).append(value)
        return found

    def relocations(self) -> Iterator[tuple[int, int, int, int]]:
        """Yields (address, type, number of the dynamic symbol, addend)."""
        for name in (".rela.dyn", ".rela.plt"):
            for at, info, addend in struct.iter_unpack("<QQq", self.content(name)):
                yield at, info & 0xFFFFFFFF, info >> 32, addend


_INDIRECT_SYMBOL = 10  # STT_GNU_IFUNC
_INDIRECT = {62: 37, 183: 1032}  # R_X86_64_IRELATIVE, R_AARCH64_IRELATIVE
_NEEDED, _TEXTREL, _FLAGS = 1, 22, 30
_FILTERS = {
    0x7FFFFFFD: "DT_AUXILIARY",
    0x7FFFFFFF: "DT_FILTER",
    0x6FFFFEFC: "DT_AUDIT",
    0x6FFFFEFB: "DT_DEPAUDIT",
}


def faults(path: str, sanitized: bool) -> list[Fault]:
    """Returns the violations of a kernel library. Raises ValueError unless it is such an object."""
    with open(path, "rb") as stream:
        data = stream.read()
    try:
        return list(_faults(_Elf(data), sanitized))
    except (struct.error, IndexError) as error:
        raise ValueError(f"{path} is no shared library that can be read: {error}") from None


def _faults(elf: _Elf, sanitized: bool) -> Iterator[Fault]:
    for name, _, section, _ in elf.symbols(".dynsym"):
        if section != 0 or not name:
            continue
        name = name.split("@")[0]
        if not _ALLOWED.fullmatch(name) and not (sanitized and _SANITIZERS.fullmatch(name)):
            yield _call(name)
    dynamic = elf.dynamic()
    strings = elf.sections[".dynstr"][4]
    for at in dynamic.get(_NEEDED, ()):
        library = elf.string(strings + at)
        if not _LIBRARIES.fullmatch(os.path.basename(library)):
            yield Fault(f"the compiled library needs {library}, which kernels have no use for")
    for tag, name in _FILTERS.items():
        if tag in dynamic:
            yield Fault(f"the compiled library has a {name} entry")
    targets = {at: addend for at, _, _, addend in elf.relocations()}
    yield from _chosen_at_load(elf)
    if _TEXTREL in dynamic or dynamic.get(_FLAGS, [0])[0] & 4:
        yield Fault("the compiled library changes its code while it is loaded")
    for kind, flags, *_ in elf.segments:
        if kind == 1 and flags & 3 == 3:
            yield Fault("the compiled library has code that can be written")
        if kind == 0x6474E551 and flags & 1:
            yield Fault("the compiled library asks for a stack that can be executed")
    yield from _run_at_load(elf, targets)


def _call(name: str) -> Fault:
    word = next((w for prefix, w in _WORDS.items() if name.startswith(prefix)), None)
    if word:
        return Fault(f"there is no {word} in Metal ('{name}' is called)", word)
    if word == "":
        return Fault(
            f"what is outside of functions has no destructor in Metal ('{name}' is called)"
        )
    return Fault(f"'{name}' is no function of Metal, and kernels may not call it", name)


def _chosen_at_load(elf: _Elf) -> Iterator[Fault]:
    """Yields functions that are chosen at load time (ifunc), except this package's own loops, of which there are
    several for different CPUs."""
    known = elf.symbols(".symtab")
    ours = {value for name, _, _, value in known if _RESOLVER.search(name)}
    chosen = {value: name for name, kind, _, value in known if kind == _INDIRECT_SYMBOL}
    chosen |= {v: n for n, kind, _, v in elf.symbols(".dynsym") if kind == _INDIRECT_SYMBOL}
    relative = _INDIRECT.get(elf.machine)
    chosen |= {
        a: f"{a:#x}" for _, kind, _, a in elf.relocations() if kind == relative and a not in chosen
    }
    for address, name in chosen.items():
        if address not in ours:
            yield Fault(f"a function of the compiled library is chosen while it is loaded ({name})")


def _run_at_load(elf: _Elf, targets: dict[int, int]) -> Iterator[Fault]:
    """Yields code that runs when the library is loaded or unloaded, except that of every library."""
    arrays = [".preinit_array", ".init_array", ".ctors", ".fini_array", ".dtors"]
    slots = []
    for name in arrays:
        header = elf.sections.get(name)
        content = elf.content(name)
        for i in range(0, len(content) - 7, 8):
            stored = struct.unpack_from("<Q", content, i)[0]
            slots.append((name, targets.get(header[3] + i) or stored))
    if not slots:
        return
    by_address: dict[int, set[str]] = {}
    for name, kind, section, value in elf.symbols(".symtab"):
        if section != 0 and kind in (0, 2):
            by_address.setdefault(value, set()).add(name)
    for array, address in slots:
        names = by_address.get(address, set())
        if any(_START_AND_END.fullmatch(name) for name in names) and array in (
            ".init_array",
            ".fini_array",
        ):
            continue
        when = "unloaded" if array in (".fini_array", ".dtors") else "loaded"
        called = ", ".join(sorted(names)) or f"code at {address:#x}"
        yield Fault(
            f"code would run when the kernel library is {when} ({called}): what is outside of functions has a constant "
            "initialiser in Metal",
            "",
        )
