"""How sanitized launches run: the order of threads, what a finding says, and that the device goes on
afterwards (see run_engine.py). One process for each sanitizer runs all of it.
"""

import json
import os
import re
import subprocess
import sys

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module", params=["address", "thread"])
def mode(request):
    return request.param


def run_engine(mode):
    """What run_engine.py prints."""
    process = subprocess.run(
        [sys.executable, os.path.join(HERE, "run_engine.py")],
        env={**os.environ, "METALOPS_SANITIZE": mode, "METALOPS_SANITIZE_SEED": "7"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    found = {}
    for line in process.stdout.splitlines():
        found.update(json.loads(line))
    return found


@pytest.fixture(scope="module")
def results(once, mode):
    return once(f"engine_{mode}", lambda: run_engine(mode))


def groups_in_order(places):
    """The groups of 32 threads, in the order in which they ran."""
    return sorted(range(3), key=lambda group: min(places[32 * group : 32 * group + 32]))


def test_the_order_of_threads_depends_on_the_seed_alone(results):
    orders = results["order_of_threads"]
    assert orders["1"] == orders["1 again"]
    assert orders["1"][0] != orders["1"][1], "two launches"
    assert orders["1"][0] != orders["2"][0], "two seeds"
    for places in (*orders["1"], *orders["2"]):
        assert sorted(places) == list(range(96))
        for group in range(3):
            of_group = places[32 * group : 32 * group + 32]
            assert max(of_group) - min(of_group) == 31, "threadgroups run one after the other"
            assert of_group != sorted(of_group)


def test_threadgroups_are_shuffled_too(results):
    orders = results["order_of_threads"]
    shuffled = [groups_in_order(places) for key in ("1", "2") for places in orders[key]]
    assert any(order != [0, 1, 2] for order in shuffled)


def test_seed_0_keeps_the_order_of_positions(results):
    assert results["order_of_threads"]["0"] == [list(range(96))]


def test_a_finding_names_threads_memory_and_seed(results, mode):
    kinds = [text.split(":")[0] for text in results["report"]]
    kind = "data-race" if mode == "thread" else "uninitialized-threadgroup-read"
    text = results["report"][kinds.index(kind)]
    assert "in kernel 'reverse'" in text
    assert "threadgroup memory" in text
    assert text.endswith("(threads in the order of METALOPS_SANITIZE_SEED=7)")
    threads = re.findall(
        r"thread \((\d+), (\d+), 0\) of the grid, threadgroup \((\d), (\d), 0\)", text
    )
    assert len(threads) == (2 if mode == "thread" else 1)
    for x, y, group_x, group_y in (map(int, thread) for thread in threads):
        assert (x // 8, y // 8) == (group_x, group_y)
    if mode == "thread":
        (x0, y0), (x1, y1) = (map(int, thread[:2]) for thread in threads)
        assert (x0 % 8 + x1 % 8, y0 % 8 + y1 % 8) == (7, 7), "the two use one element"
        assert "a write of 4 bytes" in text
        assert "a read of 4 bytes" in text
        assert "mem_flags::mem_threadgroup" in text


def test_the_device_works_after_a_finding(results):
    first, right, again, once_more, right_again = results["device_after_a_finding"]
    assert right == right_again == 0
    assert min(first, again, once_more) >= 1


def test_launches_are_captured(results):
    captured = results["captured"]
    assert captured["kernels"] == ["reverse", "reverse"]
    right, wrong = captured["reported"]
    assert right == 0
    assert wrong >= 1


def test_python_threads_get_the_findings_of_their_own_launches(results):
    for number, counts in results["several_python_threads"].items():
        assert all((count == 0) == (int(number) % 2 == 1) for count in counts)


def test_a_single_thread(results):
    assert results["one_thread"] == 42


def test_a_race_through_an_argument_buffer(results, mode):
    found = results["argument_buffer"]
    if mode == "thread":
        assert found[0].startswith("data-race")
        assert "bound to no buffer" in found[0]
    else:
        assert found == []


def test_a_race_is_found_after_a_launch_of_many_threads(results, mode):
    assert len(results["after_a_thousand_threads"]) == (1 if mode == "thread" else 0)


def test_atomics_of_16_bits_may_touch_the_rest_of_their_word_only(results, mode):
    assert results["half_atomics"] == [0, 0, 0, 0, 32]
    if mode == "address":
        assert "4 bytes" in results["half_atomics_outside"][0]


def test_all_of_many_threadgroups_run(results):
    assert results["large_launch"]


def test_threads_of_a_threadgroup_can_wait_for_each_other(results):
    assert results["waiting_within_a_threadgroup"] == "done"


def test_waiting_for_another_threadgroup_needs_an_order(results):
    waiting = results["waiting_for_another_threadgroup"]
    assert "waits for what another threadgroup writes" in waiting["shuffled"]
    assert waiting["in order"] == "done"


def test_a_stack_overflow_is_an_error_of_the_launch(results):
    message, after = results["stack_overflow"]
    assert "KiB of stack" in message
    assert after == 0
