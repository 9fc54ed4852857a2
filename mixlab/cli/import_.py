"""Import weights of another implementation, or convert a folder of our own, into a mixlab folder.

Known layouts: timm, g-mlp-pytorch, labml and others that the architectures' files describe. SOURCE is a weights file
(.safetensors), a model folder, or the name of a model on the Hub.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import tyro


def main(
    source: Annotated[str, tyro.conf.Positional],
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])],
    preset: str | None = None,
    task: str | None = None,
    length: int | None = None,
    set: Annotated[tuple[str, ...], tyro.conf.arg(metavar="KEY=VALUE ...")] = (),
    allow_pickle: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    allow_missing: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    json_: Annotated[bool, tyro.conf.arg(name="json"), tyro.conf.FlagCreatePairsOff] = False,
) -> None:
    """Read, convert, write.

    Args:
        source: A weights file, a model folder, or a name on the Hub.
        out: The folder to write; it must be empty or new.
        preset: Check the weights against this preset instead of inferring the configuration from their shapes.
        task: What the model is for; causal-lm keeps only the half of W that looks back.
        length: Change the longest sequence (an image: its patches).
        set: Settings that the file cannot tell, such as gate_activation=tanh.
        allow_pickle: Read a .pt, .pth or .bin file; only tensors are loaded from it.
        allow_missing: Leave parts that the file lacks as they are initialised.
        json_: Print the report as JSON.
    """
    from mixlab.errors import MixlabError
    from mixlab.modeling.architecture import read_settings
    from mixlab.modeling.convert import import_model
    from mixlab.modeling.quiet import quiet

    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise MixlabError(f"{out} exists and is not an empty folder; choose another")
    with quiet():  # what is missing or unused stands in the report
        model, report = import_model(
            source,
            preset=preset,
            task=task,
            length=length,
            allow_pickle=allow_pickle,
            allow_missing=allow_missing,
            settings=read_settings(set),
        )
        model.save_pretrained(out)
    if json_:
        print(json.dumps({**report.as_dict(), "out": str(out)}, indent=2))
        return
    print("\n".join([*report.lines(), f"written to {out}"]))
