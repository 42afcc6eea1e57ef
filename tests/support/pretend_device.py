"""A device that computes on the CPU and notes every operation for which a GPU would make its host wait.

    with PretendDevice() as device:
        x = device.put(torch.zeros(4))
        x.to("cpu")
    assert device.waits == ["aten._to_copy.default"]

Tensors on it say that they are not on the CPU, so code takes the ways that it takes for a GPU. What is
covered: reading numbers, shapes that hang on numbers, copies to the host, copies to the device that are
not asked for as asynchronous, tensors made of lists on the device, numbers of Python that are stored where
a tensor says, tensors of both sides in one operation, which a GPU refuses. What is not: whether memory is
pinned, waiting inside of kernels, and libraries other than torch.
"""

from __future__ import annotations

from typing import Any, Final, Self

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

# Its guards exist on every machine, and torch never computes with it by itself.
DEVICE: Final = torch.device("meta")

READS: Final = {
    "aten._local_scalar_dense.default",
    "aten._unique2.default",
    "aten.equal.default",
    "aten.is_nonzero.default",
    "aten.masked_select.default",
    "aten.nonzero.default",
    "aten.repeat_interleave.Tensor",
    "aten.unique_consecutive.default",
    "aten.unique_dim.default",
}
INDEXED: Final = {"aten.index.Tensor", "aten.index_put.default", "aten.index_put_.default"}
COPIES: Final = {"aten._to_copy.default", "aten.copy_.default"}


class OnDevice(torch.Tensor):
    """A tensor of the pretended device; `on_cpu` holds its numbers."""

    on_cpu: torch.Tensor

    @staticmethod
    def __new__(cls, on_cpu: torch.Tensor) -> OnDevice:
        made = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            on_cpu.shape,
            strides=on_cpu.stride(),
            storage_offset=on_cpu.storage_offset(),
            dtype=on_cpu.dtype,
            device=DEVICE,
        )
        made.on_cpu = on_cpu
        return made  # type: ignore[no-any-return]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # as torch calls it
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise RuntimeError("the numbers of a pretended device are used outside of it")


class _Stores(TorchFunctionMode):
    """Notes `x[index] = number`, for which torch copies the number to a GPU, where it then is a tensor."""

    def __init__(self, waits: list[str]) -> None:
        super().__init__()
        self._waits = waits

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__setitem__ and isinstance(args[0], OnDevice):
            places = args[1] if isinstance(args[1], tuple) else (args[1],)
            said_by_tensors = any(isinstance(each, torch.Tensor) for each in places)
            if said_by_tensors and not isinstance(args[2], torch.Tensor):
                self._waits.append("Tensor.__setitem__")
        return func(*args, **(kwargs or {}))


class PretendDevice(TorchDispatchMode):
    """`waits`: the operations for which a host would have waited, in order; `sent`: copies to the device."""

    device: Final = DEVICE

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []
        self.sent = 0  # copies to the device
        self._stores = _Stores(self.waits)

    def __enter__(self) -> Self:
        self._stores.__enter__()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._stores.__exit__(*error)

    def put(self, tensor: torch.Tensor) -> torch.Tensor:
        return OnDevice(tensor)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if any(t.device == DEVICE and not isinstance(t, OnDevice) for t in tensors):
            raise AssertionError(f"{func}: a tensor was made of a list on the device, which waits")
        source = any(isinstance(t, OnDevice) for t in tensors)
        if source and str(func) not in COPIES:
            self._check_devices(func, args, kwargs)
        target = kwargs.get("device")
        there = source if target is None else torch.device(target) == DEVICE
        if str(func) == "aten.copy_.default":
            source, there = isinstance(args[1], OnDevice), isinstance(args[0], OnDevice)
        if self._waits(str(func), args, kwargs, source, there):
            self.waits.append(str(func))
        self.sent += str(func) in COPIES and there and not source
        if "device" in kwargs:
            kwargs["device"] = torch.device("cpu")
        args, kwargs = tree_map(lambda x: x.on_cpu if isinstance(x, OnDevice) else x, (args, kwargs))
        if str(func) in COPIES and source != there and "device" in kwargs:
            out = func(*args, **kwargs).clone()  # the same memory is never on both sides
        else:
            out = func(*args, **kwargs)
        written = func._schema.arguments[0].alias_info if func._schema.arguments else None
        if written is not None and written.is_write:
            return tensors[0]
        return tree_map(lambda x: OnDevice(x) if there and isinstance(x, torch.Tensor) else x, out)

    @staticmethod
    def _check_devices(func: Any, args: Any, kwargs: Any) -> None:
        """Numbers of the host, and indices, may meet tensors of a device; other tensors may not."""
        met = (args[0], *args[2:]) if str(func) in INDEXED else args
        found = [leaf for leaf in tree_leaves((met, kwargs)) if isinstance(leaf, torch.Tensor) and leaf.dim()]
        if any(not isinstance(each, OnDevice) for each in found):
            raise AssertionError(f"{func}: tensors of the host and of the device")

    @staticmethod
    def _waits(name: str, args: Any, kwargs: Any, source: bool, there: bool) -> bool:
        if name in READS:
            return source
        if name in INDEXED:
            indices = [index for index in args[1] if index is not None]
            # A mask says how much there is only when it is read; an index on the CPU has to be sent.
            return source and any(i.dtype in (torch.bool, torch.uint8) or i.is_cpu for i in indices)
        if name not in COPIES or source == there:
            return False
        asynchronous = args[2:3] == (True,) or kwargs.get("non_blocking", False)
        return source or not asynchronous  # to the host: whoever reads it has to wait
