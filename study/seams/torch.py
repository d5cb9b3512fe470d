"""Seams of torch."""

from typing import TYPE_CHECKING

from study.seams.base import Seam, has

if TYPE_CHECKING:
    from torch import Tensor

FOREACH = Seam(
    name="torch-foreach",
    distribution="torch",
    versions=">=2.11,<2.14",
    does="clip all gradients of a network by one call each",
    why="Public functions work tensor by tensor; torch's own `clip_grad_norm_` uses these, but reads no norm back.",
    needs=(
        has("torch:_foreach_norm"),
        has("torch:_foreach_mul_"),
        has("torch:_foreach_clamp_min_"),
        has("torch:_foreach_clamp_max_"),
    ),
)


def norms(tensors: "list[Tensor]") -> "list[Tensor]":
    """Return the Euclidean norm of each tensor."""
    import torch

    return list(torch._foreach_norm(tensors))


def scale(tensors: "list[Tensor]", factors: float | list[float]) -> None:
    """Multiply tensors in place, all by one factor or each by its own."""
    import torch

    torch._foreach_mul_(tensors, factors)


def clamp(tensors: "list[Tensor]", limit: float) -> None:
    """Clip every element to [-limit, limit], in place."""
    import torch

    torch._foreach_clamp_min_(tensors, -limit)
    torch._foreach_clamp_max_(tensors, limit)
