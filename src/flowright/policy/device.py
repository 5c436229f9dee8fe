"""Getting small tensors, and a thread, to where the policy is. No model here."""

import torch
from torch import Tensor


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on the device; on the CPU it is the same one.

    A GPU is not waited for: an ordinary copy ends only when all that was asked of the GPU before
    has been computed, one from page-locked memory goes into the same queue. (PyTorch keeps such
    memory until the copy is done.)
    """
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def use(device: torch.device) -> None:
    """Make a GPU this thread's own. Each thread begins with the first one, and FSDP asks for the
    streams of the current one."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
