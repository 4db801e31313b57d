"""python -m metalops."""

import sys

import pytest
import torch
from metalops import __main__, demo


def test_every_command_exists_and_has_help(capsys):
    for name in __main__.COMMANDS:
        try:
            status = __main__.main([name, "--help"])
        except SystemExit as stopped:  # argparse does not return
            status = stopped.code
        assert status == 0, name
        assert "usage:" in capsys.readouterr().out


def test_an_unknown_command_is_refused_with_the_list_of_commands(capsys):
    assert __main__.main(["nonsense"]) == 2
    printed = capsys.readouterr().err
    assert "unknown command 'nonsense'" in printed
    assert all(name in printed for name in __main__.COMMANDS)


def test_info_tells_device_torch_and_every_kernel_library(capsys):
    import metalops

    assert __main__.main(["info"]) == 0
    printed = capsys.readouterr().out
    assert torch.backends.mps.get_name() in printed
    assert torch.__version__ in printed
    for entry in metalops._C.kernel_libraries():
        assert entry["family"] in printed


def test_info_tells_which_variables_are_set(capsys, monkeypatch):
    monkeypatch.setenv("METALOPS_AUTOLOAD", "1")
    assert __main__.main(["info"]) == 0
    assert "METALOPS_AUTOLOAD=1" in capsys.readouterr().out


def test_info_begins_with_what_matters(capsys, monkeypatch):
    import metalops

    monkeypatch.setenv("METALOPS_SANITISE", "thread")
    assert __main__.main(["info"]) == 0
    lines = capsys.readouterr().out.splitlines()
    titles = [line[:18].strip() for line in lines if not line.startswith(" ")]
    assert titles[:5] == ["metalops", "torch", "device", "compiler", "environment"]
    assert titles[-1] == "kernel libraries"
    first = "\n".join(lines[:8])
    assert metalops.__version__ in first and torch.__version__ in first
    assert lines[2].split() == ["device", "works"]
    assert "METALOPS_SANITISE is set" in first and "do you mean METALOPS_SANITIZE?" in first


def test_info_says_what_is_wrong_with_a_device_that_does_not_work(capsys, monkeypatch):
    import metalops

    def broken(x, cap):
        raise RuntimeError("no command queue")

    monkeypatch.setattr(metalops.ops, "softcap", broken)
    assert __main__.main(["info"]) == 0
    assert "does not work: RuntimeError: no command queue" in capsys.readouterr().out
    monkeypatch.setattr(metalops.ops, "softcap", lambda x, cap: x)
    assert __main__.main(["info"]) == 0
    assert "computes wrong results: please run `python -m metalops selftest`" in (
        capsys.readouterr().out
    )


@pytest.fixture
def picture(tmp_path):
    image = pytest.importorskip("PIL.Image", reason="the demo reads images with Pillow")
    path = tmp_path / "picture.png"
    pixels = torch.randint(0, 256, (37, 53, 3), dtype=torch.uint8)
    image.fromarray(pixels.numpy()).save(path)
    return path


@pytest.mark.full
def test_the_demo_develops_a_picture_of_ones_own(picture, tmp_path, capsys):
    out = tmp_path / "out"
    status = __main__.main(["demo", "--image", str(picture), "--output", str(out)])
    printed = capsys.readouterr().out
    assert status == 0, printed
    lines = printed.splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith("operator "))
    columns = lines[head].split()
    rows = [line.split() for line in lines[head + 1 : lines.index("", head)]]
    assert len(rows) == 32 and all(len(row) == len(columns) for row in rows), printed
    assert {"silu_and_mul", "attention"} <= {row[0] for row in rows}
    legend = "\n".join(lines[lines.index("", head) :])
    # Every column and every sign that is no number is explained.
    assert all(f"\n{name}: " in legend for name in columns[2:])
    assert any("-" in row for row in rows) and '"-": ' in legend
    for _, _, ours, theirs, ratio, _ in rows:
        if theirs != "-":
            # All three are rounded to what is printed.
            ours, theirs, rounding = float(ours), float(theirs), 0.0005
            least = (theirs - rounding) / (ours + rounding)
            most = (theirs + rounding) / max(ours - rounding, rounding)
            assert least - 0.051 < float(ratio.removesuffix("x")) < most + 0.051
    assert (out / "metalops_before.png").stat().st_size > 0
    assert (out / "metalops_after.png").read_bytes() != (out / "metalops_before.png").read_bytes()


def test_the_demo_reports_wrong_results():
    check = demo.Checker()
    check("off by one", lambda x: x + 1, lambda x: x, torch.zeros(3, device="mps"))
    assert not check.rows[0].passed
    assert check.rows[0].error == 1


def test_the_demo_says_which_package_is_missing(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert __main__.main(["demo"]) == 1
    printed = capsys.readouterr().err
    assert "the demo needs the package PIL: pip install pillow scikit-learn" in printed


def test_the_demo_says_that_its_photograph_is_missing(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    assert __main__.main(["demo"]) == 1
    assert "or give one of your own with --image PATH" in capsys.readouterr().err


def test_an_unreadable_image_is_named(capsys):
    assert __main__.main(["demo", "--image", "absent.png"]) == 1
    assert "the image absent.png cannot be read" in capsys.readouterr().err
