"""Functions of a model file that are called around the network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType


class Hook:
    """A function of a model file, called with arrays or with tensors, whichever it takes.

    Functions written for other tools take NumPy in ``pre_process`` and tensors in
    ``post_process``; both kinds are found in both places.
    """

    def __init__(self, call: Callable[..., Any], first: str, device: torch.device) -> None:
        self._call, self._device = call, device
        second = "torch" if first == "numpy" else "numpy"
        self._order: tuple[str, ...] = (first, second)
        annotations = getattr(call, "__annotations__", {})
        wanted = str(next(iter(v for k, v in annotations.items() if k != "return"), ""))
        if "Tensor" in wanted:
            self._order = ("torch",)
        elif "ndarray" in wanted or "NDArray" in wanted:
            self._order = ("numpy",)

    @classmethod
    def of(cls, module: ModuleType | None, name: str, device: torch.device) -> Hook | None:
        """Return the function *name* of *module*, or ``None`` if it has none."""
        call = getattr(module, name, None) if module else None
        first = "numpy" if name == "pre_process" else "torch"
        return None if call is None else cls(call, first, device)

    def __call__(self, value: Any) -> Any:
        """Call with the kind that worked before; at first, with one after the other."""
        for kind in self._order:
            try:
                result = self._call(_as_numpy(value) if kind == "numpy" else value)
            except (TypeError, AttributeError):
                if kind == self._order[-1]:
                    raise
                continue
            self._order = (kind,)
            break
        if hasattr(result, "__array__") and not isinstance(result, torch.Tensor):
            return torch.as_tensor(result, device=self._device)
        return result


def _as_numpy(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().numpy()
    return value
