"""Conventions against what publications print: with the right one, their figures come out; its switches do what they say."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import mixlab
from mixlab import registry
from mixlab.accounting import FULL, PAPERS, Account, Convention
from mixlab.modeling.account import account
from mixlab.modeling.architecture import find_preset

# Table 5 of the gMLP paper: G FLOPs of one text of 512 tokens. Its BERT shares the vocabulary of the others and has no transform.
TABLE_5 = {
    "bert-base": 100.8,
    "gmlp-base": 158.0,
    "amlp-base": 128.9,
    "bert-large": 341.2,
    "gmlp-large": 430.1,
    "amlp-large": 370.3,
    "gmlp-xlarge": 1091.3,
}
THEIR_BERT = {"vocab_size": 32000, "head_transform": False, "head_bias": False, "type_vocab_size": 0}
# The 15 language rows of Tables 4 and 5, in millions.
LANGUAGE = {
    **{"gmlp-l18": 59, "gmlp-l36": 102, "gmlp-l72": 187, "gmlp-l144": 357, "gmlp-base": 130, "amlp-base": 109, "gmlp-large": 365},
    **{
        "amlp-large": 316,
        "gmlp-xlarge": 941,
        "bert-base": 110,
        "bert-large": 336,
        "bert-l6": 67,
        "bert-l12": 110,
        "bert-l24": 195,
        "bert-l48": 365,
    },
}
# Of images: parameters as Tables 1 and 2 print them, FLOPs of Table 1.
VISION = {"gmlp-ti16-224": ("5.9", "6", "2.7"), "gmlp-s16-224": ("19.5", "20", "8.9"), "gmlp-b16-224": ("73.4", "73", "31.6")}
# G MACs or G FLOPs, and parameters in millions, as printed elsewhere.
ELSEWHERE = {
    "mobilenet-v1": ("macs", "0.57", "4.2"),
    "poolformer-s12": ("macs", "1.8", "12"),
    "mixer-b-32": ("macs", "3.2", "60"),
    "vit-b-16": ("macs", "17.6", None),
    "swin-s": ("macs", "8.7", None),
}


def counted(preset: str, convention: Convention, **overrides: object) -> Account:
    architecture, found = find_preset(preset)
    return account(architecture, found.config(architecture, overrides), found.task, convention=convention)


def as_paper(preset: str) -> Account:
    overrides = THEIR_BERT if preset.startswith(("bert-base", "bert-large")) else {}
    name = find_preset(preset)[1].counted_as or "flops-elementwise-labelled"
    return counted(preset, PAPERS[name], **overrides)


def printed(value: float, like: str) -> str:
    return f"{value:.{len(like.partition('.')[2])}f}"


@pytest.mark.parametrize(("preset", "giga"), TABLE_5.items())
def test_flops_of_table_5_fit_one_convention_within_a_thousandth(preset: str, giga: float) -> None:
    found = as_paper(preset)
    assert found.flops / 1e9 == pytest.approx(giga, rel=0.001)
    assert -0.007 < 2 * found.macs / 1e9 / giga - 1 < 0  # by matrix products alone


@pytest.mark.parametrize(("preset", "millions"), LANGUAGE.items())
def test_all_language_rows_have_the_printed_parameters(preset: str, millions: int) -> None:
    assert round(as_paper(preset).params / 1e6) == millions


@pytest.mark.parametrize("preset", VISION)
def test_images_have_the_printed_flops_and_what_would_explain_the_printed_parameters(preset: str) -> None:
    """Patches and their mean reproduce Ti alone to all digits; with ViT's cls token and a d x d layer before the classifier all six fit."""
    table_1, table_2, flops = VISION[preset]
    found = as_paper(preset)
    assert printed(found.flops / 1e9, flops) == flops
    d = mixlab.config(preset).hidden_size
    explained = mixlab.account(preset, pooling="cls").params + d * d + d
    assert (printed(explained / 1e6, table_1), printed(explained / 1e6, table_2)) == (table_1, table_2)
    assert found.params / 1e6 == pytest.approx(float(table_1), rel=0.006)


@pytest.mark.parametrize("preset", ELSEWHERE)
def test_other_publications_are_met_by_the_convention_that_is_named(preset: str) -> None:
    unit, giga, millions = ELSEWHERE[preset]
    found = as_paper(preset)
    assert printed(getattr(found, unit) / 1e9, giga) == giga
    assert millions is None or printed(found.params / 1e6, millions) == millions


def test_vit_22b_is_published_as_the_matrices_of_its_blocks() -> None:
    assert as_paper("vit-22b").params == 21_743_271_936 == 48 * (4 * 6144**2 + 2 * 6144 * 24576)


def test_switches_leave_out_what_they_name() -> None:
    full, config = counted("gmlp-base", FULL), mixlab.config("gmlp-base")
    table = config.vocab_size * config.hidden_size
    assert full.params - counted("gmlp-base", Convention(embeddings=False)).params == table
    assert full.macs - counted("gmlp-base", Convention(head="none")).macs == 512 * table
    assert full.macs - counted("gmlp-base", Convention(head="labelled")).macs == (512 - 77) * table
    work = counted("gmlp-base", Convention(elementwise=True))
    assert (work.macs, work.flops) == (full.macs, full.flops + full.total("work"))
    assert full.total("work") > 0


def test_a_toeplitz_product_by_fft_wins_where_texts_are_long() -> None:
    by_fft = Convention(toeplitz="fft")
    assert counted("gmlp-base", by_fft).params == counted("gmlp-base", FULL).params
    assert counted("gmlp-s16-224", by_fft).macs == counted("gmlp-s16-224", FULL).macs  # a dense W has no such way
    few, many = (
        counted("gmlp-base", by_fft, max_position_embeddings=n).macs / counted("gmlp-base", FULL, max_position_embeddings=n).macs
        for n in (4, 4096)
    )
    assert few > 1 > many
    # P = 8 places for n = 4: transforms of 5/2 * 8 * 3 = 60 FLOPs, there and back for each channel, and one of the taps.
    line = next(line for line in counted("gmlp-tiny", by_fft, max_position_embeddings=4).lines if line.name == "W")
    assert line.one("macs") == (60 * (2 * 256 + 1) + 6 * 5 * 256) // 2


def test_every_preset_that_names_a_convention_names_a_known_one() -> None:
    names = {find_preset(preset)[1].counted_as for preset in registry.presets()} - {""}
    assert names == set(PAPERS)


def test_conventions_say_all_that_they_are() -> None:
    notes = [convention.note for convention in PAPERS.values()]
    assert len(set(notes)) == len(PAPERS)
    assert "FLOPs" in PAPERS["flops-elementwise"].note
    assert "by fast Fourier" in Convention(toeplitz="fft").note


@pytest.mark.slow
@pytest.mark.parametrize("preset", registry.presets())
def test_every_preset_for_every_task_has_the_parameters_and_multiply_adds_of_the_real_model(preset: str) -> None:
    for task in mixlab.config(preset).traits.tasks:
        with torch.device("meta"):
            labels = {"num_labels": 7} if "classification" in task else {}
            model = mixlab.create(preset, task=task, **labels).eval()
            found = mixlab.account(preset, task=task, **labels)
            assert sum(p.numel() for p in model.parameters()) == found.params, task
            config = model.config
            if config.modality == "image":
                inputs = {"pixel_values": torch.empty(1, config.num_channels, config.image_size, config.image_size)}
            elif config.modality == "audio":
                inputs = {"input_features": torch.empty(1, config.fewest_frames(found.length), config.num_mel_bins)}
            else:
                inputs = {"inputs_embeds": torch.empty(1, found.length, config.hidden_size)}
        if task == "masked-image-modeling":  # draws which patches it hides, which the meta device cannot
            continue
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model(**inputs)
        assert counter.get_total_flops() == 2 * found.macs, task
