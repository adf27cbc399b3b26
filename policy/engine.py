"""DeepSpeed engines as the trainer uses them: one process or many, ZeRO 0-3, CPU or CUDA. The only file that imports deepspeed at length.

Settled here, with the reason:
- `managed_gradient_accumulation: false`: `step()` is the boundary, so a step may have any number of micro-batches.
- `gradient_clipping` always given: its default changed from 0 to 1 within 0.19.x.
- `backward(loss, scale_wrt_gas=False)`: the loss already carries 1 / N.
- torch's AdamW: DeepSpeed's own CPU Adam is compiled for 46 s at first use.
- no compiled operators at all: `initialize` would otherwise probe compilers and build a shared-memory all-reduce (27-80 s on a CPU).
"""

from __future__ import annotations

import atexit
import dataclasses
import logging
import os
import pathlib
import random
import sys

import numpy as np
import torch
import torch.distributed as dist


@dataclasses.dataclass(frozen=True, kw_only=True)
class World:
    rank: int
    size: int
    device: torch.device

    def gather(self, value) -> list:
        """What every rank passed, in the order of ranks; small objects."""
        if self.size == 1:
            return [value]
        everything = [None] * self.size
        dist.all_gather_object(everything, value)
        return everything

    def wait(self) -> None:
        if self.size > 1:
            dist.barrier()


def launch(device: str = "auto") -> World:
    """Join the process group: the launcher's (torchrun, deepspeed) where RANK and WORLD_SIZE say so, else a group of one without a port.

    May be called again, with the same type of device. Raises ValueError otherwise, and when CUDA is asked for and absent.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"device: got {device!r} on a machine without CUDA, wanted cpu")
    os.environ.setdefault("DS_ACCELERATOR", device.split(":")[0])
    os.environ.setdefault("LOCAL_RANK", "0")
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    _import_deepspeed()
    import deepspeed
    import deepspeed.ops

    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    deepspeed.ops.__compatible_ops__ = {}
    began = deepspeed.accelerator.get_accelerator()._name
    if began != device.split(":")[0]:
        raise ValueError(f"device: got {device!r} in a process where DeepSpeed runs on {began!r}, wanted that (one device type a process)")
    place = torch.device("cpu")
    if device.startswith("cuda"):
        place = torch.device(device if ":" in device else f"cuda:{os.environ['LOCAL_RANK']}")
        torch.cuda.set_device(place)
        os.environ["LOCAL_RANK"] = str(place.index)  # DeepSpeed takes its device from here
    if not dist.is_initialized():
        backend = "nccl" if place.type == "cuda" else "gloo"
        # NCCL warns of a device that it has to guess, and of a group that nobody destroyed
        bound = place if place.type == "cuda" else None
        if {"RANK", "WORLD_SIZE"} <= os.environ.keys():
            dist.init_process_group(backend, device_id=bound)
        else:
            dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1, device_id=bound)
        atexit.register(_leave)
    deepspeed.init_distributed(dist_backend=dist.get_backend(), auto_mpi_discovery=False, verbose=False)
    return World(rank=dist.get_rank(), size=dist.get_world_size(), device=place)


def _leave() -> None:
    """Destroy the process group at the interpreter's end, unless somebody has."""
    if dist.is_initialized():
        dist.destroy_process_group()


def _import_deepspeed() -> None:
    """Import deepspeed without mlflow, which its autotuner would load for 1.2 s wherever it is installed."""
    hide = "mlflow" not in sys.modules
    if hide:
        sys.modules["mlflow"] = None
    try:
        import deepspeed  # noqa: F401
    finally:
        if hide:
            del sys.modules["mlflow"]


def initialize(
    module: torch.nn.Module,
    *,
    lr: float,
    zero_stage: int = 1,
    bf16: bool = False,
    clip: float = 1.0,
    weight_decay: float = 0.0,
    betas=(0.9, 0.95),
):
    """A DeepSpeed engine around `module`, AdamW, parameters already on their device or moved there."""
    import deepspeed

    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "managed_gradient_accumulation": False,
        "gradient_clipping": clip,
        "zero_optimization": {"stage": zero_stage},
        "zero_allow_untested_optimizer": True,
        "bf16": {"enabled": bf16},
        "optimizer": {
            "type": "AdamW",
            "params": {"lr": lr, "betas": list(betas), "eps": 1e-8, "weight_decay": weight_decay, "torch_adam": True},
        },
        "steps_per_print": 1 << 30,
    }
    engine, *_ = deepspeed.initialize(model=module, model_parameters=[p for p in module.parameters() if p.requires_grad], config=config)
    return engine


def step(engine, lr: float) -> float:
    """Clip, update, clear; returns the gradient norm before clipping. Raises FloatingPointError when that is not finite."""
    for group in engine.optimizer.param_groups:
        group["lr"] = lr
    norms = []
    if engine.zero_optimization_stage() == 0 and not engine.bfloat16_enabled():

        def clip() -> None:  # DeepSpeed's own, at stage 0 in fp32, steps on anything and reports no norm
            norms.append(torch.nn.utils.clip_grad_norm_(engine.module.parameters(), engine.gradient_clipping()))
            if not torch.isfinite(norms[0]):
                engine.module.zero_grad(set_to_none=True)

        engine.clip_fp32_gradients = clip
    engine.step()
    norm = norms[0] if norms else engine.get_global_grad_norm()
    norm = float("nan") if norm is None else float(norm)
    if not np.isfinite(norm):
        raise FloatingPointError(f"gradient norm: got {norm}, wanted a finite number; nothing of this step is kept")
    return norm


def save(engines: dict, folder: pathlib.Path, world: World) -> None:
    """All engines and this rank's random states below `folder`, which appears at once, by rename, when every rank is done."""
    partial = folder.with_name(folder.name + ".partial")
    for name, engine in engines.items():
        engine.save_checkpoint(str(partial), tag=name, save_latest=False)
    states = {"torch": torch.get_rng_state(), "numpy": np.random.get_state(), "python": random.getstate()}
    if world.device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(world.device)
    torch.save(states, partial / f"random-{world.rank}.pt")
    world.wait()
    if world.rank == 0:
        partial.rename(folder)
    world.wait()


def load(engines: dict, folder: pathlib.Path, world: World) -> None:
    """Inverse of `save`, bit for bit, for the same number of ranks."""
    for name, engine in engines.items():
        engine.load_checkpoint(str(folder), tag=name)
    states = torch.load(folder / f"random-{world.rank}.pt", weights_only=False)
    torch.set_rng_state(states["torch"])
    np.random.set_state(states["numpy"])
    random.setstate(states["python"])
    if "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], world.device)


def whole(engine):
    """Context in which the module's parameters are whole on every rank (ZeRO-3 shards them)."""
    import contextlib

    import deepspeed

    if engine.zero_optimization_stage() < 3:
        return contextlib.nullcontext()
    return deepspeed.zero.GatheredParameters(list(engine.module.parameters()))
