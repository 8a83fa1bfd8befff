"""How a cell declares itself: its options, their ranges and its engine. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from elman.base.errors import UserError, did_you_mean
from elman.sections.model import Value as Value

Work = Callable[[int, Mapping[str, Value], range], float]
"""From dim, options and the positions of a row to floating-point operations of one layer."""

Engine = Literal[
    "matrix_state", "channel", "dense", "tape", "ssd", "gated_delta", "channel_delta", "torch"
]


@dataclass(frozen=True)
class Option:
    """One setting of a cell, ``model.<name>`` in the configuration.

    Args:
        default: Value where a model's YAML says nothing; its type is the option's type.
        doc: One line for people: meaning, unit, source.
        choices: Allowed values of a string option.
        minimum: Smallest allowed number (``above`` excludes the bound itself).
        maximum: Largest allowed number (inclusive).
        above: Exclusive lower bound.
        size: Whether it changes a shape or the parameter count.
        in_kernel: Whether a kernel's result depends on it. False for what changes only starting
            values, or is computed outside of the kernels: then a check of a kernel holds for each
            of its values.
        needs: Values of other options that this one needs to be read; each is one value or a tuple
            of alternatives. With other values, setting this option is an error.
    """

    default: Value
    doc: str
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None
    size: bool = False
    in_kernel: bool = True
    needs: Mapping[str, Value | tuple[Value, ...]] = field(default_factory=dict)

    def parse(self, key: str, value: Any) -> Value:
        """Return ``value`` in this option's type, or raise UserError naming ``key``."""
        if isinstance(self.default, float) and type(value) is int:
            value = float(value)
        if self.choices and not isinstance(value, str):
            value = next((one for one in self.choices if _reads_as(one, value)), value)
            if not isinstance(value, str):
                raise UserError(f"{key}={value}: expected one of {', '.join(self.choices)}")
        if type(value) is not type(self.default):
            raise UserError(f"{key}={value}: expected {_TYPE_NAMES[type(self.default)]}")
        if self.choices and value not in self.choices:
            hint = did_you_mean(str(value), self.choices)
            raise UserError(f"{key}={value}: expected one of {', '.join(self.choices)}{hint}")
        self._check_range(key, value)
        return value

    def _check_range(self, key: str, value: Any) -> None:
        if isinstance(value, bool | str):
            return
        if not math.isfinite(value):
            raise UserError(f"{key}={value}: expected a finite number")
        if self.minimum is not None and not value >= self.minimum:
            raise UserError(f"{key}={value}: must be at least {self.minimum:g}")
        if self.above is not None and not value > self.above:
            raise UserError(f"{key}={value}: must be greater than {self.above:g}")
        if self.maximum is not None and not value <= self.maximum:
            raise UserError(f"{key}={value}: must be at most {self.maximum:g}")


def _reads_as(choice: str, value: Any) -> bool:
    """Whether a command line or YAML reads this choice as a value that is no text: 1.0, true."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return choice.lower() == ("null" if value is None else str(value).lower())
    try:
        return float(choice) == value
    except ValueError:
        return False


_TYPE_NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "a word"}


def _no_rule(dim: int, options: Mapping[str, Value]) -> None:
    """The rule for a cell whose options combine freely."""


Request = Callable[[int, Mapping[str, Value]], str]
"""Returns why a backend does not compute dim and these options, or an empty text."""


def _no_limit(options: Mapping[str, Value]) -> str:
    """The limit for a cell that has none, whatever its options."""
    return ""


@dataclass(frozen=True)
class Cell:
    """Everything that the program must know about a cell before torch is imported.

    Args:
        name: Value of ``model.cell``.
        engine: Recurrence engine that runs it, one folder of elman.ops each; ``torch``: PyTorch's
            own layers.
        layer: ``module:Class`` of the layer; the module is imported when a model is built.
        equation: The step in one line, for tables and ``mode=models``.
        source: Seed file, paper or specification section of the formulas.
        options: Its settings. The layer's constructor takes exactly these as keywords.
        backends: Backends that exist for it, fastest last; the first is ``reference`` or ``torch``.
        rule: Raises UserError on option values that do not combine; called with dim and options.
        limit: Returns why these options run only on the reference, or an empty text.
        no_resets: Returns why, with these options, the layer cannot zero its state where a document
            starts, or an empty text.
        reason: Why the whole cell runs only there; part of the error for another backend.
        own_norms: Whether the layer is several residual blocks, each with its own norm. Then its
            input is the residual stream, and its output is added to the stream.
        on_request: Backends that run only if they are named, never for ``auto``, each with what
            refuses dim and the complete options.
        package: For a packaged baseline, the distribution of another project whose kernels are its
            ``triton`` backend; its ``reference`` backend is plain PyTorch in chunks of time.
        scan_flops: Returns the operations that the recurrence, or the attention, of one layer takes
            forward over one row; called with dim, the complete options and the row's positions, of
            which the first is 0 unless states are carried. None: they are counted in the plain form
            (:mod:`elman.training.flops`), as fits every form that goes step by step. A form in
            chunks, or one fused operation, needs the function.
        path: Returns in words what computes a baseline of PyTorch, from its options, the type of
            the device and ``bf16`` or ``fp32``; None where the backend's name says it all.
    """

    name: str
    engine: Engine
    layer: str
    equation: str
    source: str
    options: Mapping[str, Option]
    backends: tuple[str, ...] = ("reference",)
    rule: Callable[[int, Mapping[str, Value]], None] = _no_rule
    limit: Callable[[Mapping[str, Value]], str] = _no_limit
    no_resets: Callable[[Mapping[str, Value]], str] = _no_limit
    reason: str = ""
    own_norms: bool = False
    on_request: Mapping[str, Request] = field(default_factory=dict)
    package: str | None = None
    scan_flops: Work | None = None
    path: Callable[[Mapping[str, Value], str, str], str | None] | None = None

    def under(self, options: Mapping[str, Value]) -> Cell:
        """Return the cell with only the backends that can run these (complete) options."""
        if reason := self.limit(options):
            return replace(self, backends=self.backends[:1], reason=reason)
        return self

    def check_request(self, requested: str, dim: int, options: Mapping[str, Value]) -> None:
        """Raise UserError if a backend on request does not compute dim and these options."""
        if requested in self.on_request and (why := self.on_request[requested](dim, options)):
            raise UserError(f"kernels.backend={requested}: {why}")

    def check_resets(self, options: Mapping[str, Value], asked: str, instead: str) -> None:
        """Raise UserError if the layer cannot zero its state at the start of a document.

        Args:
            options: The cell's complete options.
            asked: What asks for it, for people.
            instead: What to type otherwise.
        """
        if why := self.no_resets(options):
            raise UserError(f"{asked}: not with cell {self.name}: {why}; {instead}")

    def check_wrapper(self, wrapper: str) -> None:
        """Raise UserError if this wrapper does not fit a cell with its own norms."""
        if self.own_norms and wrapper != "rms":
            raise UserError(
                f"model.wrapper={wrapper}: cell {self.name} has RMSNorms of its own; "
                "use model.wrapper=rms"
            )

    def check_mlp(self, ratio: float) -> None:
        """Raise UserError if an MLP of ``model.mlp_ratio`` would stand beside the cell's own."""
        if self.own_norms and ratio:
            raise UserError(
                f"model.mlp_ratio={ratio:g}: cell {self.name} has an MLP of its own; "
                "use model.mlp_width=<channels> or drop model.mlp_ratio"
            )

    def parse_options(
        self, dim: int, given: Mapping[str, Any], named: frozenset[str] = frozenset()
    ) -> dict[str, Value]:
        """Check ``given`` against the declared options and fill in the defaults.

        Args:
            dim: Model width.
            given: Option values by name, without the ``model.`` prefix.
            named: Options that the user named. If nothing reads one of them, that is an error even
                at its default value.

        Raises:
            UserError: an unknown option, a wrong type, a value out of range, a combination that the
                cell cannot compute, or an option that has no effect with the other settings.
        """
        for name in given:
            if name not in self.options:
                hint = did_you_mean(name, self.options)
                raise UserError(
                    f"model.{name}: cell {self.name} does not read it{hint}; "
                    f"its options: {', '.join(self.options)}"
                )
        values = {
            name: option.parse(f"model.{name}", given.get(name, option.default))
            for name, option in self.options.items()
        }
        self._refuse_unread(values, named)
        self.rule(dim, values)
        return values

    def _refuse_unread(self, values: Mapping[str, Value], named: frozenset[str]) -> None:
        for name, option in self.options.items():
            if name not in named and values[name] == option.default:
                continue
            for other, wanted in option.needs.items():
                alternatives = wanted if isinstance(wanted, tuple) else (wanted,)
                if values[other] in alternatives:
                    continue
                one, need = _typed(name, values[name]), _typed(other, alternatives[0])
                if len(alternatives) == 1:
                    raise UserError(
                        f"{one}: read only with {need}; add {need} or drop model.{name}"
                    )
                raise UserError(
                    f"{one}: not read with {_typed(other, values[other])}; "
                    f"use {need} or drop model.{name}"
                )


def _typed(name: str, value: Value) -> str:
    """Return an option as typed on the command line."""
    return f"model.{name}={str(value).lower() if isinstance(value, bool) else value}"
