"""Write the generated tables of README.md and docs/, between `<!-- table: NAME -->` and `<!-- end -->`, and what recipes reached.

python docs/tables.py            rewrite
python docs/tables.py --check    fail if a file would change
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable
from pathlib import Path

import measured

from mixlab import registry
from mixlab.accounting import FULL, LABELLED, PAPERS
from mixlab.accounting.claims import results
from mixlab.accounting.expressions import RULES, parse
from mixlab.modeling.account import account, preset_table
from mixlab.modeling.architecture import find_preset, load
from mixlab.report import explanation
from mixlab.report.explained import explain

ROOT = Path(__file__).parent.parent


def markdown(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def presets() -> str:
    """Counts of all presets beside the published ones."""
    rows = []
    for row in preset_table():
        cells = [f"`{row['preset']}`", row["source"], f"{row['params']:,}", row["published"] or ""]
        cells.append(f"{row['difference']}: {row['note']}" if row["note"] else row["difference"])
        rows.append([*cells, str(row["length"]), f"{row['macs'] / 1e9:.2f}"])
    return markdown(["preset", "source", "parameters", "published", "difference", "n", "G MACs"], rows)


# Table 5 of the paper prints the FLOPs of a forward pass (G).
PUBLISHED_FLOPS = {"gmlp-base": 158.0, "amlp-base": 128.9, "gmlp-large": 430.1, "amlp-large": 370.3, "gmlp-xlarge": 1091.3}


def flops() -> str:
    """Matrix products only, against the paper's count with elementwise work."""
    rows = []
    for name, published in PUBLISHED_FLOPS.items():
        architecture, preset = find_preset(name)
        counted = account(architecture, preset.config(architecture, {}), preset.task, convention=LABELLED).flops / 1e9
        rows.append([f"`{name}`", f"{counted:.1f}", f"{published:.1f}", f"{100 * (counted / published - 1):+.2f}%"])
    return markdown(["preset", "G FLOPs here", "published", "difference"], rows)


# The paper's BERT has the vocabulary of its other models and no transform in the head; its Table 5 prints these FLOPs.
THEIR_BERT = {"vocab_size": 32000, "head_transform": False, "head_bias": False, "type_vocab_size": 0}
THEIRS = {
    "bert-base": (THEIR_BERT, 100.8),
    "bert-large": (THEIR_BERT, 341.2),
    **{name: ({}, giga) for name, giga in PUBLISHED_FLOPS.items()},
}


def elementwise() -> str:
    """The same with the elementwise work that comes nearest."""
    rows = []
    for name, (overrides, published) in THEIRS.items():
        architecture, preset = find_preset(name)
        config = preset.config(architecture, overrides)
        counted = account(architecture, config, preset.task, convention=PAPERS["flops-elementwise-labelled"])
        products, whole = (flops / 1e9 / published - 1 for flops in (2 * counted.macs, counted.flops))
        rows.append([f"`{name}`", f"{counted.flops / 1e9:.1f}", f"{published:.1f}", f"{100 * whole:+.2f}%", f"{100 * products:+.2f}%"])
    return markdown(["model", "G FLOPs here", "published", "difference", "by matrix products alone"], rows)


# Parameters in millions as Tables 1 and 2 of the paper print them, and G FLOPs of Table 1.
IMAGES = {"gmlp-ti16-224": ("5.9", "6", "2.7"), "gmlp-s16-224": ("19.5", "20", "8.9"), "gmlp-b16-224": ("73.4", "73", "31.6")}


def images() -> str:
    """Vision models as they are here, and with a cls token and a layer before the classifier, as the original ViT has them."""
    rows = []
    for name, printed in IMAGES.items():
        architecture, preset = find_preset(name)
        config, like_vit = (preset.config(architecture, overrides) for overrides in ({}, {"pooling": "cls"}))
        counted = account(architecture, config, preset.task, convention=PAPERS["flops-elementwise"])
        explained = account(architecture, like_vit, preset.task).params + config.hidden_size**2 + config.hidden_size
        rows.append(
            [
                f"`{name}`",
                f"{counted.params:,}",
                f"{explained:,}",
                *(f"{x}M" for x in printed[:2]),
                f"{counted.flops / 1e9:.2f}",
                printed[2],
            ]
        )
    return markdown(["model", "parameters here", "with cls and d x d", "Table 1", "Table 2", "G FLOPs here", "Table 1"], rows)


def layers() -> str:
    """Every layer that an expression can be: how it is written, and what an example costs."""
    rows = []
    for rule in RULES.values():
        layer = parse(rule.example)
        cells = [f"`{rule.usage}`".replace("|", "\\|"), layer.about.replace("|", "\\|"), f"`{rule.example}`"]
        rows.append([*cells, f"{layer.account.params:,}", f"{layer.account.macs:,}"])
    return markdown(["layer", "what it is", "example", "parameters", "MACs"], rows)


def claims() -> str:
    return explanation.markdown_claims(results())


def explained() -> str:
    """One layer in full."""
    return explanation.markdown(explain("attention n=512 d=768 h=12", FULL), ("params", "macs"))


YES = {True: "yes", False: "no"}


def archs() -> str:
    """What every architecture declares, for its smallest preset."""
    rows = []
    for arch in registry.archs():
        small = next(name for name in registry.presets(arch) if name.endswith("-tiny"))
        traits = load(arch).presets[small].config(load(arch), {}).traits
        order = " and ".join(map(str, traits.order))
        cells = [f"[`{arch}`](docs/archs/{arch}.md)", registry.headline(arch), YES[traits.masks], YES[traits.causal]]
        rows.append([*cells, traits.length, order, ", ".join(traits.modalities)])
    return markdown(["architecture", "what it is", "hides padding", "causal", "length", "order", "inputs"], rows)


def options(arch: str) -> str:
    """The settings of an architecture and their defaults."""
    from dataclasses import MISSING, fields

    architecture = load(arch)
    settable = architecture.field_names()
    rows = []
    for field in fields(architecture.config):
        if field.name in settable and field.name not in ("id2label", "label2id", "problem_type", "dtype"):
            default = "" if field.default is MISSING else repr(field.default)
            rows.append([f"`{field.name}`", f"`{default}`"])
    return markdown(["setting", "default"], rows)


ORDER_OF_TOKENS = {"none": "knows places", "shift": "moves with its input", "permutation": "does not know the order"}


def facts() -> str:
    """What the conformance suite verified of every architecture, by what it reads; text and images may differ."""
    rows = []
    for arch in registry.archs():
        seen: dict[str, list[str]] = {}
        for name in [name for name in registry.presets(arch) if "tiny" in name.split("-")]:
            config = load(arch).presets[name].config(load(arch), {})
            traits = config.traits
            reach = "everything" if traits.reach is None else f"{traits.reach} {'tokens' if config.modality == 'text' else 'rows'} away"
            facts = [" and ".join(map(str, traits.order)) or "none", ORDER_OF_TOKENS[traits.equivariance], YES[traits.causal], reach]
            facts += [traits.length, YES[traits.masks]]
            if facts not in seen.values():
                seen[name] = facts
        rows += [[f"`{name}`", *facts] for name, facts in seen.items()]
    header = ["preset", "degree of its mixing", "tokens in another order", "can be causal", "a token reads", "length", "hides padding"]
    return markdown(header, rows)


def proven() -> str:
    """The `ROWS` of the tests: what each proves, against what, and where."""
    rows = []
    for path in [path for folder in ("maps", "analysis", "parity") for path in sorted((ROOT / "tests" / folder).glob("test_*.py"))]:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        tests = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        tables = [node.value for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "ROWS"]
        for what, test in (ast.literal_eval(tables[0]) if tables else {}).items():
            if test not in tests:
                raise SystemExit(f"{path.name}: ROWS name {test}, which is not there")
            said, _, oracle = what.partition(" [")
            rows.append([said, oracle.removesuffix("]"), f"[`{test}`](../{path.relative_to(ROOT)})"])
    return markdown(["what", "against", "test"], rows)


def recipes() -> str:
    """What the recipes reached on real data."""
    return markdown(["data", "recipe", "architecture", "steps", "reached (95%)", "simple methods"], measured.rows())


TABLES: dict[str, Callable[[], str]] = {
    "presets": presets,
    "flops": flops,
    "elementwise": elementwise,
    "images": images,
    "layers": layers,
    "claims": claims,
    "explained": explained,
    "archs": archs,
    "recipes": recipes,
    "facts": facts,
    "proven": proven,
    **{f"options-{arch}": lambda arch=arch: options(arch) for arch in registry.archs()},
}


def render(text: str) -> str:
    def fill(match: re.Match[str]) -> str:
        return f"<!-- table: {match.group(1)} -->\n{TABLES[match.group(1)]()}\n<!-- end -->"

    return re.sub(r"<!-- table: ([\w-]+) -->\n.*?<!-- end -->", fill, text, flags=re.S)


def main() -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    fresh = {path: render(path.read_text(encoding="utf-8")) for path in pages}
    fresh |= {path: measured.with_paragraphs(path) for path in sorted((ROOT / "mixlab" / "recipes").glob("*.py"))}
    stale = []
    for path, text in fresh.items():
        if text != path.read_text(encoding="utf-8"):
            stale.append(str(path.relative_to(ROOT)))
            if "--check" not in sys.argv:
                path.write_text(text, encoding="utf-8")
    print(f"{'stale' if '--check' in sys.argv else 'rewritten'}: {', '.join(stale) or 'nothing'}")
    sys.exit(1 if stale and "--check" in sys.argv else 0)


if __name__ == "__main__":
    main()
