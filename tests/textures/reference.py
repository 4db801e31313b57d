"""Textures in plain Python and float64, written from Metal's definitions and independent of the C++: pixel formats by the
bits that their names list, and sampling one point after the other."""

from __future__ import annotations

import functools
import itertools
import math
import re
import struct
from fractions import Fraction

import numpy as np

# ---- formats -------------------------------------------------------------------------------------


@functools.cache
def components(name: str) -> tuple[tuple[tuple[str, int], ...], str]:
    """Returns the components of a format, least significant first, with their bits, and their type."""
    if name.startswith("depth"):
        bits, kind = re.fullmatch(r"depth(\d+)(\w+)", name).groups()
        return (("r", int(bits)),), kind
    body, kind = re.fullmatch(r"(.*\d)(unorm|snorm|uint|sint|float)(?:_srgb)?", name).groups()
    found = []
    for letters, bits in re.findall(r"([a-z]+)(\d+)", body):
        found += [(letter, int(bits)) for letter in letters]
    return tuple(found), kind


def texel_bytes(name: str) -> int:
    return sum(bits for _, bits in components(name)[0]) // 8


def has_alpha(name: str) -> bool:
    return name != "rgb9e5float" and any(letter == "a" for letter, _ in components(name)[0])


def is_integer(name: str) -> bool:
    return components(name)[1] in ("uint", "sint")


def _float_value(code: int, bits: int) -> float:
    """Returns the value of a float of 10, 11, 16 or 32 bits."""
    if bits == 32:
        return struct.unpack("<f", struct.pack("<I", code))[0]
    if bits == 16:
        return struct.unpack("<e", struct.pack("<H", code))[0]
    mantissa_bits = bits - 5
    exponent, mantissa = code >> mantissa_bits, code & (1 << mantissa_bits) - 1
    if exponent == 31:
        return math.nan if mantissa else math.inf
    if exponent == 0:
        return mantissa * 2.0 ** (-14 - mantissa_bits)
    return (1 + mantissa / 2**mantissa_bits) * 2.0 ** (exponent - 15)


@functools.cache
def _finite_floats(bits: int) -> np.ndarray:
    return np.array([_float_value(code, bits) for code in range(31 << (bits - 5))])


def _float_code(value: float, bits: int) -> int:
    if bits == 32:
        return struct.unpack("<I", struct.pack("<f", value))[0]
    if bits == 16:
        with np.errstate(over="ignore"):
            return int(np.float32(value).astype(np.float16).view(np.uint16))
    if math.isnan(value):
        return (31 << (bits - 5)) + (1 << (bits - 6))
    if value == math.inf:
        return 31 << (bits - 5)
    floats = _finite_floats(bits)
    distance = np.abs(floats - min(max(value, 0.0), floats[-1]))
    nearest = np.flatnonzero(distance == distance.min())
    return int(min(nearest, key=lambda code: code & 1))  # of two the even one


def decode(name: str, code: int) -> list[float]:
    """Returns red, green, blue and alpha of a texel, which is an integer of its bytes, each rounded to float once."""
    if name == "rgb9e5float":
        scale = 2.0 ** ((code >> 27) - 24)
        return [(code >> (9 * i) & 511) * scale for i in range(3)] + [1.0]
    fields, kind = components(name)
    texel = dict.fromkeys("rgb", 0.0) | {"a": 1.0}
    for letter, bits in fields:
        field = code & (1 << bits) - 1
        code >>= bits
        signed = field - (1 << bits) if field >> (bits - 1) else field
        if kind == "unorm":
            value = Fraction(field, (1 << bits) - 1)
            if name.endswith("_srgb") and letter != "a":
                value = (
                    value / Fraction("12.92")
                    if value <= Fraction("0.04045")
                    else float((value + Fraction("0.055")) / Fraction("1.055")) ** 2.4
                )
        elif kind == "snorm":
            value = max(Fraction(signed, (1 << (bits - 1)) - 1), Fraction(-1))
        elif kind == "float":
            value = _float_value(field, bits)
        else:
            value = signed if kind == "sint" else field
        texel[letter] = value if kind in ("uint", "sint") else float(np.float32(float(value)))
    return [texel[letter] for letter in "rgba"]


def encode(name: str, texel: list[float]) -> int:
    """Returns the bits of a texel that is written."""
    if name == "rgb9e5float":
        colors = [min(max(c, 0.0), 65408.0) if c == c else 0.0 for c in texel[:3]]
        largest = max(colors)
        exponent = max(-16, math.floor(math.log2(largest))) + 16 if largest > 0 else 0
        if math.floor(largest / 2.0 ** (exponent - 24) + 0.5) == 512:
            exponent += 1
        mantissas = [math.floor(c / 2.0 ** (exponent - 24) + 0.5) for c in colors]
        return sum(m << (9 * i) for i, m in enumerate(mantissas)) | exponent << 27
    fields, kind = components(name)
    code = shift = 0
    for letter, bits in fields:
        value = texel["rgba".index(letter)]
        if kind in ("unorm", "snorm"):
            least = -1 if kind == "snorm" else 0
            largest = (1 << (bits - (kind == "snorm"))) - 1
            value = 0.0 if math.isnan(value) else min(max(value, least), 1.0)
            if name.endswith("_srgb") and letter != "a":
                value = 12.92 * value if value < 0.0031308 else 1.055 * value ** (1 / 2.4) - 0.055
            field = round(Fraction(value) * largest)  # halves to even
        elif kind == "float":
            field = _float_code(value, bits)
        else:
            span = (
                (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
                if kind == "sint"
                else (0, (1 << bits) - 1)
            )
            field = min(max(int(value), span[0]), span[1])
        code |= (field & (1 << bits) - 1) << shift
        shift += bits
    return code


def codes_of(array: np.ndarray, name: str) -> np.ndarray:
    """Returns the texels of an array, whose last axes hold one each, as integers."""
    size = texel_bytes(name)
    flat = np.ascontiguousarray(array).view(np.uint8).reshape(-1, size)
    return sum(flat[:, i].astype(object) << (8 * i) for i in range(size))


def decoded(array: np.ndarray, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Returns red, green, blue and alpha of the texels of an array, of shape (*shape, 4)."""
    texels = [decode(name, int(code)) for code in codes_of(array, name)]
    return np.array(texels, dtype=np.float64).reshape(*shape, 4)


# ---- sampling ------------------------------------------------------------------------------------

COMPARISONS = {
    "less": lambda a, b: a < b,
    "less_equal": lambda a, b: a <= b,
    "greater": lambda a, b: a > b,
    "greater_equal": lambda a, b: a >= b,
    "equal": lambda a, b: a == b,
    "not_equal": lambda a, b: a != b,
    "always": lambda a, b: True,
    "never": lambda a, b: False,
}
_BORDERS = {
    "transparent_black": (0, 0, 0, 0),
    "opaque_black": (0, 0, 0, 1),
    "opaque_white": (1, 1, 1, 1),
}
# By the major axis and its sign: the face, and which coordinates are s and t.
_FACES = {
    (0, 1): (0, (2, -1), (1, -1)),
    (0, -1): (1, (2, 1), (1, -1)),
    (1, 1): (2, (0, 1), (2, 1)),
    (1, -1): (3, (0, 1), (2, -1)),
    (2, 1): (4, (0, 1), (1, -1)),
    (2, -1): (5, (0, -1), (1, -1)),
}


def face_of(direction) -> tuple[int, float, float]:
    """Returns the face that a direction meets, and where, from -1 to 1."""
    axis = max((2, 1, 0), key=lambda a: abs(direction[a]))
    sign = 1 if direction[axis] >= 0 else -1
    face, s, t = _FACES[axis, sign]
    length = abs(direction[axis]) or 1.0
    return face, s[1] * direction[s[0]] / length, t[1] * direction[t[0]] / length


def _direction(face: int, s: float, t: float) -> list[float]:
    for (axis, sign), (number, of_s, of_t) in _FACES.items():
        if number == face:
            direction = [0.0, 0.0, 0.0]
            direction[axis] = sign
            direction[of_s[0]] = of_s[1] * s
            direction[of_t[0]] = of_t[1] * t
            return direction
    raise ValueError(face)


class Reference:
    """A texture: levels of texels, each of shape (slices, height, width, 4), where slices are array elements, faces or
    planes of depth; and the name of its format, for the border."""

    def __init__(self, kind: str, format: str, levels: list[np.ndarray]):
        self.kind, self.format, self.levels = kind, format, levels
        self.is_cube = kind.startswith("cube")
        self.axes = {"1d": 1, "1d_array": 1, "3d": 3}.get(kind, 2)
        self.elements = 1 if kind == "3d" else len(levels[0]) // (6 if self.is_cube else 1)

    def _sizes(self, level: int) -> list[int]:
        slices, height, width, _ = self.levels[level].shape
        return [width, height, slices][: self.axes]

    def _border(self, mode: str, sampler: dict):
        color = _BORDERS[
            "transparent_black" if mode == "clamp_to_zero" else sampler["border_color"]
        ]
        present = (
            {letter for letter, _ in components(self.format)[0]}
            if self.format != "rgb9e5float"
            else set("rgb")
        )
        default = (0, 0, 0, 1)
        return np.array(
            [
                c if letter in present else d
                for letter, c, d in zip("rgba", color, default, strict=True)
            ],
            float,
        )

    def _texel(self, level: int, first: int, face: int, index: list[int], sampler: dict):
        texels = self.levels[level]
        sizes = self._sizes(level)
        if self.is_cube:
            return self._cube_texel(texels, first, face, index, sizes[0])
        place = []
        for i, size, mode in zip(index, sizes, sampler["address"], strict=False):
            if mode in ("clamp_to_zero", "clamp_to_border"):
                if not 0 <= i < size:
                    return self._border(mode, sampler)
            elif mode == "repeat":
                i %= size
            elif mode == "mirrored_repeat":
                i = (list(range(size)) + list(range(size))[::-1])[i % (2 * size)]
            elif mode == "mirror_clamp_to_edge":
                i = min(i if i >= 0 else -1 - i, size - 1)
            else:
                i = min(max(i, 0), size - 1)
            place.append(i)
        place += [0] * (3 - len(place))
        return texels[first + place[2], place[1], place[0]]

    def _cube_texel(self, texels, first: int, face: int, index: list[int], size: int):
        outside = [not 0 <= i < size for i in index]
        if all(outside):
            clamped = [min(max(i, 0), size - 1) for i in index]
            one, other = [index[0], clamped[1]], [clamped[0], index[1]]
            return (
                sum(self._cube_texel(texels, first, face, i, size) for i in (clamped, one, other))
                / 3
            )
        if any(outside):
            s, t = ((2 * i + 1) / size - 1 for i in index)
            face, s, t = face_of(_direction(face, s, t))
            index = [min(max(math.floor((c + 1) / 2 * size), 0), size - 1) for c in (s, t)]
        return texels[first + face, index[1], index[0]]

    def _places(self, level: int, at, sampler: dict) -> tuple[int, list[float]]:
        """Returns the face, and the coordinates in texels."""
        sizes = self._sizes(level)
        if self.is_cube:
            face, s, t = face_of(at)
            return face, [(c + 1) / 2 * sizes[0] for c in (s, t)]
        if sampler["coord"] == "pixel":
            return 0, list(at[: self.axes])
        return 0, [c * size for c, size in zip(at, sizes, strict=False)]

    def _first(self, element: int) -> int:
        return min(element, self.elements - 1) * (6 if self.is_cube else 1)

    def _on_level(self, level: int, linear: bool, at, element, offset, sampler, compare):
        face, places = self._places(level, at, sampler)
        first = self._first(element)
        offset = [*offset, 0, 0, 0]

        def texel(index):
            value = self._texel(level, first, face, index, sampler)
            if compare is not None:
                passes = COMPARISONS.get(sampler["compare_func"], COMPARISONS["never"])
                value = np.array([float(passes(compare, value[0])), 0, 0, 0])
            return value

        if not linear:
            index = [math.floor(p) for p in places]
            if self.is_cube:
                index = [min(i, self._sizes(level)[0] - 1) for i in index]
            return texel([i + o for i, o in zip(index, offset, strict=False)])
        low = [math.floor(p - 0.5) for p in places]
        part = [p - 0.5 - i for p, i in zip(places, low, strict=True)]
        total = np.zeros(4)
        for corner in itertools.product((0, 1), repeat=len(places)):
            weight = math.prod(p if c else 1 - p for p, c in zip(part, corner, strict=True))
            if weight:
                index = [i + c + o for i, c, o in zip(low, corner, offset, strict=False)]
                total += weight * texel(index)
        return total

    def sample(
        self, sampler: dict, at, element=0, lod=0.0, offset=(0, 0, 0), compare=None, least=0.0
    ):
        lod = max(min(max(lod, sampler["lod_clamp"][0]), sampler["lod_clamp"][1]), least)
        linear = sampler["mag_filter" if lod <= 0 else "min_filter"] == "linear" and not is_integer(
            self.format
        )
        lod = min(max(lod, 0.0), len(self.levels) - 1)
        rest = (linear, at, element, offset, sampler, compare)
        if sampler["mip_filter"] == "none":
            return self._on_level(0, *rest)
        if sampler["mip_filter"] == "nearest" or is_integer(self.format):
            return self._on_level(math.floor(lod + 0.5), *rest)
        finer = math.floor(lod)
        part = lod - finer
        value = (1 - part) * self._on_level(finer, *rest)
        return value + part * self._on_level(finer + 1, *rest) if part else value

    def gather(self, sampler: dict, at, element=0, component=0, offset=(0, 0, 0), compare=None):
        face, places = self._places(0, at, sampler)
        x, y = (math.floor(p - 0.5) + o for p, o in zip(places, offset, strict=False))
        found = []
        for i, j in ((x, y + 1), (x + 1, y + 1), (x + 1, y), (x, y)):
            value = self._texel(0, self._first(element), face, [i, j], sampler)
            if compare is not None:
                found.append(float(COMPARISONS[sampler["compare_func"]](compare, value[0])))
            else:
                found.append(value[component])
        return np.array(found)

    def level_of(self, gradients, at=None) -> float:
        """Returns the level of detail of derivatives of the normalised coordinates."""
        sizes = self._sizes(0)
        if not self.is_cube:
            lengths = [
                math.sqrt(sum((d * size) ** 2 for d, size in zip(g, sizes, strict=False)))
                for g in gradients
            ]
        else:
            face, _, _ = face_of(at)
            lengths = []
            for g in gradients:  # a numeric derivative of the place on the face
                h = 1e-6
                ends = []
                for sign in (1, -1):
                    moved = [a + sign * h * d for a, d in zip(at, g, strict=True)]
                    axis, signed, of_s, of_t = next(
                        (a, i, s, t) for (a, i), (f, s, t) in _FACES.items() if f == face
                    )
                    length = moved[axis] * signed
                    ends.append([c[1] * moved[c[0]] / length for c in (of_s, of_t)])
                lengths.append(
                    math.hypot(
                        *((p - m) / (2 * h) * sizes[0] / 2 for p, m in zip(*ends, strict=True))
                    )
                )
        longest = max(lengths)
        return math.log2(longest) if longest else -math.inf
