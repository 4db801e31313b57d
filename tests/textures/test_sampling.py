"""Samples, gathers and comparisons of every kind of texture in every mode, against the reference in float64."""

import itertools
import random

import numpy as np
import pytest
import torch
from metalops._textures.formats import FORMATS

from .cases import ADDRESSES, random_places, random_texture, sampler_of
from .kernels import component_of, depth_source, gradient_source, launch, sampling_source, shader

pytestmark = pytest.mark.full  # compiles several sources

KINDS = ("1d", "1d_array", "2d", "2d_array", "3d", "cube", "cube_array")
GATHERED = ("2d", "2d_array", "cube", "cube_array")
FILTERS = ("nearest", "linear")
FORMATS_OF_COLORS = [name for name, f in FORMATS.items() if not f.is_depth]
COMPARISONS = (
    "less", "less_equal", "greater", "greater_equal", "equal", "not_equal", "always", "never"
)  # fmt: skip
COUNT = 40


def check(got, wanted):
    """Compares the components that kernels gave. Coordinates in texels have an error of some units of float's last place,
    which moves the weights of a linear filter."""
    wanted = torch.from_numpy(np.array(wanted, dtype=np.float64))
    size = wanted[wanted.isfinite()].abs().max().item() if wanted.isfinite().any() else 1.0
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=3e-5 * size, equal_nan=True)


def check_samples(kind, format, options, levels=1, lods=(0.0,), offset=(0, 0, 0), component=None):
    seed = sum(map(ord, f"{kind}{format}{options}{offset}"))
    texture, reference = random_texture(kind, format, levels=levels, seed=seed)
    sampler, modes = sampler_of(**options)
    places = random_places(kind, COUNT, seed)
    if modes["coord"] == "pixel":
        places = [[c * 6 for c in place] for place in places]
    elements = [i % 5 for i in range(COUNT)]
    lods = [lods[i % len(lods)] for i in range(COUNT)]
    component = component or component_of(format)
    kernel = shader(sampling_source, kind, component).sample
    got = launch(kernel, texture, sampler, places, elements, lods, offset, component)
    wanted = [
        reference.sample(modes, place, element, lod, offset)
        for place, element, lod in zip(places, elements, lods, strict=True)
    ]
    check(got, wanted)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("filter", FILTERS)
def test_address_modes(kind, filter):
    for address in (*ADDRESSES, "mirror_clamp_to_edge"):
        options = {"filter": filter, "address": address, "border_color": "opaque_white"}
        check_samples(kind, "rgba32float", options)


def test_each_axis_has_an_address_mode_of_its_own():
    generator = random.Random(0)
    for _ in range(12):
        address = tuple(generator.choice(ADDRESSES) for _ in range(3))
        options = {"filter": "linear", "address": address, "border_color": "opaque_black"}
        check_samples("3d", "rg16float", options)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("format", FORMATS_OF_COLORS)
def test_formats(format):
    for filter, address in itertools.product(
        FILTERS, ("repeat", "clamp_to_zero", "clamp_to_border")
    ):
        for border in ("transparent_black", "opaque_black", "opaque_white"):
            check_samples(
                "2d", format, {"filter": filter, "address": address, "border_color": border}
            )


@pytest.mark.parametrize("kind", ("1d", "1d_array", "2d", "2d_array", "3d"))
def test_coordinates_in_texels(kind):
    for filter, address in itertools.product(FILTERS, ADDRESSES[:3]):
        options = {
            "filter": filter,
            "address": address,
            "coord": "pixel",
            "border_color": "opaque_white",
        }
        check_samples(kind, "r32float", options)


@pytest.mark.parametrize("kind", ("2d", "2d_array", "3d"))
def test_offsets(kind):
    for filter, address in itertools.product(FILTERS, ADDRESSES):
        for offset in ((1, 0, 0), (-8, 7, 3), (0, -1, -2)):
            check_samples(kind, "rgba8unorm", {"filter": filter, "address": address}, offset=offset)


@pytest.mark.parametrize("kind", ("2d", "2d_array", "3d", "cube", "cube_array"))
@pytest.mark.parametrize("mip_filter", ("none", "nearest", "linear"))
def test_levels(kind, mip_filter):
    lods = (0.0, 0.25, 1.0, 1.75, -3.0, 2.0, 9.0, 0.75)
    for mag, smaller in itertools.product(FILTERS, FILTERS):
        for clamp in ((0.0, float("inf")), (0.5, 1.25), (2.0, 2.0)):
            options = {
                "mag_filter": mag,
                "min_filter": smaller,
                "mip_filter": mip_filter,
                "lod_clamp": clamp,
            }
            check_samples(kind, "rgba32float", options, levels=3, lods=lods)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ("2d", "2d_array", "3d", "cube", "cube_array"))
def test_derivatives_choose_the_level(kind):
    texture, reference = random_texture(kind, "rgba32float", size=8, levels=4, seed=3)
    sampler, modes = sampler_of(filter="linear", mip_filter="linear", address="repeat")
    places = random_places(kind, COUNT, 3)
    generator = random.Random(3)
    gradients = [
        [generator.uniform(-1, 1) * 2.0 ** -generator.randint(0, 5) for _ in range(6)]
        for _ in places
    ]
    gradients[0] = [0.0] * 6
    elements = [i % 3 for i in range(COUNT)]
    got = launch(
        shader(gradient_source, kind).sample, texture, sampler, places, elements, gradients
    )
    lods = [reference.level_of((g[:3], g[3:]), p) for g, p in zip(gradients, places, strict=True)]
    wanted = [
        reference.sample(modes, place, element, lod)
        for place, element, lod in zip(places, elements, lods, strict=True)
    ]
    check(got, wanted)
    lods = [i / 10 for i in range(COUNT)]
    got = launch(shader(gradient_source, kind).clamped, texture, sampler, places, elements, lods)
    wanted = [
        reference.sample(modes, place, element, lod, least=1.5)
        for place, element, lod in zip(places, elements, lods, strict=True)
    ]
    check(got, wanted)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", GATHERED)
@pytest.mark.parametrize(
    "format", ("rgba32float", "rg8unorm", "rgba16sint", "a8unorm", "rgb10a2uint")
)
def test_gather(kind, format):
    texture, reference = random_texture(kind, format, seed=5)
    places = random_places(kind, COUNT, 5)
    elements = [i % 4 for i in range(COUNT)]
    offset = (2, -1, 0) if kind.startswith("2d") else (0, 0, 0)
    component = component_of(format)
    kernels = shader(sampling_source, kind, component)
    for address, number in itertools.product(ADDRESSES, range(4)):
        sampler, modes = sampler_of(address=address, border_color="opaque_white")
        kernel = getattr(kernels, f"gather_{number}")
        got = launch(kernel, texture, sampler, places, elements, [0.0] * COUNT, offset, component)
        wanted = [
            reference.gather(modes, place, element, number, offset)
            for place, element in zip(places, elements, strict=True)
        ]
        if kind.startswith(
            "cube"
        ):  # at corners a float texture has the mean of three, others the nearest
            kept = [
                i
                for i, w in enumerate(wanted)
                if component == "float" or all(float(c).is_integer() for c in w)
            ]
            got, wanted = got[kept], [wanted[i] for i in kept]
        check(got, wanted)


@pytest.mark.parametrize("kind", GATHERED)
@pytest.mark.parametrize("format", ("depth32float", "depth16unorm"))
def test_comparisons(kind, format):
    texture, reference = random_texture(kind, format, seed=6)
    texels = [float(t) for t in reference.levels[0][..., 0].ravel()]
    places = random_places(kind, COUNT, 6)
    elements = [i % 3 for i in range(COUNT)]
    references = [texels[i % len(texels)] if i % 2 else i / COUNT * 1.4 - 0.2 for i in range(COUNT)]
    offset = (0, 1, 0) if kind.startswith("2d") else (0, 0, 0)
    kernels = shader(depth_source, kind)

    def reference_of(value):
        return min(max(value, 0.0), 1.0) if format == "depth16unorm" else value

    for filter, function in itertools.product(FILTERS, COMPARISONS):
        sampler, modes = sampler_of(filter=filter, compare_func=function, address="clamp_to_zero")
        got = launch(kernels.sample_compare, texture, sampler, places, elements, references, offset)
        wanted = [
            [
                reference.sample(
                    modes, p, e, offset=offset, compare=reference_of(float(np.float32(r)))
                )[0]
            ]
            * 4
            for p, e, r in zip(places, elements, references, strict=True)
        ]
        check(got, wanted)
        got = launch(kernels.gather_compare, texture, sampler, places, elements, references, offset)
        gathered = [
            reference.gather(modes, p, e, offset=offset, compare=reference_of(float(np.float32(r))))
            for p, e, r in zip(places, elements, references, strict=True)
        ]
        check(got, gathered)
    sampler, modes = sampler_of(filter="linear")
    got = launch(kernels.sample, texture, sampler, places, elements, references, offset)
    wanted = [
        [reference.sample(modes, p, e, offset=offset)[0]] * 4
        for p, e in zip(places, elements, strict=True)
    ]
    check(got, wanted)


@pytest.mark.parametrize("component", ("half", "short", "ushort"))
def test_components_of_16_bits(component):
    format = {"half": "rgba16float", "short": "rgba16sint", "ushort": "rgba16uint"}[component]
    texture, reference = random_texture("2d", format, seed=8)
    sampler, modes = sampler_of(address="repeat")
    places = random_places("2d", COUNT, 8)
    kernel = shader(sampling_source, "2d", component).sample
    got = launch(kernel, texture, sampler, places, [0] * COUNT, [0.0] * COUNT, component=component)
    check(got, [reference.sample(modes, place) for place in places])
