"""What is special to gMLP and aMLP: gates, initialisation, degrees of interaction, stochastic depth, other lengths."""

from __future__ import annotations

from typing import Any, get_args

import pytest
import torch
from torch import Tensor, nn

import mixlab
from mixlab.errors import MixlabError
from mixlab.layers import Tokens
from mixlab.layers.gate import GateKind

GATES = get_args(GateKind)
SMALL = {"num_hidden_layers": 2, "hidden_size": 16, "intermediate_size": 24, "vocab_size": 50, "max_position_embeddings": 12}


def small(preset: str = "gmlp-tiny", task: str = "features", **more: Any) -> Any:
    return mixlab.create(preset, task=task, **{**SMALL, **more}).eval()


def moved(model: Any, scale: float = 0.1) -> Any:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += scale * torch.randn_like(parameter)
    return model


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("arch", ["gmlp", "amlp"])
def test_the_declared_order_is_the_degree_of_the_token_mixing(gate: str, arch: str) -> None:
    """With norms, biases, activation and softmax taken away, each mixing term is homogeneous: scaling x by 2 scales it by 2^order."""
    model = moved(small(f"{arch}-tiny", gate=gate, attention_size=8) if arch == "amlp" else small(gate=gate)).double()
    block = model.body.blocks[0]
    for module in block.modules():
        if isinstance(module, nn.Linear):
            module.bias.data.zero_()
    block.norm = block.gate.norm = nn.Identity()
    block.activation = lambda x: x
    block.gate.bias.data.zero_()

    def spatial_term(x: Tensor) -> Tensor:
        z = block.U(x)
        u, v = z.chunk(2, -1) if gate == "split" else (z, z)
        f = block.gate.project(v, Tokens(x))
        return u * f if gate in ("multiplicative", "split") else f

    def attention_term(x: Tensor) -> Tensor:
        q, k, v = block.attention.qkv(x).chunk(3, -1)
        z = block.U(x)
        u = z.chunk(2, -1)[0] if gate == "split" else z
        mixed = block.attention.out(q @ k.mT @ v)
        return u * mixed if gate in ("multiplicative", "split") else mixed

    terms = [spatial_term, attention_term] if arch == "amlp" else [spatial_term]
    x = torch.randn(1, 5, 16, dtype=torch.float64)
    with torch.no_grad():
        degrees = [round(float(torch.log2(term(2 * x).norm() / term(x).norm())), 6) for term in terms]
    assert tuple(degrees) == model.config.traits.order


@pytest.mark.parametrize("structure", ["dense", "toeplitz"])
@pytest.mark.parametrize("gate", GATES)
def test_spatial_weights_begin_as_configured(gate: str, structure: str) -> None:
    model = small(gate=gate, spatial_structure=structure, spatial_init_std=0.02, max_position_embeddings=100)
    for block in model.body.blocks:
        numbers = torch.cat([p.flatten() for p in block.gate.spatial.parameters()])
        assert numbers.std().item() == pytest.approx(0.02, rel=0.15)
        assert bool((block.gate.bias == (1.0 if gate in ("multiplicative", "split") else 0.0)).all())
    assert bool((small(spatial_bias_init=0.5).body.blocks[0].gate.bias == 0.5).all())


def test_a_new_model_is_its_feed_forward_network() -> None:
    """b = 1 and W near 0: the gate multiplies u by about 1, whatever the other tokens are."""
    model = mixlab.create("gmlp-tiny", task="features").eval()
    x = torch.randn(2, 64, model.config.hidden_size)
    for block in model.body.blocks:
        u = block.activation(block.U(block.norm(x))).chunk(2, -1)[0]
        # W v is a sum of n products of deviation 0.001: 0.008 at n = 64, so gates lie within 0.05 of 1.
        torch.testing.assert_close(block(Tokens(x)).x, x + block.V(u), rtol=0, atol=0.05 * float(block.V(u).abs().max()))


def test_every_setting_reaches_the_layer_that_it_is_about() -> None:
    settings = {"layer_norm_eps": 1e-3, "gate_norm_eps": 1e-4, "hidden_dropout": 0.1, "attention_dropout": 0.2, "drop_path": 0.3}
    shapes = {"gate_heads": 4, "num_attention_heads": 2, "qkv_bias": False, "spatial_bias_init": 0.5, "gate_activation": "tanh"}
    model = mixlab.create("amlp-tiny", task="causal-lm", hidden_act="gelu_pytorch_tanh", num_hidden_layers=2, **settings, **shapes)
    assert model.model.body.norm.eps == 1e-3
    for block in model.model.body.blocks:
        assert (block.norm.eps, block.gate.norm.eps) == (1e-3, 1e-4)
        assert (block.dropout.p, block.drop_path.rate, block.attention.dropout) == (0.1, 0.3, 0.2)
        assert (block.gate.spatial.heads, block.attention.heads, block.attention.qkv.bias) == (4, 2, None)
        assert block.gate.spatial.causal
        assert block.attention.causal
        assert block.gate.activation == "tanh"
        assert bool((block.gate.bias == 0.5).all())
        x = torch.linspace(-3, 3, 7)
        torch.testing.assert_close(block.activation(x), torch.nn.GELU("tanh")(x), rtol=0, atol=0)


@pytest.mark.parametrize("final_norm", [True, False])
def test_the_last_block_is_followed_by_a_norm_unless_told_otherwise(final_norm: bool) -> None:
    model = moved(small(final_norm=final_norm))
    left: list[Tensor] = []
    model.body.blocks[-1].register_forward_hook(lambda _module, _inputs, output: left.append(output.x))
    answer = model(torch.randint(0, 50, (2, 6))).last_hidden_state
    centred = left[0] - left[0].mean(-1, keepdim=True)
    normed = centred / (centred.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    wanted = normed * model.body.norm.weight + model.body.norm.bias if final_norm else left[0]
    torch.testing.assert_close(answer, wanted, rtol=0, atol=1e-5)


def test_blocks_do_not_share_parameters() -> None:
    model = small()
    names = [name for name, _ in model.body.named_parameters(remove_duplicate=True)]
    assert len(names) == len(list(model.body.named_parameters(remove_duplicate=False)))


@pytest.mark.parametrize(("schedule", "rates"), [("constant", [0.3, 0.3, 0.3]), ("linear", [0.0, 0.15, 0.3])])
def test_stochastic_depth_follows_its_schedule_and_is_off_in_evaluation(schedule: str, rates: list[float]) -> None:
    model = small(num_hidden_layers=3, drop_path=0.3, drop_path_schedule=schedule)
    assert [block.drop_path.rate for block in model.body.blocks] == pytest.approx(rates)
    ids = torch.randint(0, 50, (4, 9))
    assert torch.equal(model(ids).last_hidden_state, model(ids).last_hidden_state)
    model.train()
    assert not torch.equal(model(ids).last_hidden_state, model(ids).last_hidden_state)


def test_stochastic_depth_leaves_out_samples_not_batches() -> None:
    model = moved(small(num_hidden_layers=1, drop_path=0.5)).train()
    block = model.body.blocks[0]
    x = torch.randn(200, 5, 16)
    unchanged = (block(Tokens(x)).x == x).flatten(1).all(1)
    assert 70 < int(unchanged.sum()) < 130


@pytest.mark.parametrize("task", ["features", "causal-lm"])
@pytest.mark.parametrize("structure", ["dense", "toeplitz"])
def test_another_length_keeps_what_was_learned(structure: str, task: str) -> None:
    model = moved(small(task=task, spatial_structure=structure))
    ids = torch.randint(0, 50, (2, 10))
    before = model(ids)[0]
    said = model.resize_length(40)
    assert model.config.max_position_embeddings == 40
    assert "2 layers" in said
    assert ("extended" in said) == (structure == "toeplitz")
    torch.testing.assert_close(model(ids)[0], before, rtol=0, atol=1e-6)
    assert model(torch.randint(0, 50, (1, 40)))[0].shape[1] == 40
    model.resize_length(10)
    torch.testing.assert_close(model(ids)[0], before, rtol=0, atol=1e-6)
    with pytest.raises(MixlabError, match="11 tokens"):
        model(torch.randint(0, 50, (1, 11)))


def test_a_resized_model_is_saved_and_loaded(tmp_path: Any) -> None:
    model = moved(small())
    model.resize_length(20)
    model.save_pretrained(tmp_path)
    ids = torch.randint(0, 50, (1, 20))
    assert torch.equal(type(model).from_pretrained(tmp_path).eval()(ids)[0], model(ids)[0])


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_an_image_model_takes_larger_images_after_interpolation(pooling: str) -> None:
    """On a smooth picture, the interpolated model says about what the old one said of the small picture."""
    model = mixlab.create("gmlp-tiny-image", task="features", num_hidden_layers=1, pooling=pooling, patch_size=1, image_size=8).eval()
    with torch.no_grad():
        spatial = model.body.blocks[0].gate.spatial
        smooth = nn.functional.interpolate(torch.randn(1, 1, 3, 3), size=(8, 8), mode="bilinear").flatten()
        spatial.weight += 0.3 * torch.outer(torch.ones(spatial.length), torch.cat([torch.zeros(spatial.length - 64), smooth])) / 8
    picture = nn.functional.interpolate(torch.randn(1, 3, 2, 2), size=(8, 8), mode="bilinear")
    large = nn.functional.interpolate(picture, size=(16, 16), mode="bilinear")
    before = model(pixel_values=picture).last_hidden_state[:, -64:].mean(1)
    said = model.resize_length(256)
    assert "interpolated in 2-D from 8 x 8 to 16 x 16" in said
    assert model.config.image_size == 16
    after = model(pixel_values=large).last_hidden_state[:, -256:].mean(1)
    assert float((after - before).abs().max()) < 0.05 * float(before.abs().max())
    with pytest.raises(MixlabError, match="square"):
        model.resize_length(60)


def test_a_toeplitz_image_model_cannot_be_interpolated() -> None:
    model = mixlab.create("gmlp-tiny-image", task="features", num_hidden_layers=1, spatial_structure="toeplitz")
    with pytest.raises(MixlabError, match="no rows and columns"):
        model.resize_length(256)


@pytest.mark.parametrize("preset", ["gmlp-tiny", "amlp-tiny"])
def test_the_plain_block_is_the_block_of_the_model(preset: str) -> None:
    """`mixlab.layers.GMLPBlock`, for anyone's own model, has the parameters and the output of the architecture's."""
    if preset == "amlp-tiny":
        assert "attention.qkv.weight" in small(preset, attention_size=8).body.blocks[0].state_dict()
        return
    from mixlab.layers import GMLPBlock

    theirs = moved(small(spatial_structure="dense")).body.blocks[0]
    mine = GMLPBlock(16, 24, 12).eval()
    mine.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 7, 16)
    torch.testing.assert_close(mine(x), theirs(Tokens(x)).x)


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({}, "give either input_ids or inputs_embeds"),
        ({"pixel_values": torch.zeros(1, 3, 8, 8)}, "reads text"),
        ({"input_ids": torch.zeros(1, 13, dtype=torch.long)}, "at most 12"),
        ({"input_ids": torch.tensor([[50]])}, "outside 0..49"),
        ({"input_ids": torch.tensor([[-1]])}, "hold -1"),
        ({"input_ids": torch.zeros(5, dtype=torch.long)}, "shape"),
        ({"input_ids": torch.zeros(1, 5)}, "whole numbers"),
        ({"input_ids": torch.zeros(1, 5, dtype=torch.bool)}, "whole numbers"),
        ({"input_ids": [[1, 2]]}, "got a list"),
        ({"inputs_embeds": torch.zeros(2, 5, 7)}, "expected (batch, tokens, 16)"),
        ({"inputs_embeds": torch.zeros(5, 16)}, "expected (batch, tokens, 16)"),
        ({"input_ids": torch.zeros(1, 0, dtype=torch.long)}, "no token"),
        ({"input_ids": torch.zeros(2, 5, dtype=torch.long), "attention_mask": torch.ones(2, 6)}, "expected (2, 5)"),
        ({"input_ids": torch.zeros(2, 5, dtype=torch.long), "attention_mask": torch.ones(2, 5, 5)}, "expected (2, 5)"),
        ({"input_ids": torch.zeros(2, 5, dtype=torch.long), "attention_mask": torch.tensor([[1] * 5, [0] * 5])}, "row 1"),
        (
            {"input_ids": torch.zeros(2, 5, dtype=torch.long), "attention_mask": torch.tensor([[0.0] * 5, [0.0, -1e9] * 2 + [0.0]])},
            "holds -1000000000",
        ),
        ({"input_ids": torch.zeros(1, 2, dtype=torch.long), "attention_mask": torch.tensor([[1.0, float("nan")]])}, "holds nan"),
        ({"input_ids": torch.zeros(2, 5, dtype=torch.long), "token_type_ids": torch.ones(2, 5, dtype=torch.long)}, "token_type_ids hold 1"),
        ({"input_ids": torch.zeros(2, 5, dtype=torch.long), "token_type_ids": torch.zeros(2, 4, dtype=torch.long)}, "one per token"),
        ({"input_ids": torch.zeros(2, 5, dtype=torch.long), "use_cache": True}, "needs a causal model"),
    ],
)
def test_wrong_inputs_are_refused_in_one_line(inputs: dict[str, Tensor], said: str) -> None:
    with pytest.raises(MixlabError) as caught:
        small()(**inputs)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_image_that_no_processor_has_seen_is_refused() -> None:
    """Bytes of 0 to 255 are not what a model learns from."""
    with pytest.raises(MixlabError, match=r"pixel_values are torch\.uint8, expected floats"):
        mixlab.create("gmlp-tiny-image")(pixel_values=torch.zeros(1, 3, 32, 32, dtype=torch.uint8))


TEXTS = torch.zeros(2, 5, dtype=torch.long)
LISTED: list[tuple[str, dict[str, Any]]] = [  # task, and an input that somebody forgot to make a tensor
    ("masked-lm", {"input_ids": [[1, 2]]}),
    ("masked-lm", {"input_ids": TEXTS, "attention_mask": [[1] * 5] * 2}),
    ("masked-lm", {"inputs_embeds": [[0.5]]}),
    ("masked-lm", {"input_ids": TEXTS, "labels": [[1] * 5] * 2}),
    ("sequence-classification", {"input_ids": TEXTS, "labels": [1, 0]}),
    ("image-classification", {"pixel_values": [0.5]}),
    ("image-classification", {"pixel_values": torch.zeros(1, 3, 32, 32), "labels": 3}),
]


@pytest.mark.parametrize(("task", "inputs"), LISTED)
def test_what_is_no_tensor_is_refused_in_one_line(task: str, inputs: dict[str, Any]) -> None:
    model = mixlab.create("gmlp-tiny-image", num_hidden_layers=1) if task.startswith("image") else small(task=task)
    with pytest.raises(MixlabError, match=r"must be a tensor.*, got a (list|int)") as caught:
        model(**inputs)
    assert "\n" not in str(caught.value)


LABELS: list[tuple[str, dict[str, Tensor], str]] = [  # task, labels, what the refusal says
    ("masked-lm", {"labels": torch.full((2, 5), 50)}, "labels hold 50, outside 0..49"),
    ("masked-lm", {"labels": torch.full((2, 5), -1)}, "labels hold -1"),
    ("masked-lm", {"labels": torch.zeros(2, 5)}, "call labels.long()"),
    ("masked-lm", {"labels": torch.zeros(2, 4, dtype=torch.long)}, "expected (2, 5)"),
    ("causal-lm", {"labels": torch.full((2, 5), 50)}, "labels hold 50"),
    ("causal-lm", {"shift_labels": torch.full((2, 5), 50)}, "labels hold 50"),
    ("token-classification", {"labels": torch.full((2, 5), 3)}, "labels hold 3, outside 0..2"),
    ("sequence-classification", {"labels": torch.tensor([0, 3])}, "labels hold 3, outside 0..2"),
    ("sequence-classification", {"labels": torch.tensor([0])}, "expected (2,)"),
    ("sequence-classification", {"labels": torch.zeros(2, 4)}, "expected (2, 3)"),
    ("question-answering", {"start_positions": torch.tensor([1]), "end_positions": torch.tensor([1])}, "expected (2,)"),
    ("question-answering", {"start_positions": torch.tensor([1, 1])}, "give both"),
]


@pytest.mark.parametrize(("task", "labels", "said"), LABELS)
def test_wrong_labels_are_refused_in_one_line(task: str, labels: dict[str, Tensor], said: str) -> None:
    """The loss would raise an error of its own, and on a GPU end the process."""
    more = {"num_labels": 3} if task.endswith("classification") else {}
    with pytest.raises(MixlabError) as caught:
        small(task=task, **more)(TEXTS, **labels)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("labels", "settings"),
    [
        (torch.tensor([2, 0]), {"num_labels": 3}),
        (torch.tensor([[2], [0]]), {"num_labels": 3}),
        (torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]]), {"num_labels": 3}),
        (torch.tensor([0.3, 0.9]), {"num_labels": 1}),
        (torch.rand(2, 3), {"num_labels": 3, "problem_type": "regression"}),
    ],
)
def test_every_kind_of_label_of_a_text_has_a_loss(labels: Tensor, settings: dict[str, Any]) -> None:
    assert small(task="sequence-classification", **settings)(TEXTS, labels=labels).loss.isfinite()


def test_wrong_labels_of_an_image_are_refused() -> None:
    with pytest.raises(MixlabError, match=r"labels hold 10, outside 0\.\.9"):
        mixlab.create("gmlp-tiny-image", num_hidden_layers=1)(pixel_values=torch.zeros(1, 3, 32, 32), labels=torch.tensor([10]))


SEVERAL = {"num_labels": 3, "problem_type": "multi_label_classification"}


@pytest.mark.parametrize(
    ("labels", "settings", "said"),
    [
        (torch.zeros(3, 2), {"num_labels": 3}, "labels of shape (3, 2), expected (2, 3)"),
        (torch.zeros(6), {"num_labels": 3}, "labels of shape (6,), expected (2, 3)"),
        (torch.zeros(3, 2), {"num_labels": 3, "problem_type": "regression"}, "labels of shape (3, 2), expected (2, 3)"),
        (torch.zeros(1, 2), {"num_labels": 1}, "labels of shape (1, 2), expected (2,)"),
        (torch.zeros(2), {**SEVERAL, "num_labels": 1}, "labels of shape (2,), expected (2, 1)"),
        (torch.zeros(2, 3, dtype=torch.long), SEVERAL, "labels are torch.int64"),
    ],
)
def test_as_many_labels_in_another_shape_are_refused(labels: Tensor, settings: dict[str, Any], said: str) -> None:
    image = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, **settings}
    for model, read in ((small(task="sequence-classification", **settings), TEXTS), (mixlab.create("gmlp-tiny-image", **image), None)):
        with pytest.raises(MixlabError) as caught:
            model(read, labels=labels) if read is not None else model(pixel_values=torch.zeros(2, 3, 32, 32), labels=labels)
        assert said in str(caught.value)


@pytest.mark.parametrize("length", [0, -3, 2**24 + 1, 2.5, "9", True])
def test_a_length_that_is_none_is_refused(length: Any) -> None:
    model = small()
    before = model.config.length
    with pytest.raises(MixlabError, match="a whole number"):
        model.resize_length(length)
    assert {block.gate.length for block in model.base_model.body.blocks} == {model.config.length} == {before}


def test_segments_are_read_where_a_model_has_them() -> None:
    model = moved(small(type_vocab_size=2))
    ids = torch.randint(0, 50, (1, 6))
    zero, one = torch.zeros_like(ids), torch.ones_like(ids)
    assert torch.equal(model(ids)[0], model(ids, token_type_ids=zero)[0])
    assert not torch.equal(model(ids)[0], model(ids, token_type_ids=one)[0])
    small()(ids, token_type_ids=zero)  # says nothing, so a model without segments accepts it


@pytest.mark.parametrize("padding", ["left", "right"])
@pytest.mark.parametrize("pooling", ["cls", "mean", "last"])
def test_pooling_looks_at_real_tokens(pooling: str, padding: str) -> None:
    task = "sequence-classification"
    more = {"causal": True} if pooling == "last" else {}
    model = moved(small(task=task, pooling=pooling, **more))
    ids = torch.randint(0, 50, (1, 9))
    mask = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1, 1]])
    if padding == "right":
        mask = mask.flip(1)
    torch.testing.assert_close(model(ids, attention_mask=mask).logits, model(ids[mask.bool()][None]).logits, rtol=0, atol=1e-5)
