"""Metal texts that try to get out: python -m tests.fuzz.hostile [--seed N] [--count N]

Each is an attack (what it does, and by which way of C++ or of a compiler), put somewhere, spelled in some disguise. It must be
refused with a place in the text, or become a library that asks for nothing but what kernels may have, by the account of nm,
and that leaves the canary alone when it is loaded and launched.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from metalops.msl.build import Options, compile_path
from metalops.msl.source import compiler

# What would show that an attack ran.
CANARY = os.path.join(tempfile.gettempdir(), f"metalops-canary-{os.getpid()}")
_RUN = f'"touch {CANARY}"'


@dataclass(frozen=True)
class Attack:
    """outside: what stands outside of functions; inside: in a kernel; before: at the very beginning of the text."""

    name: str
    outside: str = ""
    inside: str = ""
    before: str = ""


def _calls() -> Iterator[Attack]:
    """Functions of the C library by all ways to name one."""
    functions = {
        "system": ("int {}(const char*)", f"{{}}({_RUN})"),
        "popen": ("void* {}(const char*, const char*)", f'{{}}({_RUN}, "r")'),
        "creat": ("int {}(const char*, int)", f'{{}}("{CANARY}", 420)'),
        "fopen": ("void* {}(const char*, const char*)", f'{{}}("{CANARY}", "w")'),
        "mkdir": ("int {}(const char*, int)", f'{{}}("{CANARY}", 448)'),
        "exit": ("void {}(int)", "{}(3)"),
        "_exit": ("void {}(int)", "{}(3)"),
        "abort": ("void {}()", "{}()"),
        "getenv": ("char* {}(const char*)", '{}("HOME")'),
        "dlopen": ("void* {}(const char*, int)", '{}("libc.so.6", 1)'),
        "mprotect": ("int {}(void*, ulong, int)", "{}(out, 4096, 7)"),
        "syscall": ("long {}(long, ...)", f'{{}}(85, "{CANARY}", 420)'),
        "malloc": ("void* {}(ulong)", "{}(1)"),
        "printf": ("int {}(const char*, ...)", '{}("out")'),
        "signal": ("void {}(int, void (*)(int))", "{}(11, 0)"),
        "environ": ("char** {}()", "{}()"),
    }
    for name, (declared, called) in functions.items():
        there, call = declared.format(name), f"(void){called.format(name)};"
        mine, my_call = declared.format("helper"), f"(void){called.format('helper')};"
        yield Attack(f"linkage {name}", f'extern "C" {there};', call)
        yield Attack(f"linkage block {name}", f'extern "C" {{ {there}; }}', call)
        yield Attack(f"linkage C++ {name}", f'extern "C++" {there};', call)
        yield Attack(f"linkage raw {name}", f'extern R"(C)" {there};', call)
        yield Attack(f"declared in a function {name}", "", f"{there}; {call}")
        yield Attack(f"extern {name}", f"extern {there};", call)
        yield Attack(f"global {name}", "", f"(void)::{called.format(name)};")
        yield Attack(f"std {name}", "", f"(void)std::{called.format(name)};")
        yield Attack(f"builtin {name}", "", f"(void)__builtin_{called.format(name)};")
        for word in ("asm", "__asm", "__asm__"):
            yield Attack(f"{word} label {name}", f'{mine} {word}("{name}");', my_call)
        yield Attack(
            f"redirect {name}", f"int __REDIRECT (helper, (const char*), {name});", 'helper("x");'
        )
        yield Attack(f"declarations {name}", f"__BEGIN_DECLS {there}; __END_DECLS", call)
        yield Attack(
            f"renaming {name}", f"#pragma redefine_extname helper {name}\n{mine};", my_call
        )
        yield Attack(f"weak {name}", f"#pragma weak helper = {name}\n{mine};", my_call)
        yield Attack(f"alias {name}", f'{mine} __attribute__((alias("{name}")));', my_call)
        yield Attack(
            f"weakref {name}", f'static {mine} __attribute__((weakref("{name}")));', my_call
        )
        yield Attack(f"closed namespace {name}", f'}} extern "C" {there}; namespace msl {{', call)
        yield Attack(
            f"header {name}",
            "",
            f"(void)::{called.format(name)};",
            "#include <stdlib.h>\n#include <cstdio>",
        )


def _at_load() -> Iterator[Attack]:
    """What would run when a library is loaded or unloaded."""
    body = f"static void first() {{ constant char* volatile x = {_RUN}; (void)x; }}"
    for word, name in itertools.product(
        ("__attribute__", "__attribute"),
        ("constructor", "__constructor__", "constructor(101)", "destructor", "unused, constructor"),
    ):
        yield Attack(f"{word} {name}", f"{word}(({name})) {body}")
    for name in (
        "gnu::constructor",
        "clang::constructor",
        "using gnu: constructor",
        "__gnu__::__destructor__",
    ):
        yield Attack(f"[[{name}]]", f"[[{name}]] {body}")
        yield Attack(f"[ [{name}]]", f"[ [{name}] ] {body}")
    for section in (
        ".init_array",
        ".preinit_array",
        ".fini_array",
        ".ctors",
        ".init",
        ".text",
        ".plt",
    ):
        yield Attack(
            f"section {section}",
            f'{body} void (* constant at)() __attribute__((section("{section}"), used)) = first;',
        )
    yield Attack(
        "ifunc",
        'typedef void (*F)(); extern F choose(); void f() __attribute__((ifunc("choose")));',
        "f();",
    )
    yield Attack(
        "target_clones",
        '__attribute__((target_clones("avx2", "default"))) int f(int x) { return x; }',
        "f(1);",
    )
    yield Attack("cleanup", body, "int x __attribute__((cleanup(first)));")
    yield Attack(
        "computed",
        "int f(int x) { volatile int y = x; return y; }\nconstant int z = f(3);",
        "out[0] = z;",
    )
    yield Attack(
        "computed in a member",
        "int f() { volatile int y = 1; return y; } struct S { static constant int z; }; constant int S::z = f();",
    )
    yield Attack(
        "computed in a template",
        "int f() { volatile int y = 1; return y; } template <class T> constant int zz = f();",
        "out[0] = zz<int>;",
    )
    yield Attack(
        "destructor of a variable",
        "struct S { int x; ~S() { volatile int y = x; (void)y; } }; constant S s = {1};",
        "out[0] = s.x;",
    )
    yield Attack(
        "destructor of a thread",
        "struct S { int x; ~S() { volatile int y = x; (void)y; } };",
        "thread_local S s; s.x = 1;",
    )


def _of_the_language() -> Iterator[Attack]:
    yield Attack("new", "", "int* volatile x = new int(3); out[0] = *x;")
    yield Attack("new[]", "", "int* x = new int[1000]; out[0] = x[7];")
    yield Attack("delete", "", "delete (int*)out;")
    yield Attack("throw", "", "throw 1;")
    yield Attack("catch", "", "try { out[0] = 1; } catch (...) { out[0] = 2; }")
    yield Attack(
        "virtual",
        "struct S { virtual int f() { return 1; } };",
        "S s; S* volatile p = &s; out[0] = p->f();",
    )
    yield Attack(
        "dynamic_cast",
        "struct S { virtual ~S() {} }; struct T : S {};",
        "S s; S* volatile p = &s; out[0] = dynamic_cast<T*>(p) != nullptr;",
    )
    yield Attack("typeid", "", "out[0] = typeid(int) == typeid(float);")
    yield Attack("goto an address", "", "void* at = &&there; goto *at; there: out[0] = 1;")
    for name in (
        "return_address(0)",
        "frame_address(0)",
        "thread_pointer()",
        "unwind_init()",
        "longjmp((void**)out, 1)",
        "setjmp((void**)out)",
        "eh_return(0, out)",
        "apply(0, 0, 0)",
        "alloca(1 << 30)",
        "trap()",
        "debugtrap()",
        "va_start",
        "ia32_rdtsc()",
        "call_with_static_chain(f(), 0)",
    ):
        yield Attack(f"builtin {name}", "", f"(void)__builtin_{name};")
    yield Attack("runtime", "", 'msl_runtime->fail("x");')
    yield Attack("runtime by its namespace", "", '::msl_runtime->log("x", 1);')
    yield Attack("support", "", "out[0] = msl::msl_support::kCpuFeatures;")
    yield Attack("macro of ours", "MSL_COLD static void f() {}", "f();")
    yield Attack("table", "const int metalops_library = 3;")
    yield Attack("declspec", "__declspec(dllexport) void f() {}")
    yield Attack("transaction", "", "__transaction_atomic { out[0] = 1; }")
    yield Attack("module", "import <cstdio>;")


def _assembly() -> Iterator[Attack]:
    for word, more in itertools.product(
        ("asm", "__asm", "__asm__"), ("", " volatile", " goto", " inline")
    ):
        yield Attack(f"{word}{more}", "", f'{word}{more}("mov $60, %eax; syscall");')
    yield Attack(
        "asm with operands",
        "",
        'int r; asm volatile("syscall" : "=a"(r) : "a"(39) : "rcx", "r11", "memory"); out[0] = r;',
    )
    yield Attack("asm outside", 'asm(".section .init_array,\\"aw\\"\\n.quad 0");')
    yield Attack("asm incbin", 'asm(".incbin \\"/etc/passwd\\"");')
    yield Attack("register", 'register int r asm("rax");')
    yield Attack("asm of a variable", 'extern int helper asm("environ");', "out[0] = helper;")
    yield Attack("ident", '#ident "x\\"\\n.text\\n.globl y\\n#"')
    yield Attack("made ident", '#define HASH #\nHASH ident "x"')
    yield Attack("digraph ident", '#define HASH %:\nHASH ident "x"')
    yield Attack("backslash", '#define NOTHING\nas\\ NOTHING\nm(".globl y");')
    yield Attack(
        "raw and attribute",
        'constant char* x = R"(" [[ )" ; constant char* y = R"( ]] asm("nop") ; ")";',
    )
    yield Attack(
        "separator and attribute",
        'kernel void g(device int* o [[buffer(0\'0)]]) {} constant char* x = "\' )]] asm(" "nop" ");";',
    )
    yield Attack("prefix", "constant int x = u'\"'; asm(\"nop\"); constant int y = u'\"';")


def _files() -> Iterator[Attack]:
    secret = "/etc/passwd"
    for directive, quotes in itertools.product(
        ("include", "include_next", "import"), ('"{}"', "<{}>")
    ):
        for name in (
            secret,
            "/etc/../etc/passwd",
            "../../../../../../../../etc/passwd",
            "./../../../../../../../../../../../etc/passwd",
            "/dev/null",
            "/proc/self/environ",
        ):
            yield Attack(
                f"{directive} {quotes.format(name)}", f"#{directive} {quotes.format(name)}"
            )
    yield Attack("include by a macro", f'#define FILE "{secret}"\n#include FILE')
    yield Attack(
        "include by two macros", f"#define Q(x) #x\n#define S(x) Q(x)\n#include S({secret})"
    )
    yield Attack("include made by a macro", f'#define HASH #\nHASH include "{secret}"')
    yield Attack("digraph include", f'%:include "{secret}"')
    yield Attack("commented include", f'#/* */include/* */"{secret}"')
    yield Attack("split include", f'#inc\\\nlude \\\n"{secret}"')
    yield Attack(
        "include behind a string", f'constant int c = u8\'"\'; /* "\n#include "{secret}"\n/* */'
    )
    yield Attack("embed", f'constant char x[] = {{\n#embed "{secret}"\n}};')
    yield Attack("embed with a limit", f"constant char x[] = {{\n#embed <{secret}> limit(10)\n}};")
    yield Attack(
        "has_include",
        f'#if __has_include("{secret}")\nconstant int there = 1;\n#endif',
        "out[0] = there;",
    )
    yield Attack("dependency", f'#pragma GCC dependency "{secret}"')
    yield Attack("pch", f'#pragma GCC pch_preprocess "{secret}"')
    yield Attack("system header", "#include <sys/cdefs.h>\n#include <unistd.h>")
    yield Attack("named file", f'#line 1 "{secret}"\nsyntax error here')
    yield Attack("entered file", f'# 1 "{secret}" 1\nint x;\n# 2 "b" 2')


def _names() -> Iterator[Attack]:
    for name in (
        '\\"}}; int x = system(\\"',
        "a\\nb",
        "\\\\",
        "%s%n",
        '\\"; asm(\\"nop\\"); //',
        "a\\0b",
        "??/",
    ):
        yield Attack(
            f"host_name {name}",
            f'[[host_name("{name}")]] kernel void g(device int* o) {{ o[0] = 1; }}',
        )
        yield Attack(
            f"file {name}",
            f'#line 7 "{name}"\nvoid helper() {{}}',
            "threadgroup_barrier(mem_flags::mem_none);",
        )
    yield Attack(
        "parameter",
        "",
        "",
        'kernel void g(device int* o [[buffer(0)]], int x [[buffer(system("x"))]]) {}',
    )
    yield Attack(
        "limit",
        '[[max_total_threads_per_threadgroup((asm("nop"), 3))]] kernel void g(device int* o) {}',
    )
    yield Attack(
        "constant", "constant int c [[function_constant(__builtin_abort())]];", "out[0] = c;"
    )


ATTACKS = [*_calls(), *_at_load(), *_of_the_language(), *_assembly(), *_files(), *_names()]


# ---- where it stands -----------------------------------------------------------------------------


def _plain(a: Attack) -> str:
    return f"{a.outside}\nkernel void k(device int* out [[buffer(0)]]) {{ {a.inside} out[1] = 2; }}"


def _in_a_namespace(a: Attack) -> str:
    return f"namespace a {{ namespace b {{\n{a.outside}\n}} }} using namespace a::b;\nkernel void k(device int* out [[buffer(0)]]) {{ {a.inside} out[1] = 2; }}"


def _in_a_template(a: Attack) -> str:
    return (
        f"{a.outside}\ntemplate <class T> void run(device T* out) {{ {a.inside} out[1] = 2; }}\n"
        "kernel void k(device int* out [[buffer(0)]]) { run(out); }"
    )


def _in_a_method(a: Attack) -> str:
    return (
        f"{a.outside}\nstruct M {{ static void run(device int* out) {{ {a.inside} out[1] = 2; }} }};\n"
        "kernel void k(device int* out [[buffer(0)]]) { M::run(out); }"
    )


def _with_a_barrier(a: Attack) -> str:
    return (
        f"{a.outside}\nkernel void k(device int* out [[buffer(0)]], uint i [[thread_position_in_threadgroup]]) {{ "
        f"if (i == 0) {{ {a.inside} }} threadgroup_barrier(mem_flags::mem_device); out[1] = 2; }}"
    )


PLACES = [_plain, _in_a_namespace, _in_a_template, _in_a_method, _with_a_barrier]


# ---- how it is spelled ---------------------------------------------------------------------------

_WORD = re.compile(r"[A-Za-z_]\w{2,}")
# What somebody would hide.
_HIDDEN = re.compile(
    r"__attribute__|__attribute|__builtin_\w+|__asm__|__asm|\basm\b|\bextern\b|\bsystem\b|\binclude\b|\bembed\b|\bconstructor\b|\bmsl_runtime\b"
)


def _hide(text: str, change) -> str:
    return "\n".join(
        line if line.startswith("#define") else _HIDDEN.sub(change, line)
        for line in text.split("\n")
    )


def _spliced(text: str, chance: random.Random) -> str:
    return _hide(text, lambda m: m[0][:2] + "\\\n" + m[0][2:])


def _spliced_with_space(text: str, chance: random.Random) -> str:
    return _hide(text, lambda m: m[0][:2] + "\\ \n" + m[0][2:])


def _by_macros(text: str, chance: random.Random) -> str:
    words: dict[str, str] = {}
    body = _hide(
        text,
        lambda m: (
            m[0] if m[0] in ("include", "embed") else words.setdefault(m[0], f"W{len(words)}")
        ),
    )
    return "".join(f"#define {w} {a}\n" for a, w in words.items()) + body


def _pasted(text: str, chance: random.Random) -> str:
    body = _hide(
        text, lambda m: m[0] if m[0] in ("include", "embed") else f"CAT({m[0][:2]}, {m[0][2:]})"
    )
    return f"#define CAT_(a, b) a##b\n#define CAT(a, b) CAT_(a, b)\n{body}"


def _commented(text: str, chance: random.Random) -> str:
    return _hide(text, lambda m: f"/**/{m[0]}/* ' */")


def _by_characters(text: str, chance: random.Random) -> str:
    return _hide(text, lambda m: f"\\u{ord(m[0][0]):04x}{m[0][1:]}")


def _digraphs(text: str, chance: random.Random) -> str:
    return text.replace("[[", "<:<:").replace("]]", ":>:>")


def _carriage_returns(text: str, chance: random.Random) -> str:
    return text.replace("\n", "\r\n" if chance.random() < 0.5 else "\r")


def _nulls(text: str, chance: random.Random) -> str:
    return _hide(text, lambda m: m[0] + chance.choice("\0\f\v\x85\xa0"))


def _in_an_argument(text: str, chance: random.Random) -> str:
    if "#" in text:
        return text
    return f"#define ID(...) __VA_ARGS__\nID({text})"


def _after_a_line(text: str, chance: random.Random) -> str:
    return f'#line {chance.choice([1, 7, 2147483647])} "/usr/include/stdio.h"\n{text}'


def _behind_quotes(text: str, chance: random.Random) -> str:
    before = chance.choice(
        [
            "constant int q = '\"';",
            "constant int q = 1'0;",
            "// \\\n",
            '/* " */',
            'constant char* q = "\\\\";',
            "??/\n",
            "#if 0\n'\n#endif\n",
        ]
    )
    return f"{before}\n{text}"


DISGUISES = [
    lambda text, chance: text,
    _spliced,
    _spliced_with_space,
    _by_macros,
    _pasted,
    _commented,
    _by_characters,
    _digraphs,
    _carriage_returns,
    _nulls,
    _in_an_argument,
    _after_a_line,
    _behind_quotes,
]
_HEADER = "#include <metal_stdlib>\nusing namespace metal;\n"


def text_of(seed: int) -> tuple[str, str]:
    """(what it tries, the text). The first of them are all attacks as they are; then they are placed and disguised."""
    chance = random.Random(seed)
    if seed < len(ATTACKS):
        attack, place, disguises = ATTACKS[seed], _plain, []
    else:
        attack, place = chance.choice(ATTACKS), chance.choice(PLACES)
        disguises = chance.sample(DISGUISES, chance.choice([1, 1, 2]))
    body = place(attack)
    for disguise in disguises:
        body = disguise(body, chance)
    names = [attack.name, place.__name__, *(d.__name__ for d in disguises)]
    return " ".join(names), f"{attack.before}\n{_HEADER}{body}\n"


# ---- what becomes of it --------------------------------------------------------------------------

# The test's own list, shorter than the front end's: these texts need no more.
_HARMLESS = re.compile(
    r"mem(?:cpy|set|move)|__cxa_(?:finalize|guard_\w+|begin_catch|end_catch)|__gxx_personality_v0|_Unwind_Resume"
    r"|_ZSt9terminatev|__gmon_start__|_ITM_\w+TMCloneTable"
)


class Escape(AssertionError):
    """A text got out, or was refused without a place."""


def outcome(text: str, folder: str, run: bool = True) -> str:
    """ "refused", "refused by the compiler" or "harmless". Raises Escape."""
    path, library = os.path.join(folder, "text.metal"), os.path.join(folder, "text.so")
    with open(path, "w", encoding="utf-8", newline="") as stream:
        stream.write(text)
    calls = []

    def count(self, arguments, **options):
        calls.append(arguments)
        return before(self, arguments, **options)

    before, compiler.Compiler.run = compiler.Compiler.run, count
    try:
        compile_path(path, library, Options(optimize=1))
    except SyntaxError as error:
        if "root:x:0" in str(error):
            raise Escape("the error tells what is in a file") from None
        if not error.diagnostics or any(d.line < 1 for d in error.diagnostics):
            raise Escape("refused without a place") from None
        return "refused" if len(calls) < 2 else "refused by the compiler"
    finally:
        compiler.Compiler.run = before
        if os.path.exists(CANARY):
            os.remove(CANARY)
            raise Escape("ran while it was compiled")
    listed = subprocess.run(
        ["nm", "-D", "--undefined-only", library], capture_output=True, text=True, check=True
    )
    for line in listed.stdout.splitlines():
        name = line.split()[-1].split("@")[0]
        if not _HARMLESS.fullmatch(name):
            raise Escape(f"asks for {name}")
    if run:
        _load(library)
    return "harmless"


def _load(library: str) -> None:
    """In a process of its own, which has to come to its end."""
    program = "import ctypes, sys; ctypes.CDLL(sys.argv[1]); print('still here')"
    result = subprocess.run(
        [sys.executable, "-c", program, library], capture_output=True, text=True
    )
    if "still here" not in result.stdout:
        raise Escape(f"ends a process that loads it: {result.returncode}")
    if os.path.exists(CANARY):
        os.remove(CANARY)
        raise Escape("ran when it was loaded")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz.hostile",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seed", type=int, default=0, help="of the first text (0)")
    parser.add_argument("--count", type=int, default=2000, help="how many texts (2000)")
    arguments = parser.parse_args()
    outcomes: Counter[str] = Counter()
    for seed in range(arguments.seed, arguments.seed + arguments.count):
        name, text = text_of(seed)
        with tempfile.TemporaryDirectory() as folder:
            try:
                outcomes[outcome(text, folder)] += 1
            except Exception as error:
                outcomes["FAULT"] += 1
                print(f"\nseed {seed}, {name}: {type(error).__name__}: {error}\n{text}", flush=True)
    print(
        f"{outcomes.total()} texts: "
        + ", ".join(f"{n} {what}" for what, n in sorted(outcomes.items()))
    )
    return int(outcomes["FAULT"] > 0)


if __name__ == "__main__":
    sys.exit(main())
