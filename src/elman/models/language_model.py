"""The language model in which every cell is trained.

Shape legend: b batch, t time, d model width, v vocabulary; bt1 is [B, T + 1].
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from elman.data.tokenizers.tokenizer import Tokenizer
from elman.models import wavefront
from elman.models.blocks import init
from elman.models.blocks.mlp import SwiGLU
from elman.models.blocks.norm import LayerNorm, RMSNorm
from elman.models.cells.common.mixer import Mixer, StreamMixer
from elman.models.inputs import check_ids
from elman.models.state import State, zeroed
from elman.models.wavefront import Flow
from elman.ops.common.precision import compute_dtype, wide_dtype
from elman.ops.common.transforms import transformed
from elman.ops.cross_entropy import chunk_of, mean_in_chunks, nats_in_chunks
from elman.ops.linear import Weights, linear
from elman.sections.tasks import IGNORED

Wrapper = Literal["rms", "legacy_ln"]


class LanguageModel(nn.Module):
    """Token embedding, norm and mixer per layer, final norm, head tied to the embedding.

    See lm-and-training specification 1.1 and 1.2. ``rms`` uses RMSNorm. It holds the sum of all
    mixer outputs in fp32 and adds the last output at the final norm. ``legacy_ln`` uses LayerNorm
    with bias and a residual in the model's compute dtype; parameter counts from before 2026-01-11
    are for this wrapper. A layer with ``own_norms`` has no norm before it: its input is the
    residual stream itself.

    Args:
        dim: Model width.
        layers: Mixers ``(x [B, T, dim], state) -> (y [B, T, dim], state)``.
        wrapper: ``rms`` or ``legacy_ln``.
        vocab_size: Number of tokens; 256 for bytes.
        mlp_widths: Hidden channels of the SwiGLU MLP behind each mixer of ``rms``; 0 is none.
        backend: As ``kernels.backend``, for the norms of ``rms``.
        reset_after: Token after which every layer forgets what came before, so that no document
            sees another: the separator of ``data.reset_at_documents``. None is none.
        device: Device of the embedding and the norms.
        dtype: Their dtype.

    Raises:
        UserError: a layer with its own norms is used with ``legacy_ln``.

    Attributes:
        activation_checkpointing: Recompute each mixer and MLP in the backward pass of a training
            step.
        checks_ids: Read the values of ids that are no bytes, to refuse those outside of the
            vocabulary; on a GPU that waits for it. A trainer's own tokens need no check.
        casts_at_once: Cast all weights at the start of a pass; False where they are not all there.
        time_parts: Parts of the time that pass through the layers side by side, in a pass with
            gradients; see :mod:`elman.models.wavefront`.
        reset_after: As the argument.
        tokenizer: Encodes text for it; None if its tokens are bytes, or nobody said.
    """

    def __init__(
        self,
        dim: int,
        layers: Sequence[nn.Module],
        wrapper: Wrapper = "rms",
        vocab_size: int = 256,
        *,
        mlp_widths: Sequence[int] = (),
        backend: str = "auto",
        reset_after: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.wrapper = wrapper
        self.reset_after = reset_after
        self.tokenizer: Tokenizer | None = None
        self.activation_checkpointing = False
        self.checks_ids = True
        self.casts_at_once = True
        self.time_parts = 1
        self.embedding = nn.Parameter(torch.empty(vocab_size, dim, device=device, dtype=dtype))
        init.normal_(self.embedding)
        norm = partial(RMSNorm, backend=backend) if wrapper == "rms" else LayerNorm
        self.norms = nn.ModuleList(
            nn.Identity()
            if _norms_itself(layer, wrapper)
            else norm(dim, device=device, dtype=dtype)
            for layer in layers
        )
        self.layers = nn.ModuleList(layers)
        self.final_norm = norm(dim, device=device, dtype=dtype)
        assert wrapper == "rms" or not any(mlp_widths), wrapper
        mlp = partial(SwiGLU, dim, backend=backend, device=device, dtype=dtype)
        self.mlps = (
            nn.ModuleList(mlp(width) if width else nn.Identity() for width in mlp_widths)
            if any(mlp_widths)
            else None
        )
        self._weights = Weights()

    def forward(
        self,
        tokens_bt: Tensor,
        states: Sequence[State] | None = None,
        resets_bt: Tensor | None = None,
        *,
        targets_bt: Tensor | None = None,
        each: bool = False,
    ) -> tuple[Tensor, list[State]]:
        """Predict the next token at every position.

        Args:
            tokens_bt: Tokens, any integer dtype, T >= 1.
            states: One state per layer from an earlier call; None starts a sequence.
            resets_bt: True where a row starts a document, besides those that start behind
                ``reset_after``: every layer forgets what came before. None is nowhere.
            targets_bt: The tokens to predict, any integer dtype; the mean loss then replaces the
                logits, which are never whole (:mod:`elman.ops.cross_entropy`). None is none.
            each: Whether the nats of each target take the place of their mean, as a constant.

        Returns:
            Logits [B, T, vocabulary] in the compute dtype, or the loss of :meth:`loss`, or nats
            [B, T] in its dtype, and the states after the last token (the given states if there are
            no tokens).

        Raises:
            ValueError: the tokens are not whole numbers [B, T] of the vocabulary, or the states
                belong to another batch or another model, or the resets are no bool [B, T], or
                there is not one target for each token.
            UserError: a layer cannot take resets.
        """
        check_ids("tokens", tokens_bt, self.embedding.shape[0], values=self.checks_ids)
        if targets_bt is not None and (
            targets_bt.shape != tokens_bt.shape or not tokens_bt.numel()
        ):
            shapes = f"shape {list(targets_bt.shape)} for tokens {list(tokens_bt.shape)}"
            raise ValueError(f"targets: {shapes}, expected one for each token, and a token or more")
        if states is not None and len(states) != len(self.layers):
            expected = f"expected one of each layer, {len(self.layers)}"
            raise ValueError(f"states of the model: {len(states)}, {expected}")
        x_btd = functional.embedding(tokens_bt.long(), self.embedding)
        ended_bt = None if self.reset_after is None else tokens_bt == self.reset_after
        resets_bt = _starts(ended_bt, resets_bt)
        with (
            self._weights.cast(x_btd, hold=self.time_parts > 1)
            if self.casts_at_once
            else nullcontext()
        ):
            given = [None] * len(self.layers) if states is None else states
            x_btd, carried = self._through_layers(x_btd, given, resets_bt)
            if ended_bt is not None and tokens_bt.shape[1]:
                carried = zeroed(carried, ended_bt[:, -1])
            if targets_bt is None:
                return linear(x_btd, self.embedding), carried
            x_nd, targets_n = x_btd.flatten(0, 1), targets_bt.long().flatten()
            chunk = self.chunk_of(len(x_nd)) or len(x_nd)
            if each:
                nats_n = nats_in_chunks(x_nd, self.embedding, targets_n, chunk)
                return nats_n.view_as(targets_bt), carried
            return mean_in_chunks(x_nd, self.embedding, targets_n, chunk), carried

    def loss(
        self,
        tokens_bt1: Tensor,
        states: Sequence[State] | None = None,
        resets_bt: Tensor | None = None,
    ) -> tuple[Tensor, list[State]]:
        """Predict the last T of T + 1 tokens from the tokens before them.

        Args:
            tokens_bt1: Tokens, any integer dtype, T >= 1.
            states: As in :meth:`forward`.
            resets_bt: As in :meth:`forward`, for the first T tokens.

        Returns:
            Mean cross entropy in nats per predicted token, a scalar in fp32 (fp64 for an fp64
            model), and the states after the T-th token.

        Raises:
            ValueError: the tokens are not whole numbers [B, T + 1] of the vocabulary, or no token
                is left to predict; otherwise as in :meth:`forward`.
        """
        check_ids("tokens", tokens_bt1, self.embedding.shape[0], steps=2, values=self.checks_ids)
        if tokens_bt1.shape[0] == 0:
            raise ValueError(
                f"tokens of the loss: shape {list(tokens_bt1.shape)}, expected 1 row or more: "
                "without a predicted token there is no mean loss"
            )
        resets = () if resets_bt is None else (resets_bt,)
        targets_bt = tokens_bt1[:, 1:].long()
        if self.chunk_of(targets_bt.numel()) and not transformed():
            loss, carried = self(tokens_bt1[:, :-1], states, *resets, targets_bt=targets_bt)
            return loss, carried
        logits_btv, carried = self(tokens_bt1[:, :-1], states, *resets)
        wide = logits_btv.to(wide_dtype(logits_btv.dtype))
        return functional.cross_entropy(wide.flatten(0, 1), targets_bt.flatten()), carried

    def answer_loss(
        self,
        tokens_bt: Tensor,
        answers_bt: Tensor,
        states: Sequence[State] | None = None,
    ) -> tuple[Tensor, list[State]]:
        """Predict the answers of a task, each from the tokens up to its own position.

        Args:
            tokens_bt: Tokens, any integer dtype, T >= 1.
            answers_bt: The answer at each position, any integer dtype;
                :data:`~elman.sections.tasks.IGNORED` where there is none.
            states: As in :meth:`forward`.

        Returns:
            Mean cross entropy in nats per answer, a scalar in fp32 (fp64 for an fp64 model), and
            the states after the last token.

        Raises:
            ValueError: as in :meth:`forward`.
        """
        logits_btv, carried = self(tokens_bt, states)
        wide = logits_btv.to(wide_dtype(logits_btv.dtype)).flatten(0, 1)
        targets = answers_bt.long().flatten()
        return functional.cross_entropy(wide, targets, ignore_index=IGNORED), carried

    def chunk_of(self, positions: int) -> int | None:
        """Return how many positions of a loss pass through the head at a time; None is all.

        Args:
            positions: Predicted positions of a pass.
        """
        return chunk_of(positions, len(self.embedding))

    def begin_step(self) -> None:
        """Advance every power iteration once; the trainer calls this once per optimizer step."""
        for module in self.modules():
            if isinstance(module, Mixer) and type(module).begin_step is not Mixer.begin_step:
                with _whole(module, self):
                    module.begin_step()

    def calls_at_once(self, batch: int, dtype: torch.dtype, device: torch.device) -> float:
        """Return how many of its recurrences a device runs at a time, each as fast as alone.

        Args:
            batch: Rows.
            dtype: Dtype of the projections.
            device: The device.
        """
        mixers = [layer for layer in self.layers if isinstance(layer, Mixer)]
        if len(mixers) < len(self.layers):
            return 1
        return min(mixer.calls_at_once(batch, dtype, device) for mixer in mixers)

    def num_params(self) -> int:
        """Return the number of parameters, including frozen ones; the tied head counts once."""
        return sum(parameter.numel() for parameter in self.parameters())

    def _through_layers(
        self, x_btd: Tensor, states: Sequence[State | None], resets_bt: Tensor | None
    ) -> tuple[Tensor, list[State]]:
        """Return the final norm's output and the states after the last step."""
        layers, final_norm, dtype = self._layers_of_wrapper(x_btd)
        x_btd = x_btd.to(dtype)
        if self.time_parts > 1 and torch.is_grad_enabled() and not transformed():
            flows, carried = wavefront.run(layers, x_btd, states, resets_bt, self.time_parts)
            return torch.cat([final_norm(flow) for flow in flows], dim=1), carried
        flow, carried = Flow(x_btd, None), []
        for layer, state in zip(layers, states, strict=True):
            flow, new_state = layer(flow, state, resets_bt)
            carried.append(new_state)
        return final_norm(flow), carried

    def _layers_of_wrapper(
        self, x_btd: Tensor
    ) -> tuple[list[wavefront.Layer], Callable[[Flow], Tensor], torch.dtype]:
        """Return the layers with their norms, the final norm, and the dtype of the stream."""
        if self.wrapper == "rms":
            # A layer's output is added to the stream at the next norm, in the same kernel.
            mlps = self.mlps or [None] * len(self.layers)
            every = zip(self.norms, self.layers, mlps, strict=True)
            rms: list[wavefront.Layer] = [partial(self._rms, *modules) for modules in every]
            return rms, self._rms_end, wide_dtype(x_btd.dtype)
        pairs = zip(self.norms, self.layers, strict=True)
        legacy: list[wavefront.Layer] = [partial(self._legacy, *modules) for modules in pairs]
        return legacy, self._legacy_end, compute_dtype(x_btd, x_btd.dtype)

    def _rms_end(self, flow: Flow) -> Tensor:
        y_btd: Tensor = self.final_norm(*flow)[1]
        return y_btd

    def _legacy_end(self, flow: Flow) -> Tensor:
        y_btd: Tensor = self.final_norm(flow.stream_btd)
        return y_btd

    def _rms(
        self,
        norm: nn.Module,
        layer: nn.Module,
        mlp: nn.Module | None,
        flow: Flow,
        state: State | None,
        resets_bt: Tensor | None,
    ) -> tuple[Flow, State]:
        stream_btd, branch_btd = flow
        if isinstance(layer, StreamMixer) and resets_bt is None and layer.joins_stream():
            advance = self._recomputed(layer.advance)
            stream_btd, branch_btd, new_state = advance(stream_btd, branch_btd, state)
            return Flow(stream_btd, branch_btd), new_state
        if isinstance(norm, RMSNorm):
            stream_btd, x_btd = norm(stream_btd, branch_btd)
        else:
            stream_btd = x_btd = stream_btd if branch_btd is None else stream_btd + branch_btd
        branch_btd, new_state = self._mix(layer, x_btd, state, resets_bt)
        if isinstance(mlp, SwiGLU):
            stream_btd, branch_btd = self._recomputed(mlp)(stream_btd, branch_btd)
        return Flow(stream_btd, branch_btd), new_state

    def _legacy(
        self,
        norm: nn.Module,
        layer: nn.Module,
        flow: Flow,
        state: State | None,
        resets_bt: Tensor | None,
    ) -> tuple[Flow, State]:
        x_btd = flow.stream_btd
        y_btd, new_state = self._mix(layer, norm(x_btd), state, resets_bt)
        return Flow(x_btd + y_btd.to(x_btd.dtype), None), new_state

    def _mix(
        self, layer: nn.Module, x_btd: Tensor, state: State | None, resets_bt: Tensor | None
    ) -> tuple[Tensor, State]:
        # Layers that are no mixers take two arguments.
        given = (x_btd, state) if resets_bt is None else (x_btd, state, resets_bt)
        y_btd, new_state = self._recomputed(layer)(*given)
        return y_btd, new_state

    def _recomputed(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Return a part that the backward pass runs anew if activations are not to be kept."""
        # torch.func's transforms know no recomputation.
        kept = not self.activation_checkpointing or transformed()
        if not kept and self.training and torch.is_grad_enabled():
            return partial(checkpoint, run, use_reentrant=False)
        return run


@contextmanager
def _whole(*modules: Any) -> Iterator[None]:
    """Gather the weights of the first module that PyTorch's FSDP2 has cut into parts, if any.

    A module's own call gathers them; other methods do not.
    """
    cut = next((module for module in modules if hasattr(module, "unshard")), None)
    if cut is not None:
        cut.unshard()
    yield
    if cut is not None:
        cut.reshard()


def _starts(ended_bt: Tensor | None, resets_bt: Tensor | None) -> Tensor | None:
    """Return where documents start: behind the ends of others, and where the caller says.

    The first step of a part is none because of an end: the state behind that is zero already.
    """
    if ended_bt is None or ended_bt.shape[1] < 2:
        return resets_bt
    starts_bt = functional.pad(ended_bt[:, :-1], (1, 0))
    return starts_bt if resets_bt is None else starts_bt | resets_bt


def _norms_itself(layer: nn.Module, wrapper: Wrapper) -> bool:
    """Return whether a layer takes the residual stream; raise UserError if it cannot."""
    if not isinstance(layer, Mixer):
        return False
    layer.cell.check_wrapper(wrapper)
    return layer.cell.own_norms
