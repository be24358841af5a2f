"""A process group of torch.distributed -> TorchProcesses, what training asks of those that train together."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, Final, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from vitrail.checkpoint.safetensors_io import DTYPE_NAMES
from vitrail.errors import InputError, StoppedError, VitrailError
from vitrail.network.vit import ViT
from vitrail.system_calls import is_alive
from vitrail.training.processes import ALONE, Fold, Processes, started_world, using

EXCHANGED: Final = 1 << 22  # values that are exchanged at once: 16 MB, so that memory does not grow with the network
PATIENCE: Final = timedelta(days=2)  # one that works alone may take long; one that died is noticed at once
LAUNCHED: Final = "VITRAIL_LAUNCHED"  # in the environment of processes whose launcher tells who was killed
PEER_LOST: Final = 75  # exit code of a process that ends since another has, where a launcher sees to the rest
MEETING: Final = timedelta(minutes=10)  # until all that were started have begun
TOLD: Final = "vitrail/told"  # a counter of those that wanted to tell an error
_all_gather: Final = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # its name before 2.13


class PeerLostError(VitrailError):
    """Another process of the same training has ended, so this one cannot go on."""


class Peer(NamedTuple):
    """A process of a training, as others name it."""

    rank: int
    host: str
    pid: int

    def __str__(self) -> str:
        return f"rank {self.rank} (process {self.pid} on {self.host})"

    @property
    def is_gone(self) -> bool:
        """Whether it has ended, as far as can be seen from this machine."""
        if self.host != socket.gethostname():
            return False
        try:
            with open(f"/proc/{self.pid}/stat", encoding="utf-8", errors="replace") as file:
                return file.read().rpartition(")")[2].split()[0] in ("Z", "X")  # ended, and its parent not yet told
        except FileNotFoundError:
            return os.path.isdir("/proc/self") or not is_alive(self.pid)
        except OSError:
            return False


class TorchProcesses(Processes):
    """This process among those of torch.distributed's default group."""

    def __init__(self, device: torch.device, store: Store) -> None:
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.local_rank = int(os.environ.get("LOCAL_RANK", self.rank))
        self._on = device  # where tensors lie while they travel
        self._sharding: Any = None  # the module of that name, once a network is sharded
        self._store = store
        mine = json.dumps([socket.gethostname(), os.getpid()])
        self._store.set(f"vitrail/peer/{self.rank}", mine)
        self.peers: tuple[Peer, ...] = ()
        self.barrier()
        named = (json.loads(self._store.get(f"vitrail/peer/{rank}")) for rank in range(self.world))
        self.peers = tuple(Peer(rank, host, pid) for rank, (host, pid) in enumerate(named))

    # ---- what training asks for ----------------------------------------------------------------------------------

    def broadcast(self, value: Any) -> Any:
        text = json.dumps(value, allow_nan=True).encode() if self.is_first else b""
        size = self._first(torch.tensor([len(text)]))
        row = torch.empty(int(size), dtype=torch.uint8)
        if self.is_first:
            row.copy_(torch.frombuffer(bytearray(text), dtype=torch.uint8))
        return json.loads(bytes(self._first(row).numpy()))

    def broadcast_tensors(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        described = [[name, list(each.shape), DTYPE_NAMES[each.dtype]] for name, each in tensors.items()]
        by_name = {name: dtype for dtype, name in DTYPE_NAMES.items()}
        found = {}
        for name, shape, dtype in self.broadcast(described):
            own = tensors[name].detach() if self.is_first else torch.empty(shape, dtype=by_name[dtype])
            found[name] = self._first(own)
        return found

    def copy_first(self, tensors: Mapping[str, Tensor]) -> None:
        for each in tensors.values():
            each.detach().copy_(self._first(each.detach()))

    def all_gather(self, numbers: Sequence[float]) -> list[list[float]]:
        own = torch.tensor([float(each) for each in numbers], dtype=torch.float64).to(self._on)
        everybody = own.new_empty(self.world * len(own))
        with self._exchange():
            _all_gather(everybody, own)
        rows: list[list[float]] = everybody.view(self.world, -1).tolist()
        return rows

    def concatenate(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        found = [rows.new_empty(count, *rows.shape[1:]) for count in counts]
        for rank, count in enumerate(counts):
            if count:
                found[rank] = self._broadcast(rows if rank == self.rank else found[rank], rank)
        return torch.cat(found)

    def sum(self, values: Tensor) -> Tensor:
        for part in values.split(EXCHANGED):
            with self._exchange():
                dist.all_reduce(part)
        return values

    def fold(self, parts: Sequence[Tensor], counts: Sequence[int], fold: Fold) -> Tensor:
        length, width = len(parts[0]), max(1, EXCHANGED // (self.world * max(counts)))
        total = torch.empty_like(parts[0])
        for start in range(0, length, width * self.world):
            stop = min(start + width * self.world, length)
            size = -(-(stop - start) // self.world)  # places that each process folds
            sent = parts[0].new_zeros(self.world, counts[self.rank], size)  # to each its places of all our parts
            for number, part in enumerate(parts):
                places = part[start:stop]
                for rank, piece in enumerate(places.split(size)):
                    sent[rank, number, : len(piece)] = piece
            received = parts[0].new_empty(sum(counts), size)
            with self._exchange():
                dist.all_to_all_single(
                    received.view(-1),
                    sent.view(-1),
                    [count * size for count in counts],
                    [counts[self.rank] * size] * self.world,
                )
                folded = parts[0].new_empty(self.world * size)
                _all_gather(folded, fold(list(received)).contiguous())
            total[start:stop] = folded[: stop - start]
        return total

    def shard(self, model: ViT) -> None:
        from vitrail.scale import sharding  # which takes a second, and only a sharded training needs it

        sharding.shard_network(model, self.world)
        self._sharding = sharding

    def own_values(self, tensor: Tensor) -> Tensor:
        return tensor if self._sharding is None else self._sharding.own_values(tensor)

    def whole(self, tensor: Tensor) -> Tensor:
        with self._exchange():
            return tensor if self._sharding is None else self._sharding.whole_tensor(tensor)

    def part_of(self, whole: Tensor, like: Tensor) -> Tensor:
        return whole if self._sharding is None else self._sharding.part_of(whole, like)

    def barrier(self) -> None:
        self._first(torch.zeros(1))
        self.all_gather([0.0])

    def is_teller(self) -> bool:
        try:
            return bool(self._store.add(TOLD, 1) == 1)
        except RuntimeError:  # the store was the first process's, and ended with it
            return self.is_first

    def device(self, name: str) -> str:
        if name == "auto":
            kind = torch.accelerator.current_accelerator(check_available=True)
            name = "cpu" if kind is None else kind.type
        return name if name == "cpu" or ":" in name else f"{name}:{self.local_rank}"

    # ---- how -----------------------------------------------------------------------------------------------------

    def _first(self, values: Tensor) -> Tensor:
        return self._broadcast(values, 0)

    def _broadcast(self, values: Tensor, rank: int) -> Tensor:
        """One process's values, where they lay; others give tensors of the same shape."""
        moved = values.to(self._on).contiguous()
        with self._exchange():
            dist.broadcast(moved.view(torch.uint8) if moved.dim() else moved, rank)
        return moved.to(values.device)

    @contextmanager
    def _exchange(self) -> Iterator[None]:
        """Whatever is wrong with the others, as one error that names who is gone."""
        try:
            yield
        except RuntimeError as error:
            raise PeerLostError(self._why(error)) from error

    def _why(self, error: RuntimeError) -> str:
        gone: list[Peer] = []
        for _ in range(20):  # who just died may look alive for a moment
            gone = [each for each in self.peers if each.is_gone]
            if gone:
                break
            time.sleep(0.05)
        names = ", ".join(map(str, gone))
        told = f"{names} {'has' if len(gone) == 1 else 'have'} ended" if gone else "another process does not answer"
        why = "" if gone else f" ({str(error).splitlines()[0]:.160})"
        return f"{told}, and the others cannot go on without it{why}; the same command goes on from the last state"


@contextmanager
def joined() -> Iterator[Processes]:
    """Inside, this process trains with those that torchrun, or `vitrail train --processes`, started with it.

    By itself it is the only one, and nothing is set up. What goes wrong in several is told by one of them; the others
    end in silence.
    """
    if started_world() == 1:
        with using(ALONE):
            yield ALONE
        return
    end_with_parent()
    processes = _join()
    try:
        with using(processes):
            yield processes
    except PeerLostError as error:
        if LAUNCHED in os.environ:
            time.sleep(10)  # the launcher has seen it too, and ends this process
            raise SystemExit(PEER_LOST) from error
        time.sleep(2)  # one that ends with an error of its own tells that
        if not processes.is_teller():
            raise SystemExit(1) from error
        raise
    except Exception as error:
        if not processes.is_teller():
            raise SystemExit(code_of(error)) from error
        raise
    with suppress(RuntimeError):
        dist.destroy_process_group()


def code_of(error: Exception) -> int:
    """The exit code of a command that ends with an error."""
    if isinstance(error, StoppedError):
        return 128 + error.number
    return 2 if isinstance(error, VitrailError) else 1


def end_with_parent() -> None:
    """End when the agent ends that started this process, however that comes: nobody else would end it."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.1)
        os._exit(PEER_LOST)

    threading.Thread(target=watch, name="vitrail-parent", daemon=True).start()


def _join() -> TorchProcesses:
    """The process group that the environment describes."""
    has_cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if has_cuda else torch.device("cpu")
    if has_cuda:
        torch.cuda.set_device(device)
    try:
        store, rank, world = next(iter(rendezvous("env://", timeout=MEETING)))
        # An agent that starts processes again keeps its store, with the addresses of those that ended.
        store = PrefixStore(f"vitrail/attempt/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
        backend = "cpu:gloo,cuda:nccl" if has_cuda else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=PATIENCE)
    except (RuntimeError, ValueError, KeyError) as error:
        raise InputError(
            f"the {started_world()} processes that were started together do not find each other: "
            f"{str(error).splitlines()[0]:.200}; start them by torchrun or `vitrail train --processes N`"
        ) from error
    processes = TorchProcesses(torch.device("cpu"), store)
    torch.set_num_threads(processes.broadcast(torch.get_num_threads()))  # others round differently
    return processes
