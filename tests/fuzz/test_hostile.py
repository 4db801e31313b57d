"""Metal texts that try to get out are refused, or do nothing: some of those that `python -m tests.fuzz.hostile` makes."""

import pytest

from . import hostile

# One of each way out, by its name in hostile.py.
WAYS = """
    linkage system; linkage block popen; linkage raw exit; extern abort; builtin abort; __asm__ label system; redirect system;
    declarations system; renaming system; weak exit; alias abort; closed namespace system; header system
    __attribute__ constructor; __attribute unused, constructor; [[gnu::constructor]]; [[using gnu: constructor]];
    section .init_array; ifunc; target_clones; cleanup; computed; destructor of a variable; destructor of a thread
    new; throw; virtual; typeid; goto an address; builtin return_address(0); runtime; macro of ours
    asm volatile; asm with operands; asm outside; asm of a variable; ident; made ident; backslash; raw and attribute;
    separator and attribute; prefix
    include "/etc/passwd"; include_next </etc/passwd>; import "../../../../../../../../etc/passwd"; include by a macro;
    include made by a macro; split include; include behind a string; embed; named file; entered file
"""


@pytest.mark.parametrize(
    "way", [w.strip() for w in WAYS.replace("\n    ", "; ").split(";") if w.strip()]
)
def test_no_way_leads_out(way, tmp_path):
    (seed,) = (i for i, attack in enumerate(hostile.ATTACKS) if attack.name == way)
    name, text = hostile.text_of(seed)
    assert hostile.outcome(text, tmp_path) != "harmless"


@pytest.mark.nightly
@pytest.mark.parametrize("first", range(500, 580, 20))
def test_disguised_ones_lead_nowhere(first, tmp_path):
    for seed in range(first, first + 20):
        name, text = hostile.text_of(seed)
        try:
            hostile.outcome(text, tmp_path, run=False)
        except hostile.Escape as escape:
            pytest.fail(f"seed {seed}, {name}: {escape}\n{text}", pytrace=False)


@pytest.mark.parametrize(
    "text, wrong",
    [
        ('int puts(const char*) asm("puts");', "asks for put"),
    ],
)
def test_what_gets_out_is_noticed(text, wrong, tmp_path, monkeypatch):
    """With nobody there to refuse it."""
    from metalops.msl.analysis import confinement
    from metalops.msl.targets.host import objects

    monkeypatch.setattr(confinement, "breaches", lambda text, emitted=False: iter(()))
    monkeypatch.setattr(objects, "faults", lambda path, sanitized: [])
    call = 'puts("x");' if "puts" in text else ""
    kernel = f"{text}\nkernel void k(device int* out) {{ {call} out[0] = 1; }}"
    with pytest.raises(hostile.Escape, match=wrong):
        hostile.outcome(kernel, tmp_path)
