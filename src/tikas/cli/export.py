"""`tikas export`: write a saved model in a form that other programs read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tikas.cli.options import check_output


def export(
    model_path: Annotated[
        Path, typer.Argument(metavar="MODEL", help="A file that `tikas train` or an estimator's `save` wrote.")
    ],
    onnx: Annotated[
        Path | None, typer.Option(metavar="FILE", help="ONNX file to write, for onnxruntime in any language.")
    ] = None,
    torch_export: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File of torch.export to write, for PyTorch without tikas.")
    ] = None,
) -> None:
    """Write a model, its preprocessing included, in a form that other programs read.

    Both take any number of rows. Prints the inputs and outputs of the ONNX file.

    \b
    tikas export models/mine.safetensors --onnx mine.onnx
    tikas export models/mine.safetensors --torch-export mine.pt2
    """
    if onnx is None and torch_export is None:
        raise typer.BadParameter("Say what to write: --onnx FILE or --torch-export FILE.")
    for option, file in (("--onnx", onnx), ("--torch-export", torch_export)):
        if file is not None:
            check_output(file, inputs=[model_path], option=option)

    from tikas.io import load

    model = load(model_path)
    if onnx is not None:
        print(f"{model.to_onnx(onnx)}: {onnx.stat().st_size / 1e6:.3g} MB")
        _print_interface(onnx)
    if torch_export is not None:
        print(f"{model.to_torch_export(torch_export)}: {torch_export.stat().st_size / 1e6:.3g} MB")


def _print_interface(path: Path) -> None:
    """Print name, type and shape of each input and output of an ONNX file."""
    from onnx import TensorProto, load

    graph = load(path, load_external_data=False).graph
    for kind, values in (("input", graph.input), ("output", graph.output)):
        for value in values:
            tensor = value.type.tensor_type
            shape = ", ".join(side.dim_param or str(side.dim_value) for side in tensor.shape.dim)
            print(f"  {kind} {value.name}: {TensorProto.DataType.Name(tensor.elem_type).lower()} ({shape})")
