from elman.models.registry.spec import Cell, Option
CELL = Cell(name="e88", engine="matrix_state", layer="elman.models.layers.e88:E88", equation="", source="",
  options={"n_heads": Option(8, "heads", minimum=1, size=True), "n_state": Option(32,"", minimum=1,size=True)})
