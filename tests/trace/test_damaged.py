"""Damaged traces are refused in a sentence before anything runs, or they replay: generated changes of a valid file."""

from __future__ import annotations

import copy
import hashlib
import io
import json
import math
import random
import zipfile

import metalops
import pytest
import torch
from metalops import debug, trace
from metalops.trace import archive as trace_archive
from metalops.trace import schema
from metalops.trace.cli import main
from metalops.trace.replay import SoftwareDevice, replay

KERNELS = """
#include <metal_stdlib>
using namespace metal;
constant int shift [[function_constant(2)]];
kernel void scaled(device float4& out [[buffer(0)]], constant float4& in [[buffer(1)]], constant float& by [[buffer(2)]]) {
  out = in * by + (is_function_constant_defined(shift) ? shift : 0);
}
kernel void listed(device float& out [[buffer(0)]], constant ulong2& addresses [[buffer(1)]]) {
  if (addresses.x && addresses.y) out = *reinterpret_cast<device float*>(addresses.y);
}
kernel void sampled(texture2d<float> in, sampler s, texture2d<float, access::write> out, uint2 p [[thread_position_in_grid]]) {
  out.write(in.sample(s, float2(p) / 3, level(p.x)), p);
}
"""
# Instead of any value of the description.
VALUES = [
    None,
    True,
    False,
    -1,
    0,
    1,
    3,
    2**31,
    2**32,
    2**63,
    2**64,
    10**40,
    0.5,
    -1e308,
    math.inf,
    math.nan,
    "",
    "x",
    "00",
    "\0",
    "../../x",
    "0" * 64,
    "float32",
    "é",
    [],
    [[]],
    [1, 2, 3],
    [1] * 100,
    {},
    {"kind": "normal"},
    {"": {}},
    {"launch": {}},
]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The members of a valid trace with all that a description can hold."""
    torch.manual_seed(0)  # what is done to a file depends on its bytes
    path = tmp_path_factory.mktemp("trace") / "a.trace"
    shader = torch.mps.compile_shader(KERNELS)
    out, x = torch.zeros(8, device="mps"), torch.rand(8, device="mps")
    with debug.capture(path):
        shader.scaled(out, x, 2.0)
        shader.listed(out, [out, x])
        levels = [torch.rand(4, 4, device="mps"), torch.rand(2, 2, device="mps")]
        target = torch.zeros(4, 8, 4, dtype=torch.uint8, device="mps")[:, 2:6]
        textures = metalops.texture(levels), metalops.texture(target, "rgba8unorm")
        sampler = metalops.sampler("linear", mip_filter="linear")
        shader.sampled(*textures, sampler, threads=(3, 4), group_size=(3, 4))
    recorded = trace.load(path)
    assert all(row.problems == () for row in replay(recorded, SoftwareDevice(), check=True))
    kinds = [{"kind": "uniform", "low": 0.0, "high": 1.0}, {"kind": "normal"}, {"kind": "nothing"}]
    for kind in kinds:
        recorded.events.append(trace.Write(0, generator=kind))
    trace.save(recorded, path)
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _packed(files, document=None):
    """An archive, whose description is as good as written by us if it is given."""
    files = dict(files)
    if document is not None:
        text = json.dumps(document).encode()
        files["trace.json"] = text
        files["trace.json.sha256"] = hashlib.sha256(text).hexdigest().encode()
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return stream.getvalue()


def _places(value, path=()):
    """All places of a description, by the way to them."""
    yield path
    entries = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, entry in entries:
        yield from _places(entry, (*path, key))


def _changed_description(document, chance):
    """With a value of another kind, an entry too few, too many, or twice."""
    document = copy.deepcopy(document)
    path = chance.choice([p for p in _places(document) if p])
    holder = document
    for key in path[:-1]:
        holder = holder[key]
    key, how = (
        path[-1],
        chance.choice(["value", "value", "value", "without", "more", "renamed", "near"]),
    )
    if how == "value":
        holder[key] = copy.deepcopy(chance.choice(VALUES))
    elif how == "without":
        del holder[key]
    elif how == "more" and isinstance(holder, list):
        holder.insert(
            chance.randrange(len(holder) + 1), copy.deepcopy(chance.choice([holder[key], *VALUES]))
        )
    elif how == "more":
        holder[chance.choice(["", "x", "-1", "99", "1e3", "memory", "value"])] = copy.deepcopy(
            holder[key]
        )
    elif how == "renamed" and isinstance(holder, dict):
        holder[chance.choice(["x", "launch", "write", "7", "-1"])] = holder.pop(key)
    elif isinstance(holder[key], int) and not isinstance(holder[key], bool):
        holder[key] += chance.choice([-8, -1, 1, 8, 2**20])
    elif isinstance(holder[key], str):
        holder[key] = chance.choice(
            [holder[key][:-1], holder[key] + "0", holder[key].upper(), holder[key][2:]]
        )
    return document


def _changed_bytes(data, chance):
    data = bytearray(data)
    for _ in range(chance.choice([1, 1, 4, 40])):
        how, at = (
            chance.choice(["flip", "byte", "cut", "insert", "double", "end"]),
            chance.randrange(len(data) or 1),
        )
        if not data:
            break
        if how == "flip":
            data[at] ^= 1 << chance.randrange(8)
        elif how == "byte":
            data[at] = chance.randrange(256)
        elif how == "cut":
            del data[at : at + chance.choice([1, 2, 100])]
        elif how == "insert":
            data[at:at] = bytes(chance.randrange(256) for _ in range(chance.choice([1, 4])))
        elif how == "double":
            data[at:at] = data[at : at + 50]
        else:
            del data[at:]
    return bytes(data)


def _mutated(files, seed):
    """A file, and whether its description is as good as written by us."""
    chance = random.Random(seed)
    document = json.loads(files["trace.json"])
    if seed % 5 in (0, 1, 2):
        changed = _changed_description(document, chance)
        if chance.random() < 0.2:
            changed = _changed_description(changed, chance)
        return _packed(files, changed), True
    if seed % 5 == 3:
        return _changed_bytes(_packed(files), chance), False
    members = dict(files)
    name = chance.choice(list(members))
    if chance.random() < 0.5:
        members[name] = _changed_bytes(members[name], chance)
    else:
        del members[name]
    return _packed(members), False


def _replays(path):
    """Whether a file replays; else it has to be refused in a sentence. The kernels here look nowhere but into what is bound."""
    try:
        loaded = trace.load(path)
    except trace.TraceError as error:
        assert "\n" not in str(error) and len(str(error)) < 1000
        return False
    try:
        list(replay(loaded, SoftwareDevice(), check=True))
    except trace.TraceError as error:
        assert "\n" not in str(error) and len(str(error)) < 1000
        return False
    return True


def _put_through(files, path, seeds):
    """How many of the changed files replay."""
    replaying = 0
    for seed in seeds:
        data, _ = _mutated(files, seed)
        path.write_bytes(data)
        try:
            replaying += _replays(path)
        except Exception as error:
            pytest.fail(f"seed {seed}: {type(error).__name__}: {error}")
    return replaying


@pytest.mark.full
def test_changed_files_are_refused_or_replay(files, tmp_path):
    """500 of them; test_many_changed_files has 5,000 others."""
    assert 10 < _put_through(files, tmp_path / "b.trace", range(500)) < 250


@pytest.mark.nightly
def test_many_changed_files(files, tmp_path):
    assert 100 < _put_through(files, tmp_path / "b.trace", range(10_000, 15_000)) < 2500


def test_a_header_with_a_long_name_is_not_quoted_whole(files, tmp_path):
    """zipfile's message would hold the file."""
    data = bytearray(_packed(files))
    data[26:28] = (3000).to_bytes(2, "little")  # the first member's length of name
    path = tmp_path / "b.trace"
    path.write_bytes(data)
    assert not _replays(path)


def test_an_unchanged_file_that_is_packed_again_replays(files, tmp_path):
    path = tmp_path / "b.trace"
    path.write_bytes(_packed(files, json.loads(files["trace.json"])))
    assert _replays(path)


def _launch(document):
    return next(e["launch"] for e in document["events"] if "launch" in e)


CHANGES = {
    "binds nothing to buffer 1 ('in')": lambda d: _launch(d)["arguments"].pop(1),
    "binds 2 bytes to buffer 2 ('by'), which has 4": lambda d: _launch(d)["arguments"][2].update(
        value="0000"
    ),
    "binds 8 bytes to buffer 0 ('out'), which has 16": lambda d: _launch(d)["arguments"][0].update(
        offset=24
    ),
    "no kernel": lambda d: _launch(d).update(kernel="other"),
    "is not between 0 and 4294967295": lambda d: _launch(d)["grid"].__setitem__(0, 2**64),
    "has 18446744056529682436 threads": lambda d: _launch(d)["grid"].__setitem__(
        slice(0, 2), [2**32 - 2] * 2
    ),
    "has groups of 2048 threads": lambda d: _launch(d)["group"].__setitem__(0, 2048),
    "is '32', which is no integer": lambda d: d["memories"][0].update(bytes="32"),
    "is True, which is no integer": lambda d: d["memories"][0].update(bytes=True),
    "is 'float33', which is no dtype of torch": lambda d: d["memories"][0].update(dtype="float33"),
    "lacks 'memories'": lambda d: d.pop("memories"),
    "has 'more', which is unknown": lambda d: _launch(d).update(more=1),
    "binds a buffer twice": lambda d: _launch(d)["arguments"][1].update(index=0),
    "is 99, and there are": lambda d: _launch(d)["arguments"][0].update(memory=99),
    "is a memory or a value": lambda d: _launch(d)["arguments"][2].pop("value"),
    "which is no hexadecimal number": lambda d: _launch(d)["arguments"][2].update(value="0"),
    "lacks the contents": lambda d: _launch(d).update(source="0" * 64),
    "its contents have 32": lambda d: d["memories"][0].update(bytes=31),
    "bytes of memory, and there are": lambda d: d["memories"].append({"bytes": 2**47}),
    "which is no event": lambda d: d["events"].append({"run": {}}),
    "which is no kind of contents": lambda d: d["events"].append(
        {"write": {"memory": 0, "generator": {"kind": "x"}}}
    ),
    "has contents of kind integers, which float32 has not": lambda d: d["events"].append(
        {"write": {"memory": 0, "generator": {"kind": "integers", "low": 0, "high": 9}}}
    ),
    "has no function constant": lambda d: _launch(d).update(constants={"9": "00000000"}),
}


@pytest.mark.parametrize("message", CHANGES)
def test_what_is_wrong_is_said_in_a_sentence(files, tmp_path, message, capsys):
    document = json.loads(files["trace.json"])
    CHANGES[message](document)
    path = tmp_path / "b.trace"
    path.write_bytes(_packed(files, document))
    assert main([str(path)]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.startswith("metalops replay: ") and said.count("\n") == 1


def test_a_description_that_was_changed_is_noticed(files, tmp_path):
    """Whatever it says now: by its digest."""
    document = json.loads(files["trace.json"])
    _launch(document)["grid"][0] += 1
    path = tmp_path / "b.trace"
    path.write_bytes(_packed({**files, "trace.json": json.dumps(document).encode()}))
    with pytest.raises(trace.TraceError, match="not as it was written"):
        trace.load(path)


def test_an_archive_that_unpacks_to_more_than_it_says_is_not_unpacked(files, tmp_path, monkeypatch):
    monkeypatch.setattr(trace_archive, "LONGEST", 10_000)
    path = tmp_path / "b.trace"
    path.write_bytes(_packed({**files, "trace.json": b" " * 20_000}))
    with pytest.raises(trace.TraceError, match="has 20000 bytes"):
        trace.load(path)


def test_the_sizes_of_elements_are_those_of_torch():
    for name, size in schema.ITEM_BYTES.items():
        assert getattr(torch, name).itemsize == size
