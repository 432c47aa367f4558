"""How far a result lies from its reference. NaN never passes."""

import torch


def relative_l2(result: torch.Tensor, reference: torch.Tensor) -> float:
    """||result - reference|| / ||reference||, in float64; infinite where the result holds a NaN."""
    difference = result.double() - reference.double()
    if difference.isnan().any():
        return float("inf")
    norm = reference.double().norm()
    return float(difference.norm() / norm) if norm > 0 else float(difference.norm())


def largest_difference(result: torch.Tensor, reference: torch.Tensor) -> float:
    """Largest |result - reference|; equal infinities differ by 0."""
    same = result.double() == reference.double()
    difference = torch.where(same, 0.0, (result.double() - reference.double()).abs())
    return float("inf") if difference.isnan().any() else float(difference.max()) if difference.numel() else 0.0
