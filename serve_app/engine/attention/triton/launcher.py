"""Launches kernels without the work that Triton repeats at every launch.

Triton looks at each argument to find the compiled kernel that fits; this search takes longer than the launch.
A step without a graph has two hundred launches. So a `Launcher` remembers the kernel that it found for each
kind of arguments.
"""

from __future__ import annotations

from typing import Any, Final

import torch

ALIGNMENT: Final = 16  # bytes; Triton compiles one kernel for pointers that are multiples, and another


class Launcher:
    """One kernel of Triton. The kernel's constants come last, and are passed by name."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._names: list[str] = kernel.arg_names
        # Of the numbers that are not constants, those whose values Triton compiles in.
        self._compiled_in = {
            place
            for place, param in enumerate(getattr(kernel, "params", ()))
            if not param.do_not_specialize and not param.is_constexpr
        }
        self._found: dict[tuple[Any, ...], tuple[Any, tuple[Any, ...]]] = {}

    def __call__(self, programs: tuple[int, ...], *args: Any, **named: Any) -> None:
        """Launch `programs`: one to three dimensions. `named`: constants, and options of the launch."""
        kinds: list[Any] = [tuple(named.items())]
        addresses = 0
        for place, arg in enumerate(args):
            if isinstance(arg, torch.Tensor):
                addresses |= arg.data_ptr()
                kinds.append(arg.dtype)
            else:
                kinds.append(arg if isinstance(arg, int) and place in self._compiled_in else None)
        device = args[0].device
        if device.type != "cuda" or addresses % ALIGNMENT:
            self._kernel[programs](*args, **named)
            return
        kinds.append(device.index)
        key = tuple(kinds)
        found = self._found.get(key)
        if found is None:
            compiled = self._kernel[programs](*args, **named)
            constants = tuple(named[name] for name in self._names[len(args) :])
            self._found[key] = compiled, constants
            return
        compiled, constants = found
        compiled[(*programs, 1, 1)](*args, *constants)
