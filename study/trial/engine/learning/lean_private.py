"""Private accesses of torch and RLlib that the lean learner alone uses; goes with it."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def norms(tensors: list[Tensor]) -> list[Tensor]:
    """Return the Euclidean norm of each tensor, by one call for all: public functions work tensor by tensor."""
    return list(torch._foreach_norm(tensors))


def scale(tensors: list[Tensor], factors: float | list[float]) -> None:
    """Multiply tensors in place, all by one factor or each by its own."""
    torch._foreach_mul_(tensors, factors)


def clamp(tensors: list[Tensor], limit: float) -> None:
    """Clip every element to [-limit, limit], in place."""
    torch._foreach_clamp_min_(tensors, -limit)
    torch._foreach_clamp_max_(tensors, limit)


def forward_train_of(module: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return the forward pass of a module in training, without RLlib's checks."""
    forward: Callable[[dict[str, Any]], dict[str, Any]] = module._forward_train
    return forward
