"""The pixel formats that the Objective-C API has are those of metalops.texture, and their numbers are those of Apple's header."""

import re
import subprocess
import sys
from pathlib import Path

import metalops
import pytest
from metalops._textures.formats import FORMATS
from metalops.msl.source import compiler

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(sys.platform == "darwin", reason="a Mac has the API itself"),
]

ROOT = Path(__file__).parents[2]
PACKAGE = Path(metalops.__file__).parent
PROGRAM = """
#include <csrc/host/objc/metal/pixel_formats.h>
#include <cstdio>
int main() {
  for (unsigned value = 0; value < 1000; ++value) {
    const auto one = metalops::objc::find_pixel_format(value);
    if (!one) continue;
    const auto& format = one->format;
    std::printf("%u %d %d %d %d %u\\n", value, int(format.encoding), format.channels, int(format.order), format.bytes,
                one->usage);
  }
}
"""


def test_both_tables_have_the_same_formats(tmp_path):
    program = tmp_path / "formats"
    source = program.with_suffix(".cpp")
    source.write_text(PROGRAM)
    command = [
        *compiler.find().command,
        "-std=c++20",
        f"-I{ROOT}",
        f"-I{PACKAGE / 'msl' / 'include'}",
    ]
    subprocess.run([*command, str(source), "-o", str(program)], check=True)
    printed = subprocess.run([str(program)], capture_output=True, text=True, check=True).stdout
    found = sorted(tuple(map(int, line.split())) for line in printed.splitlines())
    expected = sorted(
        (one.pixel_format, one.encoding, one.channels, one.order, one.bytes, one.usage)
        for one in FORMATS.values()
    )
    assert found == expected


def test_names_and_numbers_are_those_of_the_header():
    header = (PACKAGE / "include" / "apple" / "Metal" / "MTLPixelFormat.h").read_text()
    named = {
        name.lower(): int(value)
        for name, value in re.findall(r"MTLPixelFormat(\w+) = (\d+)", header)
    }
    assert named.pop("invalid") == 0
    assert named == {name: one.pixel_format for name, one in FORMATS.items()}
