"""Layers GRU and LSTM: PyTorch's own networks between two projections.

Shape legend: b batch, t time, d model width, i = int(d * expansion) channels of the state; 1bi is
[1, B, i], one layer and direction of the network; k rows of the gates, 3 i of a GRU, 4 i of an
LSTM.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from elman.kernels.uncompiled import uncompiled
from elman.models.blocks import init
from elman.models.cells.common.skeleton import Skeleton
from elman.models.cells.torch import gru, lstm
from elman.models.state import State, first_state
from elman.ops.column_sum.op import bias_of_parts, biased_linear
from elman.ops.common.checks import Shape, empty_results, is_empty
from elman.ops.common.native import ENGINE_DTYPES
from elman.ops.common.precision import no_autocast, wide_dtype
from elman.ops.common.scan import states_before
from elman.ops.dense.op import dense_recurrence
from elman.ops.fp16_range import in_fp16
from elman.ops.linear import linear, narrow

# Weights that are cast for one call are never in one buffer, and joining them costs very little.
warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous")


class TorchRNN(Skeleton):
    """y = W_out network(W_in x) (lm-and-training specification 5.4, wrapper of 5.0).

    W_out starts at zero, so every block starts as the identity. The network's matrices, with
    stacked gates, start orthogonal. Its biases, two per gate, start at zero. The network and the
    state between two steps have the dtype of the projections, or on a GPU fp16 in place of bf16:
    cuDNN's persistent kernels, which take a quarter of the time, know no bf16.

    Attributes:
        network: The class of PyTorch's network.
        parts: Names of the state's parts, each [B, i], in the network's order, returned in fp32 or
            wider.
    """

    network: ClassVar[type[nn.GRU] | type[nn.LSTM]]
    parts: ClassVar[tuple[str, ...]]

    def add_cell(self, to: Mapping[str, Any]) -> None:
        """Register the network."""
        self.rnn = self.network(self.width, self.width, batch_first=True, **to)

    def reset_parameters(self) -> None:
        """Draw every weight anew."""
        init.normal_(self.in_proj)
        nn.init.zeros_(self.out_proj)
        for parameter in self.rnn.parameters():
            if parameter.ndim == 2:
                init.orthogonal_(parameter)
            else:
                nn.init.zeros_(parameter)

    def train(self, mode: bool = True) -> TorchRNN:
        """Set the mode of all but the network, whose gradients cuDNN computes in training alone."""
        super().train(mode)
        self.rnn.train()  # it has no dropout
        return self

    def cell_state(self) -> dict[str, Shape]:
        """Return the shapes of the network's parts."""
        return dict.fromkeys(self.parts, (self.width,))

    def forward(
        self, x_btd: Tensor, state: State | None = None, resets_bt: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Continue the sequence; see :class:`~elman.models.cells.common.mixer.Mixer`."""
        p_bti, first_bi = self._begin_network(x_btd, state)
        backend = self.backend_for(x_btd)
        h_bti, last_bi = self.run_over_time(p_bti, first_bi, backend, resets_bt)
        return self.project_out(h_bti), dict(zip(self.parts, last_bi, strict=True))

    def applied_decay(
        self, x_btd: Tensor, state: State | None = None, resets_bt: Tensor | None = None
    ) -> Tensor | None:
        """Return the gate that keeps the state, of each channel [B, T, 1, i].

        It is the second gate of both networks: z of a GRU, f of an LSTM, which keeps c.
        """
        p_bti, first_bi = self._begin_network(x_btd, state)
        h_bti, _ = self.run_over_time(p_bti, first_bi, self.backend_for(x_btd), resets_bt)
        wide = first_bi[0].dtype
        logit_bti = torch.zeros_like(p_bti, dtype=wide)
        read = {"ih": p_bti, "hh": states_before(h_bti, first_bi[0], resets_bt)}
        for side, read_bti in read.items():
            weight, bias = (
                self.rnn.get_parameter(f"{kind}_{side}_l0")[self.width : 2 * self.width]
                for kind in ("weight", "bias")
            )
            logit_bti += linear(read_bti.to(weight.dtype), weight, bias)
        return torch.sigmoid(logit_bti).unsqueeze(2)

    def _begin_network(self, x_btd: Tensor, state: State | None) -> tuple[Tensor, list[Tensor]]:
        """Return the network's input and its first state."""
        given = self.begin(x_btd, state)
        p_bti = linear(x_btd, self.in_proj)
        return p_bti, [first_state(given.get(name), p_bti, self.width) for name in self.parts]

    def run_over_time(
        self,
        p_bti: Tensor,
        first_bi: Sequence[Tensor],
        backend: str,
        resets_bt: Tensor | None = None,
    ) -> tuple[Tensor, Sequence[Tensor]]:
        """Run the network: on the dense engine, or PyTorch's own in what the engine does not know.

        Args:
            p_bti: Its input.
            first_bi: The state before the first step, in fp32 or wider.
            backend: Name of the layer's backend.
            resets_bt: Whether the state of a row is zero before a step; None: never.

        Returns:
            Its output in the dtype of its input, and the state after the last step.
        """
        if backend != "torch" and (backend != "cuda" or p_bti.dtype in ENGINE_DTYPES):
            h_bti, last_bi = self.run_on_engine(p_bti, first_bi, backend, resets_bt)
            return h_bti.to(p_bti.dtype), last_bi
        first_1bi = tuple(part.to(p_bti.dtype).unsqueeze(0) for part in first_bi)
        h_bti, last_1bi = self._run(p_bti, first_1bi, resets_bt)
        wide = wide_dtype(p_bti.dtype)
        return h_bti, [part_1bi.squeeze(0).to(wide) for part_1bi in last_1bi]

    def run_on_engine(
        self,
        p_bti: Tensor,
        first_bi: Sequence[Tensor],
        backend: str,
        resets_bt: Tensor | None,
    ) -> tuple[Tensor, Sequence[Tensor]]:
        """Run the network as a step of the dense engine; see :meth:`run_over_time`."""
        raise NotImplementedError

    def weights(self) -> Iterator[Tensor]:
        """Yield W, U and the biases of W and of U, rows by PyTorch's gates."""
        for name in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"):
            yield getattr(self.rnn, name)  # which may be a tensor that stands in for a parameter

    @uncompiled
    def _run(
        self, p_bti: Tensor, first_1bi: tuple[Tensor, ...], resets_bt: Tensor | None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Run the network in the dtype of ``p_bti``, or in fp16; from reset to reset."""
        if is_empty(p_bti):
            read = (p_bti, *self.rnn.parameters())
            h_bti, last_1bi = empty_results(p_bti.shape, p_bti.dtype, first_1bi, read)
            return h_bti, tuple(last_1bi)
        names = [name for name, _ in self.rnn.named_parameters()]
        lengths = _lengths(resets_bt, p_bti.shape[1])

        def network(given: Sequence[Tensor]) -> Sequence[Tensor]:
            p_bti, *rest = given
            state_1bi, weights = rest[: len(self.parts)], rest[len(self.parts) :]
            named = dict(zip(names, weights, strict=True))
            outputs, at = [], 0
            for piece_bti in p_bti.split(lengths, dim=1):
                if resets_bt is not None:
                    reset_b1 = resets_bt[:, at, None]
                    state_1bi = [part_1bi.masked_fill(reset_b1, 0) for part_1bi in state_1bi]
                first = tuple(state_1bi) if len(state_1bi) > 1 else state_1bi[0]
                h_bti, last = torch.func.functional_call(self.rnn, named, (piece_bti, first))
                state_1bi = [last] if isinstance(last, Tensor) else [*last]
                outputs.append(h_bti)
                at += piece_bti.shape[1]
            return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1), *state_1bi

        # Autocast to bf16 would run cuDNN in fp16, whose range gradients of a mean loss exceed.
        with no_autocast(p_bti):
            given = (p_bti, *first_1bi, *self.rnn.parameters())
            if self._narrows(p_bti):
                h_bti, *last_1bi = in_fp16(network, given, p_bti.dtype)
            else:
                h_bti, *last_1bi = network([one.to(p_bti.dtype) for one in given])
        return h_bti, tuple(last_1bi)

    def _narrows(self, p_bti: Tensor) -> bool:
        """Return whether cuDNN computes in fp16 what the projections have in bf16."""
        fp16 = self.settings.word("network_dtype") == "fp16"
        return fp16 and p_bti.is_cuda and p_bti.dtype == torch.bfloat16


class GRU(TorchRNN):
    """h' = z h + (1 - z) tanh(W_n x + b_n + r (U_n h + c_n)), [r; z] = sigmoid(W x + b + U h + c).

    The reset gate acts after the matrix and z keeps the state, both unlike
    :class:`~elman.models.cells.dense.cudagru_layer.CudaGRU`. State: ``h``. Backends ``cpu`` and
    ``cuda`` run the steps on the dense engine, ``cuda`` and ``torch`` as of :class:`LSTM`.
    """

    cell = gru.CELL
    network = nn.GRU
    parts = ("h",)

    def run_on_engine(
        self,
        p_bti: Tensor,
        first_bi: Sequence[Tensor],
        backend: str,
        resets_bt: Tensor | None,
    ) -> tuple[Tensor, Sequence[Tensor]]:
        """Run the network as a step of the dense engine; see :meth:`TorchRNN.run_over_time`.

        Of the sum that r multiplies, U_n h + c_n, the part that reads no state is the bias alone.
        """
        w_ki, u_ki, b_k, c_k = self.weights()
        i = self.width
        gates_ki, new_ii = narrow(w_ki).split([2 * i, i])
        gates_b, new_b = b_k.split([2 * i, i])

        def added(bias_k: Tensor) -> Tensor:
            gates_btk = linear(p_bti, gates_ki, bias_k[: 2 * i])
            bias_i = bias_k[2 * i :].to(gates_btk.dtype)
            return torch.cat([gates_btk, bias_i.expand_as(p_bti)], dim=-1)

        bias_k = c_k + functional.pad(gates_b, (0, i))
        added_btk = bias_of_parts(p_bti, w_ki, bias_k, added, backend=backend)
        new_bti = biased_linear(p_bti, new_ii, new_b, backend=backend)
        inputs, recurrent = [added_btk, new_bti], [narrow(u_ki)]
        given = "gru_reset_after", inputs, recurrent, first_bi
        return dense_recurrence(*given, backend=backend, resets_bt=resets_bt)


class LSTM(TorchRNN):
    """c' = f c + i tanh(W_g x + U_g h), h' = o tanh(c'), [i; f; o] = sigmoid(W x + b + U h + c).

    Both biases of the forget gate start at 1 (vector-state specification 5.2). State: ``h``, ``c``.
    Backend ``cuda`` runs the steps on the kernels of
    :class:`~elman.models.cells.dense.cudalstm_layer.CudaLSTM`, ``torch`` on cuDNN, and so does
    ``cuda`` in fp16 and fp64, which the kernels do not know.
    """

    cell = lstm.CELL
    network = nn.LSTM
    parts = ("h", "c")

    def reset_parameters(self) -> None:
        """Draw every weight anew; rows of PyTorch's gates: i, f, g, o."""
        super().reset_parameters()
        for name in ("bias_ih_l0", "bias_hh_l0"):
            with torch.no_grad():
                self.rnn.get_parameter(name)[self.width : 2 * self.width] = 1.0

    def run_on_engine(
        self,
        p_bti: Tensor,
        first_bi: Sequence[Tensor],
        backend: str,
        resets_bt: Tensor | None,
    ) -> tuple[Tensor, Sequence[Tensor]]:
        """Run the network as a step of the dense engine; see :meth:`TorchRNN.run_over_time`."""
        w_ki, u_ki, b_k, d_k = self.weights()
        gates_btk = biased_linear(
            p_bti, _of_kernels(narrow(w_ki)), _of_kernels(b_k + d_k), backend=backend
        )
        recurrent_ki = _of_kernels(narrow(u_ki))
        given = "lstm", [gates_btk], [recurrent_ki], first_bi
        return dense_recurrence(*given, backend=backend, resets_bt=resets_bt)


def _of_kernels(gates: Tensor) -> Tensor:
    """Return the rows of PyTorch's gates, i, f, g, o, in the kernels' order f, i, o, g."""
    i, f, g, o = gates.chunk(4)
    return torch.cat([f, i, o, g])


def _lengths(resets_bt: Tensor | None, steps: int) -> list[int]:
    """Return how many steps to run at a time so that states are zeroed between two runs alone."""
    if resets_bt is None:
        return [steps]
    if resets_bt.is_cuda:  # a CUDA graph cannot read where they are
        return [1] * steps
    cuts = resets_bt[:, 1:].any(dim=0).nonzero().flatten() + 1
    return [end - begin for begin, end in pairwise([0, *cuts.tolist(), steps])]
