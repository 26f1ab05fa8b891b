"""The device, the precision and the processes of a training run: one `Accelerator`.

Called by `loop`. The choice is explicit and logged; nothing here is decided by a library's default.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState

from greenroom.errors import ConfigError
from greenroom.specs import Profile, TrainingSpec
from greenroom.training.batches import COMPILED_MULTIPLE

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Hardware:
    """What one training process runs on."""

    accelerator: str  # cpu, gpu, hpu
    precision: str  # fp32, bf16, fp16
    micro_batch_size: int  # examples a forward pass
    accumulation: int  # forward passes an optimiser step
    length_multiple: int  # padded lengths are multiples of this


# Examples a forward pass where the experiment does not say: what fits the smallest device in use.
_MICRO = {"cpu": 32, "gpu": 64, "hpu": 64}


def available() -> tuple[str, ...]:
    """The accelerators of this machine, best first."""
    found = ["cpu"]
    if torch.cuda.is_available():
        found.insert(0, "gpu")
    if hasattr(torch, "hpu") and torch.hpu.is_available():
        found.insert(0, "hpu")
    return tuple(found)


def processes() -> int:
    """How many processes train together: what torchrun or `accelerate launch` started."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def choose(profile: Profile, spec: TrainingSpec, processes: int = 1, examples: int = 0) -> Hardware:
    """The hardware that `profile` and `spec` ask for; `ConfigError` where it is not here."""
    here = available()
    accelerator = profile.accelerator or here[0]
    if accelerator not in here:
        raise ConfigError(
            f"hardware {profile.name}: this machine has no {accelerator}; it has: {', '.join(here)}"
        )
    precision = _precision(accelerator, spec.precision)
    # A batch larger than the data holds the data once.
    batch = min(spec.batch_size, examples) if examples else spec.batch_size
    share = -(-batch // processes)
    micro = min(spec.micro_batch_size or _MICRO[accelerator], share)
    return Hardware(
        accelerator,
        precision,
        micro,
        -(-share // micro),
        COMPILED_MULTIPLE if accelerator == "hpu" else 1,
    )


def _precision(accelerator: str, asked: str) -> str:
    """fp32 unless the device computes bfloat16 natively: emulated, it is slower than fp32."""
    if asked == "fp16" and accelerator != "gpu":
        raise ConfigError(f"training.precision: fp16 needs a gpu, not {accelerator}; use bf16")
    if asked != "auto":
        return asked
    native = {
        "cpu": lambda: torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported(),
        "gpu": lambda: torch.cuda.is_bf16_supported(including_emulation=False),
        "hpu": lambda: True,
    }
    return "bf16" if native[accelerator]() else "fp32"


def make(hardware: Hardware) -> Accelerator:
    """The `Accelerator` of this process."""
    log.info(
        "training on %s in %s, micro-batches of %d, %d an optimiser step",
        hardware.accelerator,
        hardware.precision,
        hardware.micro_batch_size,
        hardware.accumulation,
    )
    # One state a process, made by its first Accelerator: another precision would be refused.
    AcceleratorState._reset_state()
    return Accelerator(
        cpu=hardware.accelerator == "cpu",
        mixed_precision="no" if hardware.precision == "fp32" else hardware.precision,
        gradient_accumulation_steps=hardware.accumulation,
    )
