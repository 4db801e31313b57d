"""`python -m metalops doctor` finds each planted fault, nothing where there is none, and what cures it."""

import json

import metalops
import pytest
from metalops import _doctor, fixes
from metalops._doctor import examine
from metalops._doctor.probes import PROBES
from metalops.fixes import FAULTS
from metalops.testing import faults

pytestmark = pytest.mark.skipif(
    not metalops._is_software, reason="faults are planted in the stand-ins of the software device"
)

# By chance, or with more memory than there is: known from reports.
NOT_PROBED = {"bmm-large", "sum-rapid", "var-rapid", "reduction-large"}

ENDS = [name for name in PROBES if FAULTS[name].ends]


def _states(findings):
    return {finding.name: finding.state for finding in findings}


def test_every_fault_is_probed_and_can_be_planted_or_is_known_from_reports():
    assert set(PROBES) | NOT_PROBED == set(FAULTS)
    assert set(PROBES) == set(faults.FAULTS)
    assert not set(PROBES) & NOT_PROBED


@pytest.mark.full
def test_nothing_is_found_where_there_is_no_fault():
    for name, state in _states(examine(PROBES)).items():
        assert state == "absent", name


@pytest.mark.nightly
def test_each_planted_fault_that_ends_the_process_is_found_and_its_fix_cures_it():
    found = examine(ENDS, plant=ENDS)
    assert _states(found) == {name: "opt-in" if FAULTS[name].fix else "present" for name in ENDS}


@pytest.mark.parametrize("what", ["sys.exit('a probe failed')", "import time; time.sleep(100)"])
def test_a_process_that_ends_or_does_not_answer_has_the_fault(what, monkeypatch):
    monkeypatch.setattr(_doctor, "_TIME_LIMIT", 0.2)
    monkeypatch.setattr(_doctor._Child, "_SERVE", f"import sys; {what}")
    with _doctor._Child() as child:
        assert child.seen(ENDS[0], "", "") and child.seen(ENDS[0], "", "")


@pytest.mark.parametrize("name", [name for name in PROBES if name not in ENDS])
def test_each_planted_fault_is_found_and_its_fix_cures_it(name):
    (finding,) = examine([name], plant=[name])
    fault = FAULTS[name]
    if fault.fix in fixes.FIXES:
        assert (finding.state, finding.call) == ("opt-in", f"metalops.enable_fixes({fault.fix!r})")
        with metalops.enable_fixes(fault.fix):
            (finding,) = examine([name], plant=[name])
            assert (finding.state, finding.call) == ("cured", "")
            assert next(x for x in fixes.status() if x.name == fault.fix).on
    else:
        # What is planted lies over the kernels that metalops always has.
        assert (finding.state, finding.call) == ("present", "")
    assert not any(fix.on for fix in fixes.status())


def test_faults_that_are_not_probed_are_known_by_the_version():
    for name in NOT_PROBED:
        (finding,) = examine([name])
        known = _doctor._is_of_version(FAULTS[name].torch, _doctor.machine()["torch"])
        assert finding.state == ("reported" if known else "not reported")
        assert bool(finding.call) == (known and FAULTS[name].fix != "")


def test_ranges_of_versions():
    contains = _doctor._is_of_version
    assert contains("2.13 to 2.15", "2.14.1+cpu") and not contains("2.13 to 2.15", "2.16.0")
    assert contains("2.12, 2.13", "2.13.0") and not contains("2.12, 2.13", "2.14.0")
    assert contains("up to 2.11", "2.9.1") and not contains("up to 2.11", "2.12.0")


def test_the_report_and_the_settings_file(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(_doctor, "FAULTS", {x: FAULTS[x] for x in ("baddbmm-beta", "index-fill-bounds", "bmm-large")})  # fmt: skip
    file = tmp_path / "folder" / "settings.json"
    monkeypatch.setenv("METALOPS_SETTINGS", str(file))
    assert _doctor.main(["--plant", "baddbmm-beta", "--apply"]) == 1
    report = capsys.readouterr().out
    assert "opt-in: stock is wrong here, and a fix that is off cures it\n  baddbmm-beta" in report
    assert "call metalops.enable_fixes('matmul')" in report
    assert "pytorch issue 194442" in report and f"{file}: matmul" in report
    assert json.loads(file.read_text()) == {"fixes": ["matmul"]}
    assert _doctor.main(["--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {x["name"]: x["state"] for x in found["faults"]}["baddbmm-beta"] == "absent"
    assert set(found["machine"]) == {"torch", "metalops", "system", "device"}
    assert found["faults"][0]["issue"] == 194442
