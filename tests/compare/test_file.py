"""The file of a difference: written by metalops.debug.compare(path=...), run again by `python -m metalops replay`."""

import json
import zipfile

import metalops
import pytest
import torch
from metalops._compare import file
from metalops.debug import compare
from metalops.testing.faults import replaced
from metalops.trace import archive
from metalops.trace.cli import main

pytestmark = pytest.mark.skipif(
    not metalops._is_software, reason="faults are planted in the stand-ins of the software device"
)


def doubled(kernel, *args, **kwargs):
    return kernel(*args, **kwargs) * 2


def recorded(path, name, wrong, call):
    with replaced(name, wrong), compare(path=path, halt=False) as comparison:
        call()
    (difference,) = comparison.differences
    return difference


@pytest.fixture
def path(tmp_path):
    return tmp_path / "difference"


CALLS = {
    "a transposed view": ("mm", doubled, lambda: torch.mm(torch.randn(4, 3, device="mps").t(), torch.ones(4, 2, device="mps"))),
    "a number of special value": ("clamp", doubled, lambda: torch.randn(3, device="mps").clamp(-float("inf"), 0.5)),
    "a complex number": ("div.Tensor", doubled, lambda: torch.randn(3, device="mps", dtype=torch.complex64) / (1 + 2j)),
    "a dtype": ("cumsum", doubled, lambda: torch.ones(3, device="mps").cumsum(0, dtype=torch.float16)),
    "out=": ("mm.out", lambda kernel, a, b, *, out: kernel(a, b, out=out).add_(1), lambda: torch.mm(torch.ones(2, 2, device="mps"), torch.ones(2, 2, device="mps"), out=torch.empty(2, 2, device="mps"))),
    "a list": ("_foreach_mul_.Scalar", lambda kernel, xs, c: (kernel(xs, c), xs[0].add_(1)) and None, lambda: torch._foreach_mul_([torch.ones(2, device="mps"), torch.ones(3, device="mps")], 2.0)),
    "a random operator": ("multinomial", lambda kernel, *args, **_: torch.ones_like(kernel(*args)), lambda: torch.tensor([1.0, 0, 1], device="mps").multinomial(1)),
    "bfloat16": ("mm", doubled, lambda: torch.mm(*[torch.randn(3, 3, device="mps", dtype=torch.bfloat16)] * 2)),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_a_call_differs_again_where_the_fault_is_and_not_elsewhere(name, path, capsys):
    operator, wrong, call = CALLS[name]
    difference = recorded(path, operator, wrong, call)
    assert difference.path == str(path)
    with replaced(operator, wrong):
        assert main([str(path)]) == 1
    again = capsys.readouterr().out.partition("here, with")[2]
    assert again.count(f"aten::{operator}") >= 1 and "are wrong" in again
    assert main([str(path)]) == 0
    assert "agrees with the CPU" in capsys.readouterr().out


def test_random_operators_draw_what_they_drew(path, capsys):
    drawn = []

    def wrong(kernel, *args, **_):
        drawn.append(kernel(*args).cpu())
        return torch.ones_like(drawn[-1], device="mps")

    weights = torch.ones(1000, device="mps")
    weights[1] = 0
    recorded(path, "multinomial", wrong, lambda: weights.multinomial(5))
    with replaced("multinomial", wrong):
        main([str(path)])
    assert torch.equal(*drawn)


def test_the_first_difference_is_kept(path):
    a = torch.ones(2, 2, device="mps")
    with replaced("mm", doubled), replaced("sin", doubled), compare(path=path, halt=False):
        a.sin()
        a @ a
    assert file.load(path).call.operator == "aten::sin"


def test_memory_that_is_shared_is_stored_once(path):
    a = torch.randn(100, 100, device="mps")
    recorded(path, "mm", doubled, lambda: a @ a.t())
    assert [m.numel() for m in file.load(path).call.arguments.memories] == [40_000]


def test_large_contents_are_replaced_by_others_of_their_kind(path, monkeypatch, capsys):
    monkeypatch.setattr(file, "_MOST_KEPT", 1000)
    a = torch.rand(100, 100, device="mps") + 1
    recorded(path, "mm", doubled, lambda: a @ a.t())
    assert path.stat().st_size < 3000
    (place, _), _ = file.load(path).call.arguments.on_cpu()
    assert 1 <= place.min() and place.max() <= 2
    assert main([str(path)]) == 0
    assert "other numbers of their kind" in capsys.readouterr().out


# ---- files from others ---------------------------------------------------------------------------


@pytest.fixture
def document(path):
    recorded(path, "mm", doubled, lambda: torch.ones(2, 3, device="mps") @ torch.ones(3, 2, device="mps"))  # fmt: skip
    with zipfile.ZipFile(path) as opened:
        blobs = {n: opened.read(n) for n in opened.namelist() if len(n) == 64}
        return json.loads(opened.read(file.DOCUMENT)), blobs


def put(path, document, blobs):
    archive.save(path, file.DOCUMENT, document, blobs)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(operator="aten::from_file"), "no operator 'aten::from_file'"),
        (lambda d: d.update(operator="c10d::barrier"), "no operator 'c10d::barrier'"),
        (lambda d: d.update(operator="aten::__class__"), "no operator"),
        (lambda d: d.update(operator=5), "operator is no str"),
        (lambda d: d.update(version=7), "version 7"),
        (lambda d: d["arguments"][0]["tensor"].update(offset=2), "larger than its memory"),
        (lambda d: d["arguments"][0]["tensor"].update(offset=-1), "no numbers in range"),
        (lambda d: d["arguments"][0]["tensor"].update(strides=[-1, 1]), "no numbers in range"),
        (lambda d: d["arguments"][0]["tensor"].update(sizes=[2, 3, 1]), "other numbers of sizes"),
        (lambda d: d["arguments"][0]["tensor"].update(memory=9), "no memory 9"),
        (lambda d: d["arguments"][0]["tensor"].update(dtype="Tensor"), "is no dtype"),
        (lambda d: d["arguments"][0]["tensor"].update(device="cuda"), "unknown device"),
        (lambda d: d["arguments"][0]["tensor"].update(is_conj=True), "conjugated"),
        (lambda d: d["arguments"][0]["tensor"].pop("offset"), "lacks some of its fields"),
        (lambda d: d["arguments"].append({"code": "x"}), "is no value"),
        (lambda d: d["arguments"].append({"dtype": "load"}), "is no dtype"),
        (lambda d: d["memories"][0].update(bytes=8), "its contents have 24"),
        (lambda d: d["memories"][0].update(contents="0" * 64), "lacks the contents"),
        (lambda d: d["memories"][0].update(bytes=2**40), "a memory has"),
        (lambda d: d.pop("memories"), "memories is no list"),
        (lambda d: d["arguments"].pop(), "aten::mm raises"),
        (lambda d: d["arguments"].append(5), "aten::mm raises"),
    ],
)
def test_wrong_files_are_refused(change, message, document, path, capsys):
    content, blobs = document
    change(content)
    put(path, content, blobs)
    assert main([str(path)]) == 2
    assert message in capsys.readouterr().err


def test_damage_is_noticed(document, path, capsys):
    content, blobs = document
    name = next(iter(blobs))
    put(path, content, {**blobs, name: bytes(len(blobs[name]))})
    assert main([str(path)]) == 2
    assert "not as they were written" in capsys.readouterr().err
    put(path, content, blobs)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    assert main([str(path)]) == 2


def test_options_of_traces_are_refused(document, path, capsys):
    put(path, *document)
    assert main([str(path), "--time"]) == 2
    assert "takes no --device, --time or --sanitize" in capsys.readouterr().err
