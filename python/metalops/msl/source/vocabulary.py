"""The words of the Metal language: attributes and keywords. Listed once, for the front end, the checker and kernels
written in Python."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ThreadAttribute:
    """A value that a kernel can ask for about the thread that runs it.

    variation: how the value varies over a launch (Variation of abi.h). is_position: true for a position or a size,
    which may have up to three components; false for an index or a count, a scalar.
    """

    variation: str
    is_position: bool

    @property
    def type(self) -> str:
        """The widest type: "uint3" or "uint"."""
        return "uint3" if self.is_position else "uint"

    @property
    def differs_in_group(self) -> bool:
        """True if the value varies among the threads of one threadgroup."""
        return self.variation in ("kAffineLane", "kPerLane")


def _position(variation: str) -> ThreadAttribute:
    return ThreadAttribute(variation, is_position=True)


def _number(variation: str) -> ThreadAttribute:
    return ThreadAttribute(variation, is_position=False)


# All attributes of this kind (Metal Shading Language Specification, section 5.2.3.6).
THREAD_ATTRIBUTES = {
    "dispatch_quadgroups_per_threadgroup": _number("kUniformGrid"),
    "dispatch_simdgroups_per_threadgroup": _number("kUniformGrid"),
    "dispatch_threads_per_threadgroup": _position("kUniformGrid"),
    "grid_origin": _position("kUniformGrid"),
    "grid_size": _position("kUniformGrid"),
    "quadgroup_index_in_threadgroup": _number("kPerLane"),
    "quadgroups_per_threadgroup": _number("kUniformGroup"),
    "simdgroup_index_in_threadgroup": _number("kPerLane"),
    "simdgroups_per_threadgroup": _number("kUniformGroup"),
    "thread_execution_width": _number("kUniformGrid"),
    "thread_index_in_quadgroup": _number("kPerLane"),
    "thread_index_in_simdgroup": _number("kPerLane"),
    "thread_index_in_threadgroup": _number("kAffineLane"),
    "thread_position_in_grid": _position("kAffineLane"),
    "thread_position_in_threadgroup": _position("kAffineLane"),
    "threadgroup_position_in_grid": _position("kUniformGroup"),
    "threadgroups_per_grid": _position("kUniformGrid"),
    "threads_per_grid": _position("kUniformGrid"),
    "threads_per_simdgroup": _number("kUniformGrid"),
    "threads_per_threadgroup": _position("kUniformGroup"),
}

# Attributes of compute kernels and their parameters.
_COMPUTE = """
    buffer texture sampler threadgroup id function_constant host_name kernel visible stitchable
    max_total_threads_per_threadgroup required_threads_per_threadgroup user_annotation
    imageblock_data implicit_imageblock alias_implicit_imageblock alias_implicit_imageblock_color
    raster_order_group
"""
# Attributes of vertex, fragment, mesh and tile functions and of their inputs and outputs.
_GRAPHICS = """
    vertex fragment mesh object patch early_fragment_tests stage_in attribute user payload
    vertex_id instance_id base_vertex base_instance amplification_id amplification_count
    patch_id position_in_patch position point_size point_coord clip_distance invariant shared
    render_target_array_index viewport_array_index color depth stencil index front_facing
    primitive_id primitive_culled barycentric_coord sample_id sample_mask
    flat center_perspective center_no_perspective centroid_perspective centroid_no_perspective
    sample_perspective sample_no_perspective pixel_position_in_tile pixels_per_tile tile_index
    max_total_threadgroups_per_mesh_grid
"""
# Attributes of intersection functions.
_RAY_TRACING = """
    intersection origin direction min_distance max_distance distance accept_intersection
    continue_search ray_data user_instance_id geometry_id primitive_data instance_index
    world_space_origin world_space_direction object_to_world_transform world_to_object_transform
    geometry_intersection_function_table_offset instance_intersection_function_table_offset
    opaque time motion_start_time motion_end_time key_frame_count curve_parameter
    user_data_buffer
"""
# Attributes of C++. An attribute with a namespace before it, such as clang::noinline, is left to the compiler.
_CPP = "carries_dependency deprecated fallthrough likely maybe_unused nodiscard noreturn unlikely"

ATTRIBUTES = frozenset(
    [*THREAD_ATTRIBUTES, *f"{_COMPUTE} {_GRAPHICS} {_RAY_TRACING} {_CPP}".split()]
)

# Reserved words of C++17 and Metal (sections 1.4 and 4), which cannot be names.
KEYWORDS = frozenset(
    """
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char char16_t char32_t
    class compl const const_cast constexpr continue decltype default delete do double dynamic_cast
    else enum explicit export extern false float for friend goto if inline int long mutable
    namespace new noexcept not not_eq nullptr operator or or_eq private protected public register
    reinterpret_cast return short signed sizeof static static_assert static_cast struct switch
    template this thread_local throw true try typedef typeid typename union unsigned using virtual
    void volatile wchar_t while xor xor_eq
    bfloat half constant device fragment kernel object_data ray_data thread threadgroup
    threadgroup_imageblock vertex
    """.split()
)

INTEGERS = frozenset(
    """
    bool char uchar short ushort int uint long ulong size_t ptrdiff_t
    int8_t int16_t int32_t int64_t uint8_t uint16_t uint32_t uint64_t
    """.split()
)

# Names of Metal's own that a user's name of the same spelling would hide in generated text.
HIDDEN_BY_NAMES = frozenset(
    """
    metal sampler ptrdiff_t size_t uchar uint ulong ushort
    int8_t int16_t int32_t int64_t uint8_t uint16_t uint32_t uint64_t
    """.split()
)

_SIMD_OPERATIONS = """
    sum product max min and or xor any all ballot is_first active_threads_mask broadcast
    broadcast_first shuffle shuffle_up shuffle_down shuffle_xor
    shuffle_rotate_up shuffle_rotate_down
    shuffle_and_fill_up shuffle_and_fill_down prefix_exclusive_sum prefix_inclusive_sum
    prefix_exclusive_product prefix_inclusive_product
""".split()

BARRIER = "threadgroup_barrier"
# The attribute of a parameter that is uniform in a simdgroup, and not in a threadgroup.
SIMDGROUP_NUMBER = "simdgroup_index_in_threadgroup"

# Functions that synchronise or communicate with other threads.
SYNCHRONISING = frozenset(
    [
        *(f"{group}_{name}" for group in ("simd", "quad") for name in _SIMD_OPERATIONS),
        BARRIER,
        "simdgroup_barrier",
        "simdgroup_multiply",
        "simdgroup_multiply_accumulate",
    ]
)
# Functions of Apple's compiler that return the current thread's index in any function.
THREAD_NUMBERS = frozenset(
    f"__metal_get_{name}"
    for name in (
        "quadgroup_index_in_threadgroup",
        "simdgroup_index_in_threadgroup",
        "thread_index_in_quadgroup",
        "thread_index_in_simdgroup",
        "thread_index_in_threadgroup",
    )
)
# Operations on tensors that synchronise threads, or that depend on the current thread: members of the library's
# classes, with the least and the largest number of arguments, and functions. They take no Site argument.
TENSOR_METHODS = {
    "run": (3, 3),
    "get_destination_cooperative_tensor": (0, 0),
    "get_left_input_cooperative_tensor": (0, 1),
    "get_right_input_cooperative_tensor": (0, 1),
    "get_row_reduction_destination_cooperative_tensor": (0, 0),
    "get_column_reduction_destination_cooperative_tensor": (0, 0),
}
TENSOR_FUNCTIONS = frozenset(["reduce_rows", "reduce_columns"])
_SIMDGROUP_NAMES = (
    "simdgroup_",
    "make_filled_simdgroup_",
    "make_diagonal_simdgroup_",
    "__metal_simd",
    "__metal_quad",
)


def is_simdgroup_name(name: str) -> bool:
    """Returns true if a name, unless a program declares it, is of a function or type that involves other threads."""
    return name in SYNCHRONISING or name in THREAD_NUMBERS or name.startswith(_SIMDGROUP_NAMES)


# Functions of metal_stdlib that take numbers, apart from those of simdgroups, quadgroups and atomic objects.
_OF_NUMBERS = frozenset(
    """
    abs absdiff acos acosh addsat all any asin asinh atan atan2 atanh ceil clamp clz copysign cos cosh
    cospi cross ctz determinant distance distance_squared divide dot erf erfc exp exp10 exp2
    extract_bits fabs faceforward fdim floor fma fmax fmax3 fmedian3 fmin fmin3 fmod fract frexp
    hadd ilogb insert_bits isfinite isinf isnan isnormal isordered isunordered ldexp length
    length_squared lgamma log log10 log2 mad24 madhi madsat max max3 median3 min min3 mix modf mul24
    mulhi nan nextafter normalize pow popcount powr reflect refract reverse_bits rhadd rint rotate
    round rsqrt saturate select sign signbit sin sincos sinh sinpi smoothstep sqrt step subsat tan
    tanh tanpi tgamma transpose trunc
    """.split()
)


def is_library_function(name: str) -> bool:
    """Returns true if metal_stdlib has a function of this name that takes numbers."""
    return name in _OF_NUMBERS or name.startswith(
        ("simd_", "quad_", "atomic_", "simdgroup_", "pack_", "unpack_", "make_", "as_type")
    )


# Functions of metal_stdlib that take pointers or references to an address space.
LIBRARY_WITH_SPACES = frozenset(
    """
    atomic_compare_exchange_weak_explicit atomic_exchange_explicit atomic_fetch_add_explicit
    atomic_fetch_and_explicit atomic_fetch_max_explicit atomic_fetch_min_explicit
    atomic_fetch_or_explicit atomic_fetch_sub_explicit atomic_fetch_xor_explicit
    atomic_load_explicit atomic_max_explicit atomic_min_explicit atomic_store_explicit
    frexp modf simdgroup_load simdgroup_store sincos
    """.split()
)


# Functions of metal_stdlib that only fragment functions, and what these call, may call.
FRAGMENT_FUNCTIONS = {
    "discard_fragment",
    "dfdx",
    "dfdy",
    "fwidth",
    "get_num_samples",
    "get_sample_position",
}
