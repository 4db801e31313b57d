"""The truth about a Mac: which operators the device serves, and what it says about the others."""

import metalops
import pytest
import torch
from metalops._torch import software_device, stock


def registered_on_mps(overload: str) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(overload, "MPS")


def composite(overload: str) -> bool:
    return any(
        torch._C._dispatch_has_kernel_for_dispatch_key(overload, key)
        for key in (
            "CompositeImplicitAutograd",
            "CompositeExplicitAutograd",
            "CompositeExplicitAutogradNonFunctional",
        )
    )


# Registered on the MPS key by torch's own Python code, torch/_refs/linalg/__init__.py.
REGISTERED_BY_TORCH_IN_PYTHON = {"aten::linalg_lu_solve.out"}


def cpu_overloads() -> list[str]:
    return [
        name
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("aten::") and torch._C._dispatch_has_kernel_for_dispatch_key(name, "CPU")
    ]


def test_stock_list_follows_the_yaml_format():
    text = """
- func: sin.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)
  structured: True
  dispatch:
    CPU, CUDA, MPS, MTIA: sin_out
    SparseMPS: sin_sparse_out
- func: sin(Tensor self) -> Tensor
  structured_delegate: sin.out
  dispatch:
    SparseCPU, SparseMPS: sin_sparse
- func: only_sparse(Tensor self) -> Tensor
  dispatch:
    SparseMPS: only_sparse
- func: commented(Tensor self) -> Tensor
  dispatch:
    CPU: commented
    #MPS: commented_mps
- func: cos(Tensor self) -> Tensor
  structured_delegate: cos.out
"""
    assert stock.parse(text) == {"aten::sin", "aten::sin.out"}


def test_stock_list_of_the_installed_torch():
    overloads = stock.stock_overloads()
    assert {"aten::sin", "aten::sin.out", "aten::add_.Tensor", "aten::mm.out"} <= overloads
    assert not {"aten::special_airy_ai.out", "aten::mode", "aten::_pdist_forward"} & overloads
    known = set(torch._C._dispatch_get_all_op_names())
    assert not overloads - known


def test_every_stock_operator_is_served_or_says_that_it_is_not():
    unserved = [
        name
        for name in stock.stock_overloads()
        if not registered_on_mps(name) and not composite(name)
    ]
    assert unserved == []


def test_a_stand_in_is_registered_for_stock_operators_only():
    assert software_device.stand_ins() <= stock.stock_overloads()


def test_operators_that_stock_lacks_have_no_kernel_of_the_device():
    """Ours are registered by the extension, which _device knows nothing about."""
    lacking = set(cpu_overloads()) - stock.stock_overloads() - REGISTERED_BY_TORCH_IN_PYTHON
    assert len(lacking) > 150
    assert not lacking & (
        software_device.stand_ins() | software_device.stock_operators_without_kernel()
    )


MISSING = (
    r"The operator '{}' is not currently implemented for the MPS device. "
    r"If you want this op to be considered"
)


@pytest.mark.parametrize(
    ("call", "overload"),
    [
        (
            lambda x: torch.ops.aten._test_optional_floatlist(x[0], [1.0] * 4),
            "aten::_test_optional_floatlist",
        ),
        (lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.quint8), "aten::quantize_per_tensor"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_operator_that_stock_lacks_raises_torchs_message(call, overload):
    assert overload not in stock.stock_overloads()
    with pytest.raises(NotImplementedError, match=MISSING.format(overload)) as raised:
        call(torch.rand(4, 4, device="mps"))
    text = str(raised.value)
    assert "https://github.com/pytorch/pytorch/issues/141287" in text
    assert f"commit hash {torch.version.git_version}." in text
    assert "PYTORCH_ENABLE_MPS_FALLBACK=1" in text


def sample_argument(argument):
    """Something of the type that a schema argument wants: enough to reach the dispatcher."""
    kind = str(argument.type)
    tensor = torch.ones(2, 2, device="mps")
    if argument.has_default_value() and not argument.kwarg_only:
        return argument.default_value
    if kind == "Tensor":
        return tensor
    if kind.startswith("List[Tensor") or kind == "List[Optional[Tensor]]":
        return [tensor, tensor]
    if kind in ("int", "number", "float"):
        return 1
    if kind == "bool":
        return True
    if kind == "List[int]":
        return [1, 1, 1]
    if kind == "List[float]":
        return [1.0, 1.0, 1.0]
    if kind == "List[bool]":
        return [True, True, True]
    if kind == "str":
        return "mean"
    return None


def lacking_overloads() -> list[str]:
    """What a CPU kernel could serve and stock MPS has neither directly nor as a composition."""
    return sorted(
        name
        for name in cpu_overloads()
        if name not in stock.stock_overloads() | REGISTERED_BY_TORCH_IN_PYTHON
        and not composite(name)
        and not registered_on_mps(name)
        # Their arguments are packed weights of a quantized CPU kernel, which mps cannot have.
        and not name.startswith(("aten::quantized_gru", "aten::quantized_lstm"))
    )


@pytest.mark.parametrize("overload", lacking_overloads())
def test_every_lacking_overload_raises(overload):
    base, _, variant = overload.removeprefix("aten::").partition(".")
    op = getattr(getattr(torch.ops.aten, base), variant or "default")
    arguments, named = [], {}
    for argument in op._schema.arguments:
        if str(argument.type).endswith("Device") or "Device]" in str(argument.type):
            named[argument.name] = torch.device("mps")
        elif argument.kwarg_only:
            if not argument.has_default_value():
                named[argument.name] = sample_argument(argument)
        else:
            arguments.append(sample_argument(argument))
    with torch.no_grad(), pytest.raises((NotImplementedError, RuntimeError)) as raised:
        op(*arguments, **named)
    assert "is not currently implemented for the MPS device" in str(raised.value)


def test_stock_operator_without_any_kernel_says_so():
    assert "aten::linear_backward" in software_device.stock_operators_without_kernel()
    x = torch.ones(4, 4, device="mps")
    message = (
        "The operator 'aten::linear_backward' runs on the MPS device of a Mac, but the "
        "software mps device of metalops has no kernel for it, because torch's CPU backend "
        "has none."
    )
    with pytest.raises(NotImplementedError) as raised:
        torch.ops.aten.linear_backward(x, x, x, [True, True, True])
    assert str(raised.value) == message


def test_recording_of_stand_ins():
    x = torch.randn(3, device="mps", requires_grad=True)
    with metalops.debug.standins() as served:
        loss = (x.sin() * 2).sum()
        with metalops.debug.standins() as inner:
            loss.backward()
    assert inner["aten::cos"] == 1
    assert served["aten::sin"] == 1
    assert served["aten::cos"] == 1
    with metalops.debug.standins() as nothing:
        x.view(3, 1).t().expand(4, 3)
        torch.empty(3, device="mps")
    assert nothing == {}


def test_recording_ends_with_an_error():
    with pytest.raises(ZeroDivisionError):
        with metalops.debug.standins() as served:
            torch.ones(2, device="mps").sin()
            raise ZeroDivisionError
    assert served["aten::sin"] == 1
    with metalops.debug.standins() as after:
        pass
    assert after == {}


def test_recording_belongs_to_its_thread():
    import threading

    x = torch.ones(2, device="mps")
    with metalops.debug.standins() as served:
        thread = threading.Thread(target=x.cos)
        thread.start()
        thread.join()
    assert served == {}
