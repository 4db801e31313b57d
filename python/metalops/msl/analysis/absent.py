"""Features of Metal that this device lacks: ray tracing, command buffers, those of render pipelines alone.

A kernel that needs any of it is left out of the library, with the reason, and so are the functions, classes, aliases
and variables that need it, which other kernels cannot use either. They are blanked out of the text, so that nothing
later sees them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from ..source.parse import Source, blanked
from .calls import CallGraph
from .program import ClassScope, Function, Instance, Program

# Names of Metal's library, by what a device needs for them (Metal Shading Language Specification, sections 2 and 6).
_FEATURES = {
    "ray tracing": """
        ray intersector intersection_query intersection_params intersection_result intersection_result_ref
        intersection_type intersection_tags intersection_function_table intersection_function_buffer_arguments
        intersection_function_data acceleration_structure primitive_acceleration_structure
        instance_acceleration_structure user_acceleration_structure instancing max_levels triangle_data curve_data
        world_space_data instance_motion primitive_motion extended_limits user_data bounding_box_data
        component_transform motion_transform forced_opacity geometry_type geometry_cull_mode triangle_cull_mode
        triangle_front_facing_winding opacity_cull_mode curve_type curve_basis curve_end_caps
        is_null_intersection_function_table is_null_primitive_acceleration_structure
        is_null_instance_acceleration_structure
    """,
    "indirect command buffers": """
        command_buffer render_command compute_command copy_command render_pipeline_state compute_pipeline_state
        depth_stencil_state primitive_type is_null_command_buffer
    """,
    "imageblocks": """
        imageblock imageblock_data imageblock_layout_implicit imageblock_layout_explicit imageblock_data_rate
        implicit_imageblock
        r8unorm r8snorm r16unorm r16snorm rg8unorm rg8snorm rg16unorm rg16snorm rgba8unorm rgba8snorm srgba8unorm
        rgba16unorm rgba16snorm rgb10a2 rg11b10f rgb9e5
    """,
    "mesh shading": "mesh mesh_grid_properties topology",
    "tessellation": "patch_control_point",
    "fragment functions": """
        interpolant interpolation dfdx dfdy fwidth discard_fragment get_num_samples get_sample_position
    """,
    "rasterization rate maps": "rasterization_rate_map_data rasterization_rate_map_decoder",
}
_FEATURE_OF = {name: feature for feature, names in _FEATURES.items() for name in names.split()}
# On GPUs addresses of functions would have to be asked for.
_ON_GPUS = {
    **_FEATURE_OF,
    "visible_function_table": "tables of functions",
    "is_null_visible_function_table": "tables of functions",
}
_SPACES = {
    "object_data": "mesh shading",
    "ray_data": "ray tracing",
    "threadgroup_imageblock": "imageblocks",
}
_NAMESPACES = {"metal", "raytracing"}
_NAMES = "[(identifier) (type_identifier) (namespace_identifier)] @n"
_TYPE_PARAMETERS = """
[(type_parameter_declaration (type_identifier) @n)
 (optional_type_parameter_declaration name: (type_identifier) @n)
 (namespace_definition name: (namespace_identifier) @n)
 (enum_specifier name: (type_identifier) @n)]
"""
_ROOMS = {"translation_unit", "declaration_list"}


@dataclass(frozen=True)
class _Need:
    """A use of an absent feature."""

    feature: str
    name: str
    item: object  # the declaration that names it

    def reason(self, item: object) -> str:
        """Returns why `item` cannot be used."""
        where = f" in {self.item.name}" if isinstance(self.item, Function) else ""
        return f"{self.feature} ({self.name}{'' if self.item is item else where})"


def present_program(
    source: Source,
    forbid: Callable[[str, int], None] | None = None,
    is_for_gpus: bool = False,
) -> Program:
    """Returns the program of a source without what needs absent features, as present_part() does."""
    return present_part(Program(source, forbid), forbid, is_for_gpus)


def present_part(
    program: Program,
    forbid: Callable[[str, int], None] | None = None,
    is_for_gpus: bool = False,
) -> Program:
    """Returns a program without what needs absent features, with the kernels that are left out: the program itself, if
    nothing does. Its text is as long. forbid: see Program. is_for_gpus: true for what runs on CUDA devices."""
    features = _ON_GPUS if is_for_gpus else _FEATURE_OF
    source = program.source
    words = {word.text for word in source.words}
    if not features.keys() & source.identifiers and not _SPACES.keys() & words:
        return program
    found = _Absent(program, features)
    if not found.needs and not found.loose:
        return program
    text, left_out = found.blanked()
    program = Program(Source(text), forbid)
    program.left_out = left_out
    return program


class _Absent:
    def __init__(self, program: Program, features: dict[str, str]):
        self.program = program
        self.features = features
        self.source: Source = program.source
        self.graph = CallGraph(program)
        aliases = {n.id: n for nodes in self.graph.lookup.aliases.values() for n in nodes}
        # Everything that can be left out by itself, with its range.
        self.items: list[tuple[int, int, object]] = []
        for function in program.functions:
            self._add(function, function.head, function.node)
        for scope in program.classes:
            self._add(scope, scope.head, scope.node, scope.end)
        for node in aliases.values():
            if not _is_in_a_function(node):
                self._add(node, node.start_byte, _outermost(node))
        for node, _, head in program.declarations:
            self._add(node, head, node)
        self.items.sort(key=lambda item: item[1] - item[0])
        self.loose: list[tuple[int, int]] = []  # other declarations at namespace scope
        self.needs: dict[object, _Need] = {}
        self._find()

    def _add(self, item: object, head: int, node, end: int | None = None) -> None:
        self.items.append((min(head, node.start_byte), end or node.end_byte, item))

    def _find(self) -> None:
        for node in self._absent_names():
            name = self.source.masked_text(node)
            item = self._item_around(node.start_byte)
            if item is None:
                self._leave_out_loose(node)
            elif item not in self.needs:
                self.needs[item] = _Need(self.features[name], name, item)
        for word in self.source.words:
            item = self._item_around(word.start) if word.text in _SPACES else None
            if item is not None and item not in self.needs:
                self.needs[item] = _Need(_SPACES[word.text], word.text, item)
        if not self.needs:
            return
        named = set(self.needs)
        for _, _, item in self.items:
            if item not in named:
                need = self._need_of(self.graph.reached_from(item), named)
                if need is not None:
                    self.needs[item] = need
        names = {name for item in self.needs for name in self._names_of(item)}
        for node in self.source.find(_NAMES):
            if (
                self.source.masked_text(node) in names
                and self._item_around(node.start_byte) is None
            ):
                self._leave_out_loose(node)

    def _need_of(self, reached: set, named: set) -> _Need | None:
        """Returns what one of the reached declarations needs, of those that name something absent; None for nothing."""
        needs = sorted((self.needs[i] for i in reached & named), key=lambda n: (n.feature, n.name))
        return needs[0] if needs else None

    def _absent_names(self) -> Iterator:
        """Yields the nodes that name something absent of Metal's library."""
        declared = {self.source.masked_text(n) for n in self.source.find(_TYPE_PARAMETERS)}
        declared |= set(self.graph.types_and_variables) | set(self.graph.lookup.functions)
        for node in self.source.find(_NAMES):
            name = self.source.masked_text(node)
            if name not in self.features:
                continue
            if self._scope_of(node) in _NAMESPACES or (
                name not in declared and self._is_a_use(node)
            ):
                yield node

    def _scope_of(self, node) -> str | None:
        """Returns the last name before the `::` that qualifies a name, or None."""
        parent = node.parent
        if parent.type in ("template_type", "template_function"):
            node, parent = parent, parent.parent
        if parent.type != "qualified_identifier" or parent.child_by_field_name("name") != node:
            return None
        scope = parent.child_by_field_name("scope")
        return None if scope is None else self.source.masked_text(scope).strip()

    def _is_a_use(self, node) -> bool:
        """Returns true if a name is used as a type, a scope or a function: variables have such names, too."""
        if node.type != "identifier" or node.parent.type == "template_function":
            return True
        call = node.parent
        if call.type == "qualified_identifier":
            call = call.parent
        if call.type != "call_expression":
            return False
        return self.graph.scopes_around(call).declaration_of(node) is None

    def _item_around(self, offset: int) -> object | None:
        """Returns the innermost declaration around an offset that can be left out by itself."""
        for start, end, item in self.items:
            if start <= offset < end:
                return item
        return None

    def _leave_out_loose(self, node) -> None:
        while node.parent.type not in _ROOMS:
            node = node.parent
        # `using namespace` names no absent thing, and explicit instantiations are kernels or nothing.
        if node.type not in ("namespace_definition", "template_instantiation"):
            self.loose.append((node.start_byte, node.end_byte))

    def _names_of(self, item: object) -> list[str]:
        if isinstance(item, Function):
            return [item.name] if len(self.graph.lookup.functions[item.name]) == 1 else []
        if isinstance(item, ClassScope):
            return [self.graph.lookup.name_of(item)]
        table = self.graph.types_and_variables
        return [name for name, items in table.items() if item in items]

    # ---- leaving out -----------------------------------------------------------------------------

    def blanked(self) -> tuple[str, list[Instance]]:
        ranges = [(s, e) for s, e, item in self.items if item in self.needs] + self.loose
        left_out = []
        for instance in self.program.instances:
            function = instance.kernel.function
            # Where the kernel itself does not need it, this instantiation may.
            need = self.needs.get(function)
            need = need or self._need_of(self.graph.reached_by(instance), set(self.needs))
            if need is not None:
                kernel = replace(instance.kernel, unsupported=need.reason(function))
                left_out.append(replace(instance, kernel=kernel))
        offsets = {instance.offset for instance in left_out}
        for node, _, head in self.program.instantiations:
            if node.start_byte in offsets:
                ranges.append((head, node.end_byte))
        return blanked(self.source.text, ranges), left_out


def _is_in_a_function(node) -> bool:
    while node is not None and node.type != "compound_statement":
        node = node.parent
    return node is not None


def _outermost(node):
    while node.parent.type == "template_declaration":
        node = node.parent
    return node
