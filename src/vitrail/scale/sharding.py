"""A network on every process -> the same network with a part of every weight on each, by FSDP2 (`fully_shard`).

A block's weights come together while it computes, and part again; gradients are added over the processes, not averaged.
They travel in float32 whatever the precision of the products is, so that a step is that of one process.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from vitrail.checkpoint.devices import device_of
from vitrail.network.vit import ViT
from vitrail.system_calls import give_back_large_blocks


def shard_network(model: ViT, world: int) -> None:
    """Shard a network where it lies: its blocks one by one, and all the rest."""
    if device_of(model).type == "cpu":
        give_back_large_blocks()  # a block's weights come and go: with all of them kept, nothing would be saved
    mesh = init_device_mesh(device_of(model).type, (world,))
    policy = MixedPrecisionPolicy(reduce_dtype=torch.float32, cast_forward_inputs=False)
    for each in (*model.encoder.blocks, model):
        fully_shard(each, mesh=mesh, mp_policy=policy)
        assert isinstance(each, FSDPModule)
        each.set_gradient_divide_factor(1.0)  # a sum
        each.set_force_sum_reduction_for_comms(True)  # which gloo has, and a scaled one it has not


def own_values(tensor: Tensor) -> Tensor:
    """The part of a tensor that lies here."""
    local: Tensor = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local.detach()


def whole_tensor(tensor: Tensor) -> Tensor:
    """All parts of a tensor; every process has to ask."""
    if not isinstance(tensor, DTensor):
        return tensor
    with torch.no_grad():
        whole: Tensor = tensor.full_tensor()
        return whole


def part_of(whole: Tensor, like: Tensor) -> Tensor:
    """A tensor that every process has, sharded as another is: nothing is sent."""
    if not isinstance(like, DTensor):
        return whole
    return distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=None)
