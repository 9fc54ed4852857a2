"""Write a model for other software: its weights under the names of timm, transformers, ...

The other library then loads the file into a model that it built with the same sizes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro


def main(
    run: Annotated[Path, tyro.conf.Positional],
    to: str,
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])],
) -> None:
    """Write the file, and say what it holds.

    Args:
        run: The folder of a run, or of a model.
        to: The layout, such as timm or transformers.
        out: The file to write, named .safetensors.
    """
    from mixlab.modeling.convert import import_model
    from mixlab.modeling.convert_back import write_foreign
    from mixlab.modeling.quiet import quiet

    inside = run / "model"
    with quiet():
        model, report = import_model(str(inside if (inside / "config.json").is_file() else run))
        count = write_foreign(model, to, out)
    print(f"{report.architecture}, {report.task} -> {to}: {count} tensors written to {out}")
