"""Figures of a CPU name the instructions that it has, on which they depend."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "performance.md").read_text(encoding="utf-8")
RESULTS = PAGE.partition("## Results")[2].partition("\n## Log")[0]
# Scripts that measure a CPU; those of tools/gpu measure a GPU.
ON_A_CPU = re.compile(r"on a CPU|benchmarks/|the command take")


def test_every_section_about_a_cpu_names_its_vector_instructions() -> None:
    sections = re.split(r"^### ", RESULTS, flags=re.M)[1:]
    of_a_cpu = [text for text in sections if ON_A_CPU.search(text)]
    assert len(of_a_cpu) >= 10
    for text in of_a_cpu:
        assert "AVX-512" in text or "AVX2" in text, text.splitlines()[0]
