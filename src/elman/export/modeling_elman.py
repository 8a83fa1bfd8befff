"""A language model of elman for Hugging Face's transformers; ``pip install elman[export]``.

elman copies this file into every folder that it exports. The model itself is elman's own.

Shape legend: b batch, t time, v vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.utils import ModelOutput

from elman.export.folder import build_exported
from elman.models.cells.common.mixer import Mixer

# Bytes at a multiple of which PyTorch puts the tensors that it makes on a CPU.
_ALIGNMENT = 64


class ElmanConfig(PretrainedConfig):
    """What ``config.json`` says of a model.

    Args:
        elman: The model as elman describes it: version, model, reset_after.
        backend: As ``kernels.backend``; ``from_pretrained(..., backend="reference")`` sets it.
    """

    model_type = "elman"
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["state"]

    def __init__(
        self, elman: dict[str, Any] | None = None, backend: str = "auto", **others: Any
    ) -> None:
        self.elman, self.backend = elman, backend
        super().__init__(**others)


class RecurrentState:
    """What the layers carry after a text: the cache of ``generate``.

    Attributes:
        layers: The tensors of each layer by their names, each with the batch as its first axis.
        length: Tokens that were read.
    """

    def __init__(self, layers: list[dict[str, Tensor]], length: int) -> None:
        self.layers, self.length = layers, length

    def get_seq_length(self) -> int:
        """Return how many tokens were read."""
        return self.length

    def reorder_cache(self, rows_b: Tensor) -> None:
        """Let row i go on from the state of row ``rows_b[i]``, as a beam search does."""
        self.layers = [
            {name: part.index_select(0, rows_b.to(part.device)) for name, part in layer.items()}
            for layer in self.layers
        ]


@dataclass
class ElmanOutput(ModelOutput):
    """What a call returns.

    Attributes:
        loss: Mean cross entropy in nats per predicted token, if there were labels.
        logits: [B, T, vocabulary].
        state: The state after the last token.
    """

    loss: Tensor | None = None
    logits: Tensor | None = None
    state: RecurrentState | None = None


class ElmanForCausalLM(PreTrainedModel, GenerationMixin):
    """A language model whose cache is the state of its layers.

    ``model.model`` is the :class:`~elman.models.language_model.LanguageModel`. Train a cell with a
    spectral norm with ``model.model.begin_step()`` before each step of the optimizer.
    """

    config_class = ElmanConfig
    # A state does not go back to an earlier token, which assisted generation would need.
    _is_stateful = True
    supports_gradient_checkpointing = True

    def __init__(self, config: ElmanConfig) -> None:
        super().__init__(config)
        assert config.elman is not None, "config.json lacks its section elman"
        device = str(torch.get_default_device())  # from_pretrained builds without storage
        self.model = build_exported(config.elman, config.backend, device)
        self.post_init()

    @classmethod
    def from_pretrained(cls, *places: Any, **named: Any) -> Any:
        """Load a folder, as :meth:`transformers.PreTrainedModel.from_pretrained` does."""
        loaded = super().from_pretrained(*places, **named)
        model = loaded[0] if isinstance(loaded, tuple) else loaded
        # A mapped file has its tensors at any address, and products of such have other last bits.
        for tensor in (*model.parameters(), *model.buffers()):
            if tensor.device.type == "cpu" and tensor.data_ptr() % _ALIGNMENT:
                tensor.data = tensor.data.clone()
        return loaded

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        state: RecurrentState | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        return_dict: bool | None = None,
    ) -> ElmanOutput | tuple[Any, ...]:
        """Predict the next token at every position.

        Args:
            input_ids: Tokens [B, T], those after ``state``.
            attention_mask: 0 where a token is padding, for these tokens or for those before them,
                too. A row starts anew behind padding, which must not be behind other tokens of
                the row; predictions at padding mean nothing.
            state: The state that an earlier call returned; None starts a sequence.
            labels: Tokens [B, T] as in ``input_ids``, -100 where none is to be predicted.
            use_cache: Return the state; None does so outside of training.
            return_dict: False returns a tuple.

        Raises:
            ValueError: padding is between other tokens, or as the model raises it.
            UserError: there is padding, and a layer cannot start a row anew.
        """
        layers, read = (None, 0) if state is None else (state.layers, state.length)
        resets_bt = None if attention_mask is None else _starts(attention_mask, input_ids.shape[1])
        if resets_bt is not None:
            for layer in self.model.layers:
                if isinstance(layer, Mixer):
                    layer.cell.check_resets(layer.settings.values, *_PADDED)
        logits_btv, carried = self.model(input_ids, layers, resets_bt)
        loss = None if labels is None else _loss(logits_btv, labels)
        after = RecurrentState(carried, read + input_ids.shape[1])
        output = ElmanOutput(
            loss=loss,
            logits=logits_btv,
            state=None if use_cache is False or (use_cache is None and self.training) else after,
        )
        return output.to_tuple() if return_dict is False else output

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        state: RecurrentState | None = None,
        attention_mask: Tensor | None = None,
        use_cache: bool | None = None,
        **others: Any,
    ) -> dict[str, Any]:
        """Return the arguments of the next call: the tokens that the state has not read yet."""
        new_ids = input_ids if state is None else input_ids[:, state.length :]
        if not new_ids.shape[1]:
            raise ValueError(
                f"state: has read all {input_ids.shape[1]} tokens; give the whole text and at "
                "least one token behind it"
            )
        names = ("input_ids", "state", "attention_mask", "use_cache")
        return dict(zip(names, (new_ids, state, attention_mask, use_cache), strict=True))

    def _update_model_kwargs_for_generation(
        self, outputs: ModelOutput, model_kwargs: dict[str, Any], *others: Any, **named: Any
    ) -> dict[str, Any]:
        after: dict[str, Any] = super()._update_model_kwargs_for_generation(
            outputs, model_kwargs, *others, **named
        )
        return after | ({} if outputs.state is None else {"state": outputs.state})

    def _set_gradient_checkpointing(self, enable: bool = True, **others: Any) -> None:
        """Recompute every layer in the backward pass; Trainer and others ask for it in this way."""
        self.model.activation_checkpointing = enable

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False

    def _init_weights(self, module: Any) -> None:
        """Leave the weights as elman's layers drew them."""


# What asks a layer to begin a row anew, and what to do where it cannot.
_PADDED = (
    "attention_mask: padding on the left of a row",
    "give rows without padding, one at a time or all of one length",
)


def _starts(mask_bt: Tensor, length: int) -> Tensor | None:
    """Return True where a row starts behind padding, among the last ``length`` tokens."""
    real_bt = mask_bt.bool()
    if real_bt.shape[1] < length:
        raise ValueError(f"attention_mask: of {real_bt.shape[1]} tokens, expected {length}")
    if bool(real_bt.all()):
        return None
    starts_bt = real_bt & ~functional.pad(real_bt[:, :-1], (1, 0), value=True)
    if bool((starts_bt & (real_bt.cumsum(1) > 1)).any()):
        raise ValueError(
            "attention_mask: a row has padding between its tokens, and its state would have read "
            "that; pad on the left, and give the attention_mask of the tokenizer"
        )
    starts_bt = starts_bt[:, -length:]
    return starts_bt if bool(starts_bt.any()) else None


def _loss(logits_btv: Tensor, labels_bt: Tensor) -> Tensor:
    """Return the mean nats of each label given the tokens before it, in fp32 or wider."""
    wide = torch.promote_types(logits_btv.dtype, torch.float32)
    return functional.cross_entropy(
        logits_btv[:, :-1].to(wide).flatten(0, 1), labels_bt[:, 1:].flatten()
    )
