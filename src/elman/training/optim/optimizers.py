"""Four optimizers behind one interface: a masked step, a rate, weights to train and to save."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from elman.models.backends import norm_backend
from elman.sections.optim import LegacyConfig, MuonConfig, OptimConfig, ScheduleFreeConfig
from elman.training.optim.eager import AdamW
from elman.training.optim.muon import Muon, Precision, fast_precision
from elman.training.optim.schedule_free import MaskedScheduleFree
from elman.training.optim.schedules import learning_rate


class TrainingOptimizer:
    """An optimizer whose step can be masked on the device.

    Weight decay acts on matrices only (with ``legacy`` on everything, as the legacy runs did). A
    parameter with two axes that is not meant as a matrix has ``no_weight_decay = True``.

    Args:
        config: Group ``optim``.
        model: The model to train, which stays where it is.
        backend: As ``kernels.backend``, for the schedule-free update, which is one kernel on an
            NVIDIA GPU, and for Muon, which is one on a CPU. Elsewhere they are PyTorch's
            operations, as :func:`~elman.models.backends.norm_backend` decides. The other optimizers
            are PyTorch's own.

    Attributes:
        warmup_progress: Share of the budget used when the warm-up ended; None before that.

    Raises:
        UserError: ``cuda`` is requested by name and its kernels cannot run on the model's GPU.
    """

    def __init__(self, config: OptimConfig, model: nn.Module, backend: str = "auto") -> None:
        self.config = config
        self.warmup_progress: float | None = None
        self._precision_before: Precision | None = None
        matrices = _layer_matrices(model) if isinstance(config, MuonConfig) else []
        self._matrices = (
            _build_muon(config, matrices, backend) if isinstance(config, MuonConfig) else None
        )
        self._optimizer = _build(config, model, {id(matrix) for matrix in matrices}, backend)

    @property
    def replayable(self) -> bool:
        """Whether a step needs nothing of the host, so that a CUDA graph can replay it."""
        return isinstance(self._optimizer, MaskedScheduleFree)

    @property
    def keeps_average(self) -> bool:
        """Whether the weights to save differ from the weights that are trained."""
        return isinstance(self.config, ScheduleFreeConfig)

    @property
    def in_a_kernel(self) -> bool:
        """Whether a kernel of elman's updates the weights, not PyTorch's operations."""
        optimizer = self._optimizer
        return isinstance(optimizer, MaskedScheduleFree) and optimizer.backend == "cuda"

    @property
    def matrix_precision(self) -> Precision | None:
        """Precision of Muon's products; None for the other optimizers."""
        return None if self._matrices is None else self._matrices.precision

    def precision_note(self, device: torch.device) -> str | None:
        """Say what a resumed run does about its precision that a person should know.

        Args:
            device: Where the model lives.
        """
        now, before, fast = self.matrix_precision, self._precision_before, fast_precision(device)
        if before is None or now is None or not isinstance(self.config, MuonConfig):
            return None
        if now != before:
            return f"optim.matrix_precision: Muon multiplies in {now} from here on, {before} before"
        if now != fast and self.config.matrix_precision == "auto":
            return (
                f"Muon multiplies in {now}, as this run began; a new run here has {fast}, and "
                f"optim.matrix_precision={fast} changes this one"
            )
        return None

    def zero_grad(self) -> None:
        """Drop the gradients."""
        self._optimizer.zero_grad(set_to_none=True)
        if self._matrices is not None:
            self._matrices.zero_grad(set_to_none=True)

    def set_rate(self, step: int, progress: float) -> float:
        """Set and return the learning rate of step ``step`` at ``progress`` of the budget."""
        config = self.config
        if step >= config.warmup_steps and self.warmup_progress is None:
            self.warmup_progress = progress
        rate = learning_rate(config, step, progress, self.warmup_progress or 0.0)
        if isinstance(config, ScheduleFreeConfig):
            return rate  # the library sets it by itself
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        if self._matrices is not None and isinstance(config, MuonConfig):
            for group in self._matrices.param_groups:
                group["lr"] = rate * config.matrix_lr / config.lr
        return rate

    def prepare(self, device: torch.device) -> None:
        """Compile what the update needs on a device, before the clock starts."""
        if isinstance(self._optimizer, MaskedScheduleFree):
            self._optimizer.prepare(device)
        if self._matrices is not None:
            self._matrices.prepare()

    def clip(self, parameters: Iterable[nn.Parameter], limit: float) -> Tensor:
        """Clip the gradients for the next :meth:`step`; return their norm before that.

        The schedule-free update multiplies the gradients while it reads them; otherwise this does.

        Args:
            parameters: Those whose gradients count.
            limit: Largest norm; infinity clips nothing.
        """
        if isinstance(self._optimizer, MaskedScheduleFree):
            return self._optimizer.clip(parameters, limit)
        return nn.utils.clip_grad_norm_(parameters, limit)

    def step(self, blocked: Tensor) -> None:
        """Apply the update unless ``blocked`` (a boolean scalar on the device) is true.

        The fused AdamW kernels and the schedule-free update read the flag on the device, so the
        host does not wait. Muon has no such argument, so for it the host reads the flag.
        """
        if isinstance(self._optimizer, MaskedScheduleFree):
            self._optimizer.masked_step(blocked)
            return
        if self._matrices is not None and not bool(blocked):
            self._matrices.step()
        self._optimizer.found_inf = blocked.to(torch.float32)  # type: ignore[attr-defined]
        self._optimizer.grad_scale = None  # type: ignore[attr-defined]
        self._optimizer.step()

    @contextmanager
    def kept_weights(self) -> Iterator[None]:
        """Inside this context the model holds the weights to evaluate and to save.

        Afterwards the trained weights are restored bit for bit; the library's own inverse rounds.
        """
        if not isinstance(self._optimizer, MaskedScheduleFree):
            yield
            return
        parameters = [p for group in self._optimizer.param_groups for p in group["params"]]
        trained = [parameter.detach().clone() for parameter in parameters]
        try:
            self._optimizer.eval()
            yield
        finally:
            self._optimizer.train()
            with torch.no_grad():
                for parameter, value in zip(parameters, trained, strict=True):
                    parameter.copy_(value)

    def moments(self) -> list[Tensor]:
        """Return every tensor of the optimizers' states, in a fixed order."""
        optimizers = [self._optimizer] + ([self._matrices] if self._matrices is not None else [])
        states = [
            optimizer.state[parameter]
            for optimizer in optimizers
            for group in optimizer.param_groups
            for parameter in group["params"]
        ]
        return [value for state in states for value in state.values() if torch.is_tensor(value)]

    def state_dict(self) -> dict[str, Any]:
        """Return everything that the next step depends on, except the weights."""
        return {
            "optimizer": self._optimizer.state_dict(),
            "matrices": None if self._matrices is None else self._matrices.state_dict(),
            "warmup_progress": self.warmup_progress,
            "matrix_precision": self.matrix_precision,
        }

    def load_state_dict(self, state: dict[str, Any], *, sharded: bool = False) -> None:
        """Continue from ``state``; hyperparameters come from the current configuration.

        Args:
            state: A :meth:`state_dict` with whole tensors.
            sharded: Whether this rank holds only parts of the weights.
        """
        _load(self._optimizer, state["optimizer"], sharded)
        if self._matrices is not None:
            _load(self._matrices, state["matrices"], sharded)
            self._keep_precision(state)
        if isinstance(self.config, ScheduleFreeConfig):
            for group in self._optimizer.param_groups:
                group["lr"] = self.config.lr
        self.warmup_progress = state["warmup_progress"]

    def _keep_precision(self, state: dict[str, Any]) -> None:
        """Go on in the precision that a run began with, unless a setting names another."""
        assert self._matrices is not None
        assert isinstance(self.config, MuonConfig)
        # Checkpoints that do not name it are older than the choice: torch's Muon has bf16 alone.
        before: Precision = state.get("matrix_precision") or "bf16"
        self._precision_before = before
        if self.config.matrix_precision == "auto":
            self._matrices.precision = before


def _load(optimizer: torch.optim.Optimizer, state: dict[str, Any], sharded: bool) -> None:
    """Load moments and counts; the settings stay those of the current configuration."""
    if sharded:
        from elman.distributed.sharding import cut_like  # the import takes time

        state = cut_like(state, optimizer)
    present = [dict(group) for group in optimizer.param_groups]
    optimizer.load_state_dict(state)
    for group, settings in zip(optimizer.param_groups, present, strict=True):
        for key in ("betas", "eps", "weight_decay", "warmup_steps", "momentum"):
            if key in settings:
                group[key] = settings[key]


def _layer_matrices(model: nn.Module) -> list[nn.Parameter]:
    """Return the matrices of the layers: all decayed parameters except the tied embedding."""
    embedding = getattr(model, "embedding", None)
    return [p for p in model.parameters() if _decays(p) and p is not embedding]


def _decays(parameter: nn.Parameter) -> bool:
    is_matrix = parameter.ndim == 2 and not getattr(parameter, "no_weight_decay", False)
    return parameter.requires_grad and is_matrix


def _build_muon(config: MuonConfig, matrices: list[nn.Parameter], backend: str) -> Muon:
    precision, device = config.matrix_precision, matrices[0].device
    return Muon(
        matrices,
        fast_precision(device) if precision == "auto" else precision,
        norm_backend(backend, device.type),
        lr=config.matrix_lr,
        weight_decay=config.weight_decay,
        momentum=config.momentum,
    )


def _build(
    config: OptimConfig, model: nn.Module, elsewhere: set[int], backend: str
) -> torch.optim.Optimizer:
    betas = (config.beta1, config.beta2)
    if isinstance(config, LegacyConfig):
        parameters = [p for p in model.parameters() if p.requires_grad]
        return AdamW(parameters, config.lr, betas, config.eps, config.weight_decay, fused=True)
    groups = _decay_groups(config.weight_decay, model, elsewhere)
    if isinstance(config, ScheduleFreeConfig):
        device = groups[0]["params"][0].device
        optimizer = MaskedScheduleFree(
            groups,
            backend=norm_backend(backend, device.type),
            lr=config.lr,
            betas=betas,
            eps=config.eps,
            warmup_steps=config.warmup_steps,
        )
        optimizer.train()
        return optimizer
    return AdamW(groups, config.lr, betas, config.eps, fused=True)


def _decay_groups(
    weight_decay: float, model: nn.Module, elsewhere: set[int]
) -> list[dict[str, Any]]:
    decayed: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for parameter in model.parameters():
        if parameter.requires_grad and id(parameter) not in elsewhere:
            (decayed if _decays(parameter) else others).append(parameter)
    groups = [
        {"params": decayed, "weight_decay": weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]
