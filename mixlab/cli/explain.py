"""Explain where numbers come from: parameters, multiply-adds, memory, ranks, line by line with their formulas.

What: a preset (gmlp-base), a layer ("conv 3x3 64->64 on 256x256"), or two of them with vs between. Layers are written in quotes:

  dense SIZE -> SIZE        mlp N -> N -> N        tokens N -> N [d=N] [per-channel]        pointwise N->N [on SIZE]
  conv SIZE N->N            depthwise SIZE N       separable SIZE N->N        each [on SIZE] [stride N] [same|full|valid]
  attention n=N d=N [h=N] [a=N] [window=N]         transformer d=N [n=N] [h=N] [f=N]        ffn d=N [f=N] [n=N]
  sgu n=N d_ffn=N [dense|toeplitz] [causal]        gram n=N d=N        fourier n=N d=N
  patches SIZE by N         embedding NxN          norm N
"""

from __future__ import annotations

import json
from typing import Annotated, Literal

import tyro

from mixlab.accounting.claims import results
from mixlab.accounting.conventions import Convention
from mixlab.errors import MixlabError
from mixlab.report import explained, explanation

Flag = tyro.conf.FlagCreatePairsOff
Quantity = Literal["params", "macs", "work", "kept", "live", "state"]


def main(
    what: Annotated[tuple[str, ...], tyro.conf.Positional] = (),
    claims: Annotated[bool, Flag] = False,
    json_: Annotated[bool, tyro.conf.arg(name="json"), Flag] = False,
    markdown: Annotated[bool, Flag] = False,
    of: tuple[Quantity, ...] = ("params", "macs"),
    task: str | None = None,
    length: int | None = None,
    as_: Annotated[Literal["paper"] | None, tyro.conf.arg(name="as")] = None,
    unit: Literal["mac", "flop"] = "mac",
    head: Literal["full", "labelled", "none"] = "full",
    no_embeddings: Annotated[bool, Flag] = False,
    elementwise: Annotated[bool, Flag] = False,
    toeplitz: Literal["dense", "fft"] = "dense",
) -> None:
    """Print the arithmetic.

    Args:
        what: A preset, a layer expression, or two of them with vs between.
        claims: Print every claim of the founding notes, recomputed, with a verdict.
        json_: Print JSON instead of a table.
        markdown: Print markdown instead of a table.
        of: Quantities whose formulas are shown: parameters, multiply-adds, elementwise work, memory of training, of inference, of decoding.
        task: What a preset is for; by default what its paper made it for.
        length: Tokens of the sequence; by default as many as the preset reads.
        as_: Count as the preset's publication does, and say how that is.
        unit: Which unit is shown first; a MAC is two FLOPs.
        head: Logits at every token, at the 15% labelled ones alone, or no head at all.
        no_embeddings: Leave out tables that are looked up.
        elementwise: Add norms, activations, softmax and sums to the FLOPs.
        toeplitz: How a Toeplitz W is multiplied.
    """
    if claims:
        if what:
            raise MixlabError("--claims explains the notes alone; leave the rest out")
        rows = results()
        print(json.dumps(rows, indent=2)) if json_ else print(explanation.markdown_claims(rows)) if markdown else explanation.show_claims(
            rows
        )
        return
    given = Convention("custom", unit, head, not no_embeddings, elementwise, toeplitz)
    if as_ and given != Convention():
        raise MixlabError("--as paper decides what is counted; leave --unit, --head, --no-embeddings, --elementwise and --toeplitz out")
    found = [explained.explain(part, None if as_ else given, task=task, length=length) for part in sides(what)]
    if len(found) == 2:
        both = explained.compare(*found)
        print(json.dumps(both, indent=2)) if json_ else print(
            explanation.markdown_comparison(both)
        ) if markdown else explanation.show_comparison(both)
    else:
        print(json.dumps(found[0], indent=2)) if json_ else print(explanation.markdown(found[0], of)) if markdown else explanation.show(
            found[0], of
        )


def sides(words: tuple[str, ...]) -> list[str]:
    """What stands on either side of vs, if there is one."""
    parts = [part.strip() for part in f" {' '.join(words)} ".split(" vs ")]
    if parts == [""]:
        raise MixlabError('nothing to explain; give a preset or a layer, such as "conv 3x3 64->64", or --claims')
    if len(parts) > 2 or "" in parts:
        raise MixlabError(f"{' '.join(words)!r} compares {len([p for p in parts if p])} things; write one thing, vs, and another")
    return parts
