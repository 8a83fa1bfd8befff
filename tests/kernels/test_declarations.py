"""A cell's declaration and its C++ structure state the same, or neither compiler takes it."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from typing import Any

import pytest
import torch
from packaging.version import Version

from elman.base.errors import UserError
from elman.kernels.build import load_library
from elman.kernels.compiler import first_error
from elman.kernels.nvrtc import Unit, nvrtc_version
from elman.ops.add_norm import cuda as norm_cuda
from elman.ops.channel import recurrences as channel_cells
from elman.ops.channel import source as channel_source
from elman.ops.channel.abi import ChannelArgs
from elman.ops.channel.cuda import kernels as channel_cuda
from elman.ops.channel.cuda.tile_config import Tuning
from elman.ops.channel.plan import Plan
from elman.ops.column_sum import cuda as sum_cuda
from elman.ops.common.abi_check import layout_assertions
from elman.ops.common.slices import Slice
from elman.ops.head_norm import cuda as head_cuda
from elman.ops.matrix_state import cpu, source
from elman.ops.matrix_state import recurrences as matrix_cells
from elman.ops.matrix_state.abi import MatrixArgs, ParameterArgs, SequenceArgs
from elman.ops.matrix_state.cuda import kernels as matrix_cuda
from elman.ops.matrix_state.recurrences import MatrixCell
from elman.ops.matrix_state.stacked import stacked_plan
from elman.ops.silu_gate import cuda as gate_cuda
from elman.ops.spectral_norm import cuda as spectral_cuda
from elman.training.optim import fused as schedule_free

BACKENDS = ("cpu", "cuda")
FLOAT = torch.float32


def compile_channel(step: str, backend: str) -> None:
    """Compile a step of the channel engine."""
    names = channel_cells.CELLS[step].inputs
    plan = Plan(step, tuple((name, Slice(n, 0)) for n, name in enumerate(names)))
    if backend == "cpu":
        channel_source.KERNELS.prepare([channel_source.spec_for(plan, FLOAT)], step)
    else:
        chosen = channel_cuda._tile_config.__wrapped__(
            plan, FLOAT, FLOAT, Tuning(), 16, 64 if channel_cells.CELLS[step].norm else 0, False
        )
        text = channel_cuda.unit_text.__wrapped__(chosen)
        Unit(text, step, "sm_80", fast=False).cubin()


def compile_matrix(cell: str, backend: str) -> None:
    """Compile both passes of a cell of the matrix-state engine, of a size that no model has."""
    plan = stacked_plan(cell, 2, 5, 7)
    if backend == "cpu":
        cpu.prepare([(plan, FLOAT)], plan.label)
        return
    for backward in (False, True):
        chosen = matrix_cuda.tile_config.__wrapped__(plan.text, 2, FLOAT, backward=backward)
        text = matrix_cuda.unit_text(chosen, backward)
        Unit(text, plan.label, "sm_80", fast=False).cubin()


CHANNEL = {
    "a parameter left out": ("e34", {"parameters": ("candidate_bias",)}, "len(parameters)=1"),
    "an input left out": ("e61", {"inputs": ("retain",)}, "len(inputs)=1"),
    "an input too many": ("e34", {"inputs": ("candidate", "gate")}, "len(inputs)=2"),
    "another norm": ("e59", {"norm": "rmsnorm"}, "norm='rmsnorm', which is=2"),
}
CONSTANTS = {"parameters": "PARAMETERS", "inputs": "INPUTS", "norm": "NORM"}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", CHANNEL.values(), ids=CHANNEL)
def test_a_channel_cells_wrong_number_is_one_line(case, backend, monkeypatch) -> None:
    step, change, said = case
    cell = channel_cells.CELLS[step]
    monkeypatch.setitem(channel_cells.CELLS, step, replace(cell, **change))
    with pytest.raises(UserError) as caught:
        compile_channel(step, backend)
    (field,) = change
    assert (
        f": cell {step}: its CompiledCell says {said}, its structure {cell.type} another "
        in str(caught.value)
    )
    assert f"another {CONSTANTS[field]}; mend one of the two (all of it in " in str(caught.value)
    assert "\n" not in str(caught.value)


MATRIX = {
    "gates": ("forgetting", {"gates": 0}, "gates=0", "GATES"),
    "parameters": ("averaged", {"parameters": 0}, "parameters=0", "PARAMS"),
    "more parameters": ("averaged", {"parameters": 3}, "parameters=3", "PARAMS"),
    "reads": ("delta", {"reads": False}, "reads=false", "READ"),
    "energy": ("averaged", {"energy": True}, "energy=true", "ENERGY"),
    "no energy": ("state_gated_delta", {"energy": False}, "energy=false", "ENERGY"),
    "column": ("full_gated_tanh", {"column": False}, "column=false", "COLUMN"),
    "keeps": ("averaged", {"keeps": True}, "keeps=true", "KEEP"),
    "decays": ("decayed", {"decays": False}, "decays=false", "DECAYS"),
    "element": ("residual", {"element": False}, "element=false", "HOOK"),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", MATRIX.values(), ids=MATRIX)
def test_a_matrix_cells_wrong_number_is_one_line(case, backend, monkeypatch) -> None:
    name, change, said, constant = case
    cell = matrix_cells.CELLS[name]
    monkeypatch.setitem(matrix_cells.CELLS, name, replace(cell, **change))
    with pytest.raises(UserError) as caught:
        compile_matrix(name, backend)
    message = str(caught.value)
    assert (
        f": cell {name}: its MatrixCell says {said}, its structure {cell.type} another" in message
    )
    assert f"another {constant}; mend one of the two (all of it in " in message
    assert "\n" not in message


# The mean square of a row gates what it keeps: neither a read nor a parameter.
FADING = """
struct Fading : MatrixCell {
  static constexpr bool ENERGY = true;
  template <class T>
  HD static void row(const Row<T>& x, T& c, T& w) {
    c = sigmoid(1.0f - x.e);
    w = x.v;
  }
  template <class T>
  HD static void row_bwd(const Row<T>&, T c, T, T dc, T dw, RowGrad<T>& d) {
    d.e = -dc * c * (1.0f - c);
    d.v = dw;
  }
};
"""


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_legal_cell_of_another_package_compiles(backend, monkeypatch) -> None:
    monkeypatch.setitem(
        matrix_cells.CELLS, "fading", MatrixCell("Fading", energy=True, code=FADING)
    )
    compile_matrix("fading", backend)


@pytest.mark.parametrize("given", [{"gates": 3}, {"parameters": 4}, {"gates": -1}], ids=str)
def test_more_than_a_row_has_is_refused_in_one_line(given) -> None:
    ((name, value),) = given.items()
    with pytest.raises(UserError, match=rf"^MatrixCell\(Own\): {name}={value}: a row has 0 to \d"):
        MatrixCell("Own", **given)


def test_a_memo_larger_than_the_engines_is_refused(monkeypatch) -> None:
    cell = channel_cells.CELLS["e34"]
    code = "struct Own : Elman { static constexpr int MEMO = 5; };\n"
    monkeypatch.setitem(channel_cells.CELLS, "own", replace(cell, type="Own", code=code))
    with pytest.raises(UserError, match="cell own: its structure Own has more MEMO than MAX_MEMO;"):
        compile_channel("own", "cpu")


def test_inputs_that_the_declaration_does_not_have_are_refused_in_one_line() -> None:
    plan = Plan("e34", (("candidat", Slice(0, 0)),))
    said = "cell e34: its layer gives the inputs candidat, its CompiledCell declares candidate; "
    with pytest.raises(UserError, match=said):
        channel_source.spec_for(plan, FLOAT)


STRUCTURES: dict[str, tuple[str, type[ctypes.Structure]]] = {
    "elman::Args": ("abi/matrix_state.h", MatrixArgs),
    "elman::Sequence": ("abi/matrix_state.h", SequenceArgs),
    "elman::Parameter": ("abi/matrix_state.h", ParameterArgs),
    "elman::ChannelArgs": ("abi/channel.h", ChannelArgs),
    "elman::AddNormArgs": ("cuda/add_norm/add_norm.cuh", norm_cuda.AddNormArgs),
    "elman::SiluGateArgs": ("cuda/silu_gate/silu_gate.cuh", gate_cuda.SiluGateArgs),
    "elman::HeadNormArgs": ("cuda/head_norm/head_norm.cuh", head_cuda.HeadNormArgs),
    "elman::ColumnSumArgs": ("cuda/column_sum/column_sum.cuh", sum_cuda.ColumnSumArgs),
    "elman::SpectralNormArgs": (
        "cuda/spectral_norm/spectral_norm.cuh",
        spectral_cuda.SpectralNormArgs,
    ),
    "elman::ScheduleFreeCountArgs": (
        "cuda/schedule_free/schedule_free.cuh",
        schedule_free.CountArgs,
    ),
    "elman::ScheduleFreeArgs": (
        "cuda/schedule_free/schedule_free.cuh",
        schedule_free.UpdateArgs,
    ),
}


def compile_layout(structure: str, mirror: type[ctypes.Structure], backend: str) -> None:
    """Compile the comparison of a structure with a mirror of it."""
    header = STRUCTURES[structure][0]
    text = f'#include "{header}"\n{layout_assertions(structure, mirror)}'
    if header.endswith("cuh"):
        device = {"cpu": "emulation/device.h", "cuda": "cuda/common/device.cuh"}[backend]
        text = f'#include "{device}"\n{text}'
    if backend == "cpu":
        load_library(text, "layout")
    else:
        Unit(text, "layout", "sm_80", fast=False).cubin()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("structure", STRUCTURES)
def test_every_field_of_a_mirror_is_compared(structure, backend) -> None:
    mirror = STRUCTURES[structure][1]
    compile_layout(structure, mirror, backend)
    if backend == "cuda" and Version(nvrtc_version()) < Version("13.5"):
        pytest.skip("NVRTC before 13.5 has no offsets: the CPU's compiler compares them")
    fields: list[Any] = list(mirror._fields_)
    # Of different sizes or meanings, so that the two change places.
    fields[0], fields[-1] = fields[-1], fields[0]
    swapped = type("Swapped", (ctypes.Structure,), {"_fields_": fields})
    with pytest.raises(UserError, match=f"structure {structure}: its mirror Swapped has another "):
        compile_layout(structure, swapped, backend)


def test_the_order_of_roles_is_compared(monkeypatch) -> None:
    first, second, *rest = source.ROLES
    monkeypatch.setattr(source, "ROLES", (second, first, *rest))
    monkeypatch.setattr(source, "order_assertions", source.order_assertions.__wrapped__)
    with pytest.raises(
        UserError, match=r"plan\.py has ROLE_G0 as number 0, csrc/abi/matrix_state\.h as another"
    ):
        compile_matrix("decayed", "cpu")


@pytest.mark.parametrize(
    "complaint",
    [
        "source.cpp:9:22: error: static assertion failed: {}\n   9 | static_assert(A == 1, ...\n",
        "source.cpp:9:22: error: static assertion failed due to requirement "
        "'Own<Act::tanh>::A == 1': {}\n",
        'source.cpp:9:1: error: static_assert failed due to requirement "A == 1" "{}"\n',
        'unit.cu(9): error: static assertion failed with "{}"\n  static_assert(A == 1, "{}");\n',
    ],
    ids=["g++", "clang++", "old clang++", "NVRTC"],
)
def test_every_compilers_words_around_the_message_are_left_out(complaint) -> None:
    said = (
        "cell own: its CompiledCell says len(inputs)=2, its structure Own<Act::tanh> another INPUTS"
    )
    said += "; mend one of the two"
    text = "source.cpp:3:1: error: no match for 'operator+'\n" + complaint.format(said, said)
    assert first_error(text) == said
