"""transformers' own models, with the same random weights, say the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import save_file

import mixlab
from mixlab.modeling.convert import import_model

ROWS = {
    "BERT with learned positions [transformers BertForMaskedLM]": "test_bert",
    "BERT: exact parameters of bert-base and bert-large [transformers]": "test_counts_of_bert",
}

SIZES = {"vocab_size": 60, "num_hidden_layers": 3, "intermediate_size": 40, "max_position_embeddings": 24}


def bert(heads: int) -> transformers.BertForMaskedLM:
    config = transformers.BertConfig(
        **SIZES, hidden_size=32, num_attention_heads=heads, hidden_dropout_prob=0, attention_probs_dropout_prob=0
    )
    model = transformers.BertForMaskedLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return model


@pytest.mark.parametrize("heads", [1, 4])
def test_bert(heads: int, tmp_path: Path) -> None:
    theirs = bert(heads)
    save_file({name: tensor.contiguous().clone() for name, tensor in theirs.state_dict().items()}, tmp_path / "model.safetensors")
    ours, report = import_model(str(tmp_path / "model.safetensors"), settings={"num_attention_heads": heads})
    assert (report.architecture, report.missing, report.unused) == ("bert", [], [])
    ids = torch.randint(0, 60, (2, 17))
    segments = torch.randint(0, 2, (2, 17))
    mask = torch.ones_like(ids)
    mask[1, 11:] = 0
    kept = mask.bool()
    expected = theirs(input_ids=ids, token_type_ids=segments, attention_mask=mask)
    found = ours(input_ids=ids, token_type_ids=segments, attention_mask=mask)
    torch.testing.assert_close(found.logits[kept], expected.logits[kept], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("preset", "sizes"),
    [
        ("bert-base", {}),
        ("bert-large", {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}),
    ],
)
def test_counts_of_bert(preset: str, sizes: dict[str, int]) -> None:
    with torch.device("meta"):
        theirs = transformers.BertForMaskedLM(transformers.BertConfig(**sizes))
    assert mixlab.account(preset).params == sum(parameter.numel() for parameter in theirs.parameters())
