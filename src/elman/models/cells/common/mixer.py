"""The base of every layer: options, checked by the cell's declaration, and a choice of backend."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from elman.base.errors import UserError
from elman.kernels.uncompiled import traced_as_constant
from elman.models.backends import calls_package, check_backend, choose_backend, norm_backend
from elman.models.blocks.conv import CausalConv
from elman.models.cells.declaration import Cell, Value
from elman.models.inputs import check_layer_input
from elman.models.state import CarriedState, State, check_state
from elman.ops.common.checks import Shape, check_resets
from elman.ops.common.precision import compute_dtype
from elman.ops.matrix_state.plan import Plan


class Settings:
    """The checked and complete options of one layer, read by type."""

    def __init__(self, values: Mapping[str, Value]) -> None:
        self.values = dict(values)

    def flag(self, name: str) -> bool:
        """Return a true-or-false option."""
        value = self.values[name]
        assert isinstance(value, bool)
        return value

    def count(self, name: str) -> int:
        """Return a whole-number option."""
        value = self.values[name]
        assert type(value) is int
        return value

    def number(self, name: str) -> float:
        """Return a real-number option."""
        value = self.values[name]
        assert isinstance(value, float)
        return value

    def word(self, name: str) -> str:
        """Return a string option."""
        value = self.values[name]
        assert isinstance(value, str)
        return value


@dataclass(frozen=True)
class TextLayer:
    """What a kernel that writes text reads of a layer: a product, a recurrence, a product.

    Args:
        plan: The recurrence.
        in_proj: Matrix of its sources.
        out_proj: Matrix of its output.
        parameters: The plan's parameters by name.
        conv: Convolution of the first channels behind ``in_proj``; None without one.
        cell_proj: Matrix of the sources where another product stands behind ``in_proj``; else None.
        activated: Whether silu stands between the two.
    """

    plan: Plan
    in_proj: Tensor
    out_proj: Tensor
    parameters: Mapping[str, Tensor]
    conv: CausalConv | None
    cell_proj: Tensor | None = None
    activated: bool = True


class Mixer(nn.Module):
    """A layer ``(x [B, T, dim], state) -> (y [B, T, dim], state)`` of one cell.

    Args:
        dim: Model width, at least 1.
        backend: As ``kernels.backend``; for a cell of a package ``triton`` is the package and
            ``reference`` plain PyTorch.
        device: Where the weights are made.
        dtype: Their dtype.
        options: The cell's options; missing ones have the declared defaults. An option that has no
            effect with the others is refused, even at its default.

    Raises:
        UserError: an option or the backend is unknown or wrong, or does not fit the others.
    """

    cell: ClassVar[Cell]
    exchanges: ClassVar[bool] = False
    """Whether the layers of a model give each other tensors of a call, beside the stream."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "cell" in vars(cls):
            cls.__signature__ = _signature(cls.cell)  # type: ignore[attr-defined]
        if "forward" in vars(cls):
            cls.forward = _checked(cls.forward)  # type: ignore[method-assign]

    def __init__(
        self,
        dim: int,
        *,
        backend: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options: Value,
    ) -> None:
        super().__init__()
        if type(dim) is not int or dim < 1:
            raise UserError(f"dim={dim}: expected a whole number of at least 1, as in dim=512")
        self.dim = dim
        self.settings = Settings(self.cell.parse_options(dim, options, named=frozenset(options)))
        self.runnable = self.cell.under(self.settings.values)
        self.backend = check_backend(self.runnable, backend)
        self.cell.check_request(backend, dim, self.settings.values)
        self._chosen: dict[tuple[str, str], str] = {}
        self._shapes: dict[str, Shape] | None = None
        self.add_parameters({"device": device, "dtype": dtype})

    def add_parameters(self, to: dict[str, Any]) -> None:
        """Register all parameters; ``to`` has device and dtype. (Or a layer's own constructor.)"""

    def reset_parameters(self) -> None:
        """Draw every weight anew from torch's global generator."""
        raise NotImplementedError

    def forward(
        self, x_btd: Tensor, state: State | None = None, resets_bt: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Continue the sequence.

        Args:
            x_btd: Normed input; for a cell with ``own_norms`` the residual stream itself.
            state: The state that the previous call returned; None starts a sequence.
            resets_bt: True where a row starts a document: the state before that step is zero, and
                no gradient flows from it to earlier steps. None is nowhere.

        Returns:
            The output, in the dtype of the projections (with ``own_norms`` of the stream), and the
            state after the last step. Without steps this is the given or the first state.

        Raises:
            ValueError: ``x_btd`` has another shape or no floating dtype, or the state belongs to
                another batch or another layer, or the resets are no bool [B, T] beside it. These
                checks run before every layer's ``forward``.
            UserError: the layer cannot take resets.
        """
        raise NotImplementedError

    def state_shapes(self) -> dict[str, Shape]:
        """Return the shape of each part of the state without the batch; None means any length."""
        raise NotImplementedError

    def projection(self) -> Tensor:
        """Return a weight that has the dtype of the projections."""
        return next(self.parameters())

    def begin(self, x_btd: Tensor, state: State | None) -> State:
        """Return the checked state before the first step; an empty one at the start.

        Raises:
            ValueError: it belongs to another batch or another layer.
        """
        if state is None or state == {}:
            return {}
        dtype = compute_dtype(x_btd, self.projection().dtype)
        check_state(type(self).__name__, state, self._known_shapes(), x_btd, dtype)
        return state

    def check_resets(self, resets_bt: Tensor, x_btd: Tensor, takes_resets: bool) -> None:
        """Raise the errors of ``forward`` for its resets.

        Args:
            resets_bt: Where documents start.
            x_btd: The input.
            takes_resets: Whether the layer's own ``forward`` has the argument.
        """
        name = type(self).__name__
        self.cell.check_resets(self.settings.values, "resets_bt", "use resets_bt=None")
        if not takes_resets:
            raise UserError(
                f"resets_bt: {name}.forward does not take it; add resets_bt to its arguments, or "
                "use resets_bt=None"
            )
        check_resets(name, resets_bt, x_btd)

    def _known_shapes(self) -> dict[str, Shape]:
        # The shapes depend only on the options, which do not change, so they are cached. A
        # compiler would guard the cache, so it is not used there.
        if torch.compiler.is_compiling():
            return self.state_shapes()
        if self._shapes is None:
            self._shapes = self.state_shapes()
        return self._shapes

    def applied_decay(
        self, x_btd: Tensor, state: State | None = None, resets_bt: Tensor | None = None
    ) -> Tensor | None:
        """Return the factors by which the steps multiply the old state before they write.

        A cell that has no such factor does not have the method: then the answer is None.

        Args:
            x_btd: As ``forward``.
            state: As ``forward``.
            resets_bt: As ``forward``.

        Returns:
            Factors [B or 1, T or 1, heads, ...] in fp32 or wider. Axes behind the heads are
            channels of a head; a cell without heads has one.
        """
        return None

    def place(self, index: int, layers: Sequence[nn.Module]) -> None:
        """Learn that this is layer ``index`` of ``layers``; to most cells all are equal."""

    def text_layer(self) -> TextLayer | None:
        """Return what a kernel of whole steps reads of this layer; None if it cannot take it."""
        return None

    def begin_step(self) -> None:
        """Advance the power iterations, once per optimizer step; most cells have none."""

    def bound_recurrence(self) -> None:
        """Scale weights so that states do not grow: a check draws them at random.

        For cells that begin at the edge, where random weights grow without bound over time; there
        any two correct codes differ as much as they like. Most cells need nothing.
        """

    def backend_for(self, x_btd: Tensor) -> str:
        """Return the backend that runs this call."""
        return self._backend_on(x_btd.device.type)

    @traced_as_constant
    def _backend_on(self, device_type: str) -> str:
        key = self.backend, device_type
        if key not in self._chosen:
            self._chosen[key] = choose_backend(self.runnable, *key)
        return self._chosen[key]

    def calls_at_once(self, batch: int, dtype: torch.dtype, device: torch.device) -> float:
        """Return how many calls of this layer a device runs at a time, each as fast as alone.

        Args:
            batch: Rows of a call.
            dtype: Dtype of the projections.
            device: The device.

        Returns:
            The number, below 1 if the device has no room for all of a call; 1 if it is not known.
        """
        return 1

    def kernels_beside(self, backend: str, x_btd: Tensor) -> str:
        """Return the backend for what stands around a package's kernels.

        Args:
            backend: The backend that runs this call.
            x_btd: Its input.
        """
        return self._own_kernels(x_btd.device.type) if calls_package(backend) else backend

    @traced_as_constant
    def _own_kernels(self, device_type: str) -> str:
        return norm_backend(self.backend, device_type)

    def extra_repr(self) -> str:
        """Return the options that differ from their defaults, for printing."""
        options = self.cell.options
        changed = (
            f"{name}={value}"
            for name, value in self.settings.values.items()
            if value != options[name].default
        )
        return ", ".join((str(self.dim), *changed))


class StreamMixer(Mixer):
    """A layer with norms of its own (``Cell.own_norms``) that knows the residual stream.

    Every addition to the stream is then part of a norm. Without this, each would be a pass over
    fp32 numbers by itself, beside casts.
    """

    fused: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # Whoever changes only one of the two means it for every call.
        if "forward" in vars(cls) or "advance" in vars(cls):
            cls.fused = "advance" in vars(cls)

    def joins_stream(self) -> bool:
        """Return whether :meth:`advance` may stand in for a call of the layer.

        It may not where anything hangs on the call: hooks, FSDP's gathering of the weights among
        them, a replaced ``forward``, or a compiled call. The sums of the stream are then rounded
        in another order.
        """
        return self.fused and not _is_called_for(self)

    def advance(
        self, stream_btd: Tensor, branch_btd: Tensor | None, state: State | None = None
    ) -> tuple[Tensor, Tensor, State]:
        """Continue the sequence on the residual stream.

        Args:
            stream_btd: The stream, fp32 or wider.
            branch_btd: What the layer before adds to it; None adds nothing.
            state: The state that the previous call returned; None starts a sequence.

        Returns:
            The stream, what is yet to be added to it, and the state after the last step. The sum
            of the first two is that of the stream, the branch, and ``forward`` of both together.
        """
        raise NotImplementedError


def _is_called_for(module: nn.Module) -> bool:
    """Return whether a module's call does more than its class's ``forward``."""
    own = (
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or module._compiled_call_impl is not None
        or "forward" in vars(module)
    )
    return bool(own) or (not torch.compiler.is_compiling() and _has_any_global_hook())


def _checked(
    forward: Callable[..., tuple[Tensor, State]],
) -> Callable[..., tuple[Tensor, State]]:
    """Return a layer's ``forward`` with a check of its input; its state can be copied."""
    takes_resets = "resets_bt" in inspect.signature(forward).parameters

    @wraps(forward)
    def checked(
        self: Mixer, x_btd: Tensor, state: State | None = None, resets_bt: Tensor | None = None
    ) -> tuple[Tensor, State]:
        check_layer_input(type(self).__name__, x_btd, self.dim)
        if resets_bt is None:
            y_btd, carried = forward(self, x_btd, state)
        else:
            self.check_resets(resets_bt, x_btd, takes_resets)
            y_btd, carried = forward(self, x_btd, state, resets_bt)
        return y_btd, copyable(carried)

    return checked


def copyable(carried: State) -> State:
    """Return a state that can be copied; a compiler cannot trace its class."""
    return carried if torch.compiler.is_compiling() else CarriedState(carried)


def _signature(cell: Cell) -> inspect.Signature:
    """Return the constructor's signature with all of the cell's options, for help()."""
    keyword = inspect.Parameter.KEYWORD_ONLY
    options = [
        inspect.Parameter(name, keyword, default=option.default, annotation=type(option.default))
        for name, option in cell.options.items()
    ]
    return inspect.Signature(
        [
            inspect.Parameter("dim", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=int),
            *options,
            inspect.Parameter("backend", keyword, default="auto", annotation=str),
            inspect.Parameter(
                "device", keyword, default=None, annotation=torch.device | str | None
            ),
            inspect.Parameter("dtype", keyword, default=None, annotation=torch.dtype | None),
        ]
    )
