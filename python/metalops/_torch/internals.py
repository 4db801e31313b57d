"""The private interfaces of torch that metalops uses, each once and under a plain name.

Other modules of the package import them from here, so this is the list to go through for another version of torch. All
of it holds for the versions that versions.py names. A name that the installed torch lacks is an ImportError that says so:
at the import of this module, or on request for modules that take long to import. The list for csrc is in
csrc/host/torch_internals.h and <metalops/torch_internals.h>.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from importlib import import_module, reload
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch.autograd import forward_ad

from . import versions

_missing: list[str] = []


def _raise_if_missing() -> None:
    if _missing:
        names = ", ".join(_missing)
        _missing.clear()
        raise ImportError(
            f"torch {torch.__version__} lacks what metalops uses of its internals: {names}; this metalops knows torch "
            f"{versions.listed()}, so install one of these versions or a metalops for your torch."
        )


def _find(module: str, name: str) -> Any:
    """Returns module.name; records a missing name and returns None for it."""
    try:
        found: Any = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
        return found
    except (AttributeError, ImportError):
        _missing.append(f"{module}.{name}")
        return None


# ---- the dispatcher ------------------------------------------------------------------------------

DispatchKey = _find("torch._C", "DispatchKey")
DispatchKeySet = _find("torch._C", "DispatchKeySet")
OpOverload = _find("torch._ops", "OpOverload")
OpOverloadPacket = _find("torch._ops", "OpOverloadPacket")

# True if an operator ("namespace::name.overload") exists with any kernel, or with one for a key (its name).
has_kernel = _find("torch._C", "_dispatch_has_kernel")
has_kernel_for_key = _find("torch._C", "_dispatch_has_kernel_for_dispatch_key")
# A text with the kernels of an operator, and the files that registered them.
describe_kernels = _find("torch._C", "_dispatch_dump")
# The schemas of all overloads of an operator; none if there is no such operator.
schemas_of = _find("torch._C", "_jit_get_schemas_for_operator")
# Raises what torch.linalg does of the infos of a batch.
raise_linalg_errors = _find("torch", "_linalg_check_errors")
# The names of all operators.
operator_names = _find("torch._C", "_dispatch_get_all_op_names")

# A context in which operators skip autograd, and the keysets after it and after ADInplaceOrView, for a kernel that
# redispatches its operator.
below_autograd = _find("torch._C", "_AutoDispatchBelowAutograd")
keys_after_autograd = _find("torch._C", "_after_autograd_keyset")
keys_after_inplace_or_view = _find("torch._C", "_after_ADInplaceOrView_keyset")

# A context in which operators skip the keys of a set.
excluded_keys = _find("torch._C", "_ExcludeDispatchKeyGuard")

# Unregisters the definitions and kernels of a torch.library.Library.
remove_library = _find("torch.library", "Library._destroy")


def schema(overload: OpOverload) -> torch.FunctionSchema:
    """Returns the schema of an overload."""
    return overload._schema


def call_with_key(overload: OpOverload, key: DispatchKey, *args, **keywords):
    """Calls the kernel that the overload has for a key."""
    return overload._op_dk(key, *args, **keywords)


_eval_frame = _find("torch._C", "_dynamo.eval_frame")
_find("torch._C", "_dynamo.eval_frame.set_code_exec_strategy")

# A context that is given every call of an operator: a class to inherit from.
TorchDispatchMode = _find("torch.utils._python_dispatch", "TorchDispatchMode")

# ---- observers of operators besides the dispatcher -----------------------------------------------

_dispatch_modes = _find("torch._C", "_len_torch_dispatch_stack")
_function_modes = _find("torch._C", "_len_torch_function_stack")
_functorch_level = _find("torch._C", "_functorch.peek_interpreter_stack")
_tracing_state = _find("torch._C", "_get_tracing_state")
_find("torch.autograd.forward_ad", "_current_level")


def forward_mode() -> bool:
    """Returns true if forward-mode differentiation is on."""
    return forward_ad._current_level >= 0


def is_watched() -> bool:
    """Returns true if a dispatch mode, a transform of torch.func or forward-mode AD has to see every call."""
    return _dispatch_modes() > 0 or _functorch_level() is not None or forward_ad._current_level >= 0


def is_watched_or_traced() -> bool:
    """Returns true if is_watched(), or for a function mode, or under torch.jit.trace."""
    return is_watched() or _function_modes() > 0 or _tracing_state() is not None


def constant_to_dynamo(function: Callable) -> Callable:
    """Lets torch.compile call a function while it traces, as torch.compiler.assume_constant_result does, which imports
    the compiler."""
    function._dynamo_marked_constant = True
    return function


# ---- tensors -------------------------------------------------------------------------------------

# A context in which no dispatch mode is active.
without_dispatch_modes = _find("torch.utils._python_dispatch", "_disable_current_modes")
is_alias_of = _find("torch._C", "_is_alias_of")
is_view = _find("torch", "Tensor._is_view")
negative_view = _find("torch", "_neg_view")
pytree = _find("torch.utils", "_pytree")


def version(tensor: torch.Tensor) -> int:
    """Returns how often a tensor has been written in place."""
    return tensor._version


# ---- fake tensors and their dtypes and strides ---------------------------------------------------

# check(condition, message): raises RuntimeError with the result of message(); also for symbolic conditions.
check = _find("torch", "_check")
FakeTensorMode = _find("torch._subclasses.fake_tensor", "FakeTensorMode")
# register_fake_implementation(overload)(f): f(mode, overload, *arguments) returns the results for fake tensors, or
# NotImplemented.
register_fake_implementation = _find("torch._subclasses.fake_impls", "register_op_impl")
_operators = _find("torch._library.simple_registry", "singleton")
_find("torch._library.fake_impl", "FakeImplHolder.register")


def register_fake(name: str, kernel: Callable, library: torch.library.Library) -> None:
    """Registers the fake kernel of an operator ("namespace::name") as torch.library.register_fake does, but for its search
    for the caller, which reads source files and takes long for all operators together."""
    code = kernel.func.__code__ if isinstance(kernel, functools.partial) else kernel.__code__
    source = f"{code.co_filename}:{code.co_firstlineno}"
    handle = _operators.find(name).fake_impl.register(kernel, source, lib=library)
    library._registration_handles.append(handle)


is_fake = _find("torch._subclasses.fake_tensor", "is_fake")
detect_fake_mode = _find("torch._guards", "detect_fake_mode")
PromotionKind = _find("torch._prims_common", "ELEMENTWISE_TYPE_PROMOTION_KIND")
compute_elementwise_output_strides = _find(
    "torch._prims_common", "compute_elementwise_output_strides"
)
elementwise_dtypes = _find("torch._prims_common", "elementwise_dtypes")
is_cpu_scalar_tensor = _find("torch._prims_common", "is_cpu_scalar_tensor")
maybe_resize_out = _find("torch._prims_common.wrappers", "_maybe_resize_out")

# ---- autograd ------------------------------------------------------------------------------------

# torch.autograd.Function without torch.func's support, under whose transforms the dispatcher calls for each level; and
# the context that allows one there.
SingleLevelFunction = _find("torch.autograd.function", "_SingleLevelFunction")
single_level_functions = _find("torch._functorch.utils", "enable_single_level_autograd_function")
# The tensor that a tensor of an ended transform level wraps, else the tensor itself.
unwrap_ended_level = _find("torch._C", "_functorch.unwrap_if_dead")
# The key by which compiled autograd distinguishes the functions of a graph.
compiled_autograd_key = _find("torch.autograd", "Function._compiled_autograd_key")

# The node that runs in this thread, or None, and the number that the next node made in it gets.
backward_node = _find("torch._C", "_current_autograd_node")
next_sequence_number = _find("torch.autograd", "_get_sequence_nr")


def sequence_number_of(node: torch.autograd.graph.Node) -> int:
    """Returns the number of a node in the order in which those of its thread were made."""
    return node._sequence_nr()


# ---- torch.nn ------------------------------------------------------------------------------------

# True if nn.MultiheadAttention's fast path takes tensors of a device.
attention_device_check = _find("torch.nn.modules.activation", "_check_arg_device")
# The function of autograd that nn.SyncBatchNorm calls in training.
sync_batch_norm = _find("torch.nn.modules._functions", "SyncBatchNorm.apply")


class JaggedAttention(NamedTuple):
    """Attention of jagged nested tensors. attend: torch's own. autocast, check: its parts that convert and check its
    arguments. longest, shortest: functions of a nested tensor: the lengths of its longest and shortest sequence."""

    NestedTensor: type
    attend: Callable
    autocast: Callable
    check: Callable
    longest: Callable
    shortest: Callable


@functools.cache
def jagged_attention() -> JaggedAttention:
    """Returns the interface of torch's attention of jagged nested tensors, which takes long to import."""
    module = "torch.nested._internal.sdpa"
    nested = "torch.nested._internal.nested_tensor"
    found = JaggedAttention(
        _find(nested, "NestedTensor"),
        _find(module, "jagged_scaled_dot_product_attention"),
        _find(module, "_autocast"),
        _find(module, "_validate_sdpa_input"),
        _find(nested, "NestedTensor._get_max_seqlen"),
        _find(nested, "NestedTensor._get_min_seqlen"),
    )
    _raise_if_missing()
    return found


JAGGED_OPERATORS = "torch.nested._internal.ops"


def set_jagged_attention(attend: Callable) -> None:
    """Lets a function serve attention of jagged nested tensors, in place of torch's."""
    _find(JAGGED_OPERATORS, "jagged_scaled_dot_product_attention")
    _raise_if_missing()
    import_module(JAGGED_OPERATORS).jagged_scaled_dot_product_attention = attend


def ragged_dimension(nested: torch.Tensor) -> int:
    """Returns the dimension of a jagged nested tensor in which sizes differ."""
    return nested._ragged_idx


# ---- torch.mps -----------------------------------------------------------------------------------


def add_mps(**functions: Callable) -> None:
    """Adds functions to torch._C that it has on a Mac only, where their names have the prefix _mps_."""
    torch._C._has_mps = True
    for name, function in functions.items():
        setattr(torch._C, f"_mps_{name}", function)


def say_mps_is_initialized() -> None:
    """Lets torch.utils.checkpoint keep the state of the generator of mps, as it does for devices that are in use."""
    torch.mps._initialized = True


# Converts floating-point tensors of a device to a dtype, as autocast does: f(tensor, device, dtype).
autocast_to = _find("torch.amp.autocast_mode", "_cast")


def mps_function(name: str) -> Callable:
    """Returns one of these functions."""
    return getattr(torch._C, f"_mps_{name}")


def choose_conv_backend_of_mps() -> None:
    """Gives fake results of convolutions on mps the memory format of real ones. torch derives it from the backend of the
    convolution, and its build for Linux does not choose the one for mps."""
    backends = _find("torch._C", "_ConvBackend")
    memory_format = _find("torch._C", "_conv_determine_backend_memory_format")
    _raise_if_missing()

    @functools.wraps(memory_format)
    def of_mps(input: torch.Tensor, weight: torch.Tensor, backend) -> torch.memory_format:
        if input.is_mps and backend == backends.Overrideable:
            backend = backends.Mps
        return memory_format(input, weight, backend)

    torch._C._conv_determine_backend_memory_format = of_mps


def has_mps_streams() -> bool:
    """Returns true if torch.mps has streams. Older versions of torch have one stream for the device."""
    return find_spec("torch.mps.streams") is not None


def add_mps_streams(base: type, **functions: Callable) -> None:
    """Adds functions as add_mps does, and the base class of torch.mps.Stream. The module that derives it was imported
    with torch, so it is run again."""
    torch._C._MPSStreamBase = base
    add_mps(**functions)
    module = reload(import_module("torch.mps.streams"))
    for name in module.__all__:
        setattr(torch.mps, name, getattr(module, name))


# Functions of torch.backends.mps that ask torch._C once and cache the answer.
remembered_mps_answers = [
    _find("torch.backends.mps", name)
    for name in (
        "is_available",
        "is_macos_or_newer",
        "is_macos13_or_newer",
        "get_name",
        "get_core_count",
    )
]


# ---- torch.distributed ---------------------------------------------------------------------------

# By scheme of a URL: the functions from which init_process_group() gets stores, ranks and sizes. Some builds have none.
rendezvous_handlers = (
    _find("torch.distributed.rendezvous", "_rendezvous_handlers")
    if torch.distributed.is_available()
    else {}
)


# ---- torch.cuda ----------------------------------------------------------------------------------


@functools.cache
def cuda_function(name: str) -> Callable:
    """Returns one of the functions that torch._C has in CUDA builds only, whose names have the prefix _cuda_ there."""
    return getattr(torch._C, f"_cuda_{name}")


# ---- modules that take long to import ------------------------------------------------------------

INDUCTOR_LOWERING = "torch._inductor.lowering"


class InductorLowering(NamedTuple):
    """Inductor's lowering of operators. lowerings: by overload. fallback_handler(overload) makes a lowering that calls
    the operator's kernel, make_pointwise(f) an elementwise one; register(overloads, broadcast) is a decorator for a
    lowering whose operands get a common dtype. div_mode: the lowering of torch.div with a rounding_mode. IRNode: the
    class of tensor arguments."""

    lowerings: dict
    fallback_handler: Callable
    make_pointwise: Callable
    register: Callable
    div_mode: Callable
    IRNode: type


def inductor_lowering() -> InductorLowering:
    """Returns the interface of Inductor's lowering."""
    found = InductorLowering(
        _find(INDUCTOR_LOWERING, "lowerings"),
        _find(INDUCTOR_LOWERING, "fallback_handler"),
        _find(INDUCTOR_LOWERING, "make_pointwise"),
        _find(INDUCTOR_LOWERING, "register_lowering"),
        _find(INDUCTOR_LOWERING, "div_mode"),
        _find("torch._inductor.ir", "IRNode"),
    )
    _raise_if_missing()
    return found


class InductorCompiler(NamedTuple):
    """Inductor as a compiler of graphs. compile: of a graph of Dynamo; its inner_compile compiles the graphs of operators
    that AOTAutograd makes of it, by default by compile_inner. hook(f): a context in which f(name, tensor) is told of each
    buffer that was computed, by the name of its node, if the graph was compiled with generate_intermediate_hooks.
    without_autograd_cache: a context in which AOTAutograd compiles anew."""

    compile: Callable
    compile_inner: Callable
    hook: Callable
    without_autograd_cache: Callable


def inductor_compiler() -> InductorCompiler:
    """Returns the interface of Inductor's compiler."""
    patch = _find("torch._functorch.config", "patch")
    found = InductorCompiler(
        _find("torch._inductor.compile_fx", "compile_fx"),
        _find("torch._inductor.compile_fx", "compile_fx_inner"),
        _find("torch._inductor.hooks", "intermediate_hook"),
        functools.partial(patch, enable_autograd_cache=False),
    )
    _raise_if_missing()
    return found


INDUCTOR_METAL = "torch._inductor.codegen.mps"


class InductorMetal(NamedTuple):
    """Inductor's Metal code generator. Kernel, Overrides, Scheduling: classes that write Metal code. IndentedBuffer: of
    lines of code. V: the state of the compilation. ops: operations on values in its code."""

    Kernel: type
    Overrides: type
    Scheduling: type
    IndentedBuffer: type
    V: Any
    ops: Any


def inductor_metal() -> InductorMetal:
    """Returns the interface of Inductor's code generator for mps."""
    found = InductorMetal(
        _find(INDUCTOR_METAL, "MetalKernel"),
        _find(INDUCTOR_METAL, "MetalOverrides"),
        _find(INDUCTOR_METAL, "MetalScheduling"),
        _find("torch._inductor.utils", "IndentedBuffer"),
        _find("torch._inductor.virtualized", "V"),
        _find("torch._inductor.virtualized", "ops"),
    )
    _raise_if_missing()
    return found


def register_inductor_backend(scheduling: type, key: Callable[[], bytes]) -> None:
    """Lets a class write Inductor's code for mps, in place of torch's own. The result of key() becomes part of the keys
    of torch's disk caches, whose code others may have written."""
    common = "torch._inductor.codegen.common"
    register = _find(common, "register_backend_for_device")
    registered = _find(common, "get_scheduling_for_device")
    metal = _find(INDUCTOR_METAL, "MetalScheduling")
    wrappers = (
        _find("torch._inductor.codegen.wrapper", "PythonWrapperCodegen"),
        _find("torch._inductor.codegen.cpp_wrapper_mps", "CppWrapperMps"),
        _find("torch._inductor.codegen.wrapper_fxir", "WrapperFxCodegen"),
    )
    Pass = _find("torch._inductor.custom_graph_pass", "CustomGraphModulePass")
    _raise_if_missing()
    if registered("mps") not in (None, metal):
        return  # registered by another package

    class KeyOnly(Pass):
        def __call__(self, graph) -> None:
            pass

        def uuid(self) -> bytes:
            return key()

    register("mps", scheduling, *wrappers, KeyOnly())


def handle_dtensors(overload: OpOverload, handler: Callable) -> None:
    """Lets handler(overload, args, keywords) run an operator on DTensors, in place of sharding rules."""
    handlers = _find("torch.distributed.tensor", "DTensor._op_dispatcher._custom_op_handlers")
    _raise_if_missing()
    handlers[overload] = handler


def opinfo_classes() -> tuple[type, type, type]:
    """Returns ErrorInput, OpInfo and SampleInput, the classes of torch's entries for tests of operators."""
    module = "torch.testing._internal.opinfo.core"
    found = _find(module, "ErrorInput"), _find(module, "OpInfo"), _find(module, "SampleInput")
    _raise_if_missing()
    return found


def wrapped_compiler(command: list[str]) -> list[str]:
    """Returns a compiler's command as torch.utils.cpp_extension runs it, with ccache if that is asked for."""
    wrap = _find("torch.utils.cpp_extension", "_wrap_compiler")
    _raise_if_missing()
    return wrap(command)


_raise_if_missing()


def run_uncompiled(function: Callable) -> None:
    """Lets a function, and all that it calls, run as they are where torch.compile follows the program, without importing
    the compiler as torch.compiler.disable does."""
    skip = _eval_frame._FrameAction.SKIP
    _eval_frame.set_code_exec_strategy(
        function.__code__, _eval_frame._FrameExecStrategy(skip, skip)
    )


class DispatchMode(TorchDispatchMode):
    """A TorchDispatchMode that does not import the compiler when it is first called, and under which functions of
    torch.compile run uncompiled; with through_compiled, a keyword of a subclass, compiled, and what they call is seen."""

    through_compiled = False

    def __init_subclass__(cls, through_compiled: bool = False, **keywords: Any) -> None:
        cls.through_compiled = through_compiled
        super().__init_subclass__(**keywords)

    # Operators with functions among their arguments are calls like others.
    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return cls.through_compiled

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return cls.through_compiled


INDUCTOR_LINKER = "torch._inductor.cpp_builder"


def add_inductor_library(device: str, path: str) -> None:
    """Links the C++ code that Inductor compiles for a device with a shared library."""
    options = _find(INDUCTOR_LINKER, "get_cpp_torch_device_options")
    _raise_if_missing()
    folder, name = os.path.split(path)

    @functools.wraps(options)
    def with_library(device_type: str, *args: Any, **kwargs: Any) -> tuple:
        *others, folders, names, passed_through = options(device_type, *args, **kwargs)
        if device_type == device:
            # Not by its path: the options serve to precompile headers, too, and the compiler would read the library.
            folders, names = [*folders, folder], [*names, f":{name}"]
        return (*others, folders, names, passed_through)

    import_module(INDUCTOR_LINKER).get_cpp_torch_device_options = with_library
