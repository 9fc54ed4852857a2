"""Every architecture does what it declares. Cases are chosen by declared trait, never by name.

Axes: b batch, n tokens, d channels.
"""

from __future__ import annotations

import copy
import io
from contextlib import nullcontext
from dataclasses import fields
from typing import Any, get_args

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

import mixlab
from mixlab.errors import MixlabError
from mixlab.layers import Tokens
from mixlab.modeling.architecture import load
from tests.conformance.cases import CLASSIFIES_WHOLE, Case, cases, cases_with, class_of, main_output, with_labels

TASKS = [pytest.param(case, task, id=f"{case.name}-{task}") for case in cases() for task in case.traits.tasks]


def over(found: list[Case]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", found, ids=[case.name for case in found])


def longest(model: Any) -> int:
    """The cap, or, where there is none, a length that stands for all."""
    return model.config.max_position_embeddings or 40


def close(a: Tensor, b: Tensor, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=tolerance)


@pytest.mark.parametrize(("case", "task"), TASKS)
def test_every_task_has_its_shapes_and_a_loss_that_reaches_every_parameter(case: Case, task: str) -> None:
    model = case.build(task)
    inputs = with_labels(case, task, case.inputs(), model)
    output = model(**inputs)
    assert main_output(output).dtype == torch.float32
    assert main_output(output).shape[0] == 2
    if task in ("masked-lm", "causal-lm"):
        assert output.logits.shape == (2, 13, model.config.vocab_size)
    if task == "token-classification":
        assert output.logits.shape == (2, 13, model.config.num_labels)
    if task == "question-answering":
        assert output.start_logits.shape == output.end_logits.shape == (2, 13)
    if task in CLASSIFIES_WHOLE:
        assert output.logits.shape == (2, model.config.num_labels)
    loss = output.last_hidden_state.square().mean() if task == "features" else output.loss
    loss.backward()
    # A bias on the logits of all places alike moves no softmax over places: its gradient is 0 but for rounding.
    shifts = {"qa_outputs.bias"}
    learns = [(name, p.grad) for name, p in model.named_parameters() if p.requires_grad]  # fixed positions do not
    without = [name for name, grad in learns if grad is None or not (name in shifts or bool((grad != 0).any()))]
    assert not without


@over(cases())
def test_a_batch_of_two_is_two_batches_of_one(case: Case) -> None:
    model, inputs = case.features(), case.inputs()
    both = model(**inputs).last_hidden_state
    alone = [model(**{name: value[i : i + 1] for name, value in inputs.items()}).last_hidden_state for i in range(2)]
    close(both, torch.cat(alone), 1e-5 * max(1.0, float(both.detach().abs().max())))  # rounding grows with what is rounded


PADDINGS = {
    "right": [1] * 9 + [0] * 4,
    "left": [0] * 4 + [1] * 9,
    "holes": [0, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1, 1, 0],
}


@over(cases_with(masks=True, modality="text"))
@pytest.mark.parametrize("padding", PADDINGS)
def test_padding_is_never_read(case: Case, padding: str) -> None:
    model = case.features()
    ids = case.inputs(batch=3)["input_ids"]
    mask = torch.ones_like(ids)
    mask[1] = torch.tensor(PADDINGS[padding])
    kept = mask[1].bool()
    together = model(input_ids=ids, attention_mask=mask).last_hidden_state
    alone = model(input_ids=ids[1:2, kept]).last_hidden_state
    close(together[1, kept], alone[0])
    close(together[0], model(input_ids=ids[:1]).last_hidden_state[0])
    noisy = ids.clone()
    noisy[1, ~kept] = (noisy[1, ~kept] + 7) % model.config.vocab_size
    assert torch.equal(model(input_ids=noisy, attention_mask=mask).last_hidden_state[1, kept], together[1, kept])


@over(cases_with(masks=True, modality="audio"))
def test_frames_of_padding_are_never_read(case: Case) -> None:
    model, inputs = case.features(), case.inputs(batch=2)
    frames = inputs["input_features"]
    for real in (frames.shape[1] - 1, frames.shape[1] // 2 + 1, model.config.fewest_frames(1)):  # within a token too
        mask = torch.ones(frames.shape[:2], dtype=torch.long)
        mask[1, real:] = 0
        together = model(input_features=frames, attention_mask=mask).last_hidden_state
        alone = model(input_features=frames[1:, :real]).last_hidden_state
        assert int(model.token_mask(mask)[1].sum()) == alone.shape[1]
        close(together[1, : alone.shape[1]], alone[0])
        close(together[0], model(input_features=frames[:1]).last_hidden_state[0])
        noisy = frames.clone()
        noisy[1, real:] = torch.nan
        read = model(input_features=noisy, attention_mask=mask).last_hidden_state
        assert torch.equal(read[1, : alone.shape[1]], together[1, : alone.shape[1]])
    mask = torch.ones(frames.shape[:2], dtype=torch.long)
    mask[1, 0] = 0
    with pytest.raises(MixlabError, match="pad recordings behind"):
        model(input_features=frames, attention_mask=mask)


@over(cases_with(modality="audio"))
def test_frames_that_make_no_token_are_refused(case: Case) -> None:
    model, fewest = case.features(), case.config().fewest_frames(1)
    frames = torch.randn(2, fewest, case.config().num_mel_bins)
    assert model(input_features=frames).last_hidden_state.shape[1] == 1
    with pytest.raises(MixlabError, match=f"a recording of {fewest - 1} frames"):
        model(input_features=frames[:, 1:])
    if case.traits.masks:
        mask = torch.ones(frames.shape[:2], dtype=torch.long)
        mask[1, fewest - 1] = 0
        with pytest.raises(MixlabError, match=f"leaves a recording {fewest - 1} frames"):
            model(input_features=frames, attention_mask=mask)


@over(cases_with(masks=False, modality="text"))
def test_a_mask_that_cannot_be_honoured_is_refused(case: Case) -> None:
    model, inputs = case.features(), case.inputs()
    mask = torch.ones_like(inputs["input_ids"])
    model(**inputs, attention_mask=mask)  # hides nothing
    mask[0, -1] = 0
    with pytest.raises(MixlabError, match="cannot hide padding"):
        model(**inputs, attention_mask=mask)


def influence(model: Any, embedded: Tensor) -> Tensor:
    """[i, j]: how strongly token i of the output depends on token j of the input."""
    embedded = embedded.detach().requires_grad_()
    hidden = model(inputs_embeds=embedded).last_hidden_state
    weights = torch.randn_like(hidden)
    rows = [torch.autograd.grad((hidden * weights)[0, i].sum(), embedded, retain_graph=True)[0][0] for i in range(hidden.shape[1])]
    return torch.stack(rows).abs().amax(-1)


@over(cases_with(causal=True))
def test_a_causal_model_never_reads_ahead(case: Case) -> None:
    model = case.features(causal=True, pooling="last")
    read = influence(model, torch.randn(1, 11, model.config.hidden_size))
    assert bool((read.triu(1) == 0).all())
    assert bool((read.diagonal() > 0).all())
    assert bool((read.diagonal(-1) > 0).all())


@over(cases_with(causal=True))
def test_a_bidirectional_model_reads_both_sides(case: Case) -> None:
    both_sides = {"causal": False, "pooling": "cls"} if case.config().causal else {}
    model = case.features(**both_sides)
    read = influence(model, torch.randn(1, 11, model.config.hidden_size))
    assert bool((read.diagonal(1) > 0).all())
    assert bool((read.diagonal(-1) > 0).all())


@over(cases_with(causal=False, modality="text"))
def test_a_model_that_cannot_be_causal_refuses(case: Case) -> None:
    with pytest.raises(MixlabError):
        case.build("causal-lm")


@over([case for kind in ("text", "audio") for case in cases_with(modality=kind)])
def test_the_length_policy_is_as_declared(case: Case) -> None:
    model, policy = case.features(), case.traits.length
    n = longest(model)
    for length, accepted in {
        n // 2: policy in ("any", "cap"),
        n: True,
        n + 1: policy == "any",
        2 * n: policy == "any",
    }.items():
        inputs = case.inputs(batch=1, length=length)
        if accepted:
            assert model(**inputs).last_hidden_state.shape[1] == length
        else:
            with pytest.raises(MixlabError, match=str(length)):
                model(**inputs)


@over(cases_with(modality="image", length="fixed"))
def test_an_image_of_another_size_is_refused(case: Case) -> None:
    model, pixels = case.features(), case.inputs()["pixel_values"]
    side = pixels.shape[-1]
    for wrong in (side // 2, side + 1, 2 * side):
        with pytest.raises(MixlabError, match=f"an image of {wrong} x {wrong}; this model reads {side} x {side}"):
            model(pixel_values=torch.zeros(1, pixels.shape[1], wrong, wrong))


@over([case for policy in ("any", "grid") for case in cases_with(modality="image", length=policy)])
def test_images_of_other_sizes_are_read_or_refused(case: Case) -> None:
    """Sides of any multiple, also unequal ones; anything else is refused."""
    model, config = case.features(), case.config()
    step = config.image_multiple
    for height, width in ((step, step), (2 * step, 3 * step), (config.image_size, config.image_size + step)):
        output = model(pixel_values=torch.randn(1, config.num_channels, height, width)).last_hidden_state
        assert output.shape == (1, height * width // config.final_patch**2 + config.prefix_tokens, config.hidden_size)
    if step > 1:
        with pytest.raises(MixlabError, match=f"multiples of {step}"):
            model(pixel_values=torch.zeros(1, config.num_channels, step, step + 1))


DECODER = {"decoder_hidden_size": 32, "decoder_num_layers": 1, "decoder_intermediate_size": 64, "decoder_num_attention_heads": 2}


@over(cases_with(task="masked-image-modeling"))
def test_hidden_patches_are_never_read(case: Case) -> None:
    """Covered by a token or left out: what is predicted does not depend on what was there, and every parameter learns."""
    for masking in ("token", "drop") if case.traits.drops else ("token",):
        model = case.build("masked-image-modeling", masking=masking, **DECODER)
        inputs = with_labels(case, "masked-image-modeling", case.inputs(), model)
        output = model(**inputs)
        output.loss.backward()
        assert [name for name, p in model.named_parameters() if p.grad is None and p.requires_grad] == []
        patch, grid = model.config.patch_size, model.config.grid
        assert int(output.mask[0].sum()) == grid * grid - max(1, int(grid * grid * 0.25))
        hidden = output.mask.bool().unflatten(1, (grid, grid))[:, None].repeat_interleave(patch, 2).repeat_interleave(patch, 3)
        other = torch.where(hidden, torch.randn_like(inputs["pixel_values"]), inputs["pixel_values"])
        assert torch.equal(model(pixel_values=other, noise=inputs["noise"]).logits, output.logits)
    if not case.traits.drops:
        with pytest.raises(MixlabError, match="cannot leave patches out"):
            case.config(masking="drop")


@over(cases_with(task="image-restoration"))
def test_restoration_begins_as_the_identity_and_enlarges(case: Case) -> None:
    pixels = case.inputs()["pixel_values"]
    model = mixlab.create(case.preset, task="image-restoration", **case.sizes()).eval()
    assert torch.equal(model(pixel_values=pixels).reconstruction, pixels)
    larger = case.build("image-restoration", upscale=2)(pixel_values=pixels).reconstruction
    assert larger.shape == (*pixels.shape[:2], 2 * pixels.shape[2], 2 * pixels.shape[3])


@over(cases_with(length="cap"))
def test_a_shorter_text_uses_the_corner_of_a_longer_one(case: Case) -> None:
    """Cropping is exact: a causal model says the same about a prefix, whatever follows."""
    model = case.features(causal=True, pooling="last") if case.traits.causal else None
    if model is None:
        return
    ids = case.inputs(batch=1, length=20)["input_ids"]
    close(model(input_ids=ids).last_hidden_state[:, :7], model(input_ids=ids[:, :7]).last_hidden_state)


@pytest.mark.parametrize(("case", "task"), TASKS)
def test_saving_and_loading_changes_nothing(case: Case, task: str, tmp_path: Any) -> None:
    import transformers

    from mixlab.modeling.tasks import TASK_HEADS

    model = case.build(task)
    inputs = with_labels(case, task, case.inputs(), model) if task == "masked-image-modeling" else case.inputs()
    model.save_pretrained(tmp_path)
    expected = main_output(model(**inputs))
    for loader in (class_of(case, task), getattr(transformers, TASK_HEADS[task].auto_class)):
        loaded = loader.from_pretrained(tmp_path).eval()
        assert type(loaded) is type(model)
        for name, tensor in model.state_dict().items():
            assert torch.equal(loaded.state_dict()[name], tensor), name
        assert [p.requires_grad for p in loaded.parameters()] == [p.requires_grad for p in model.parameters()]
        assert torch.equal(main_output(loaded(**inputs)), expected)
    assert transformers.AutoConfig.from_pretrained(tmp_path).to_dict() == loaded.config.to_dict()


@over(cases())
def test_gradient_checkpointing_changes_nothing(case: Case) -> None:
    plain = case.features().train()
    checkpointed = copy.deepcopy(plain)
    checkpointed.activation_checkpointing_enable()
    every_second = copy.deepcopy(plain)
    every_second.activation_checkpointing_enable(every_n_layers=2)
    outputs = []
    for model in (plain, checkpointed, every_second):
        torch.manual_seed(5)
        output = model(**case.inputs(), output_hidden_states=True)
        output.last_hidden_state.square().mean().backward()
        outputs.append(output)
    for model, output in zip((checkpointed, every_second), outputs[1:], strict=True):
        assert torch.equal(outputs[0].last_hidden_state, output.last_hidden_state)
        assert len(outputs[0].hidden_states) == len(output.hidden_states)
        for (name, a), b in zip(plain.named_parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad, msg=name)
        for (name, a), b in zip(plain.named_buffers(), model.buffers(), strict=True):
            assert torch.equal(a, b), name  # statistics of a batch norm


@over(cases())
def test_checkpointing_recomputes_the_layers_that_it_should(case: Case) -> None:
    """The forward of a checkpointed block runs twice, of the others once."""
    model = case.features(**({} if case.hierarchical else {"num_hidden_layers": 3})).train()
    blocks = getattr(model.body, "blocks", None)
    count = 0 if blocks is None else len(blocks)
    for every, expected in ((1, 2 * count), (2, count + (count + 1) // 2)) if count else ():
        calls: list[int] = []
        hooks = [block.register_forward_pre_hook(lambda *_, calls=calls: calls.append(1)) for block in blocks]
        model.activation_checkpointing_enable(every_n_layers=every)
        model(**case.inputs()).last_hidden_state.sum().backward()
        assert len(calls) == expected
        for hook in hooks:
            hook.remove()


@over(cases())
def test_the_same_seed_builds_the_same_model(case: Case) -> None:
    states = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        states.append(mixlab.create(case.preset, task="features", **case.sizes()).state_dict())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert any(not torch.equal(states[0][name], states[2][name]) for name in states[0])


@over(cases())
def test_parameters_begin_as_they_should(case: Case) -> None:
    """torch's own layers: weights of deviation `initializer_range`, no bias, norms that do nothing yet.

    A layer that begins with a deviation of its own says which.
    """
    model = mixlab.create(case.preset, task="features", **case.sizes())
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.LayerNorm):
            assert bool((module.weight == 1).all()), name
            assert bool((module.bias == 0).all()), name
        elif isinstance(module, torch.nn.Linear | torch.nn.Embedding) and module.weight.numel() > 4000:
            assert module.weight.std().item() == pytest.approx(getattr(module, "std", model.config.initializer_range), rel=0.1), name
            assert abs(module.weight.mean().item()) < 0.002, name
            if isinstance(module, torch.nn.Linear) and module.bias is not None:
                assert bool((module.bias == 0).all()), name


@over(cases())
def test_hidden_states_are_named_and_complete(case: Case) -> None:
    model = case.features()
    output = model(**case.inputs(), output_hidden_states=True)
    assert len(output.hidden_states) == model.config.num_hidden_layers + 1
    assert torch.equal(output.hidden_states[-1], output.last_hidden_state)
    named = model.intermediates(**case.inputs())
    assert torch.equal(named[f"hidden.{model.config.num_hidden_layers}"], output.last_hidden_state)
    assert "hidden.0" in named
    assert ("maps.0" in named) == case.traits.maps
    assert ("attention.0" in named) == case.traits.attention


@over(cases())
def test_maps_are_shown_and_attention_is_shown_or_refused(case: Case) -> None:
    model, inputs = case.features(), case.inputs()
    if case.traits.maps:
        maps = model(**inputs, output_maps=True).maps
        assert len(maps) == model.config.num_hidden_layers
        if not case.hierarchical:
            n = model(**inputs).last_hidden_state.shape[1]
            assert all(m.shape[-2:] == (n, n) for m in maps)
    else:
        with pytest.raises(MixlabError, match="no maps"):
            model(**inputs, output_maps=True)
    if not case.traits.attention:
        with pytest.raises(MixlabError, match="attention"):
            model(**inputs, output_attentions=True)
        return
    attentions = model(**inputs, output_attentions=True).attentions
    assert len(attentions) == model.config.num_hidden_layers
    for attention in attentions:
        close(attention.sum(-1), torch.ones_like(attention.sum(-1)))


@over(cases())
def test_the_body_differentiates_exactly(case: Case) -> None:
    """Analytic against numeric gradients in float64, through all token maps."""
    model = case.features(**({} if case.hierarchical else {"num_hidden_layers": 1})).double()
    grid = (model.config.grid, model.config.grid) if model.config.modality == "image" else None
    n = longest(model) if grid else 5
    x = torch.randn(1, n, model.config.stem_size, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: model.body(Tokens(x, grid=grid)).x, (x,), fast_mode=True)


@pytest.mark.parametrize(("case", "task"), TASKS)
def test_declared_counts_are_real(case: Case, task: str) -> None:
    """Parameters against the model's own; multiply-adds against torch's counter, on a device that allocates nothing."""
    account = mixlab.account(case.preset, task=task, length=longest(case.features()), **case.given)
    with torch.device("meta"):
        model = mixlab.create(case.preset, task=task, **case.given).eval()
    assert sum(p.numel() for p in model.parameters()) == account.params
    inputs = case.inputs(batch=1, length=account.length)
    if task == "masked-image-modeling":  # patches are chosen by the noise, which must be there
        inputs = with_labels(case, task, inputs, model)
    inputs = {name: value.to("meta") for name, value in inputs.items()}
    with FlopCounterMode(display=False) as counter, torch.no_grad(), _checks_off():
        model(**inputs)
    assert counter.get_total_flops() == account.flops


@over(cases())
def test_counts_follow_every_choice(case: Case) -> None:
    """Each switch turned, and each other word of those that a field takes: what is still a model is counted right."""
    base = case.config()
    task = load(case.arch).presets[case.preset].task if case.modality is None else "features"
    for field in fields(base):
        value, words = getattr(base, field.name), [word for word in get_args(field.type) if isinstance(word, str)]
        others = [not value] if isinstance(value, bool) else [word for word in words if word != value]
        for other in others if field.name in load(case.arch).field_names() and field.name not in case.given else []:
            try:
                with torch.device("meta"):
                    model = mixlab.create(case.preset, task=task, **case.given, **{field.name: other})
            except MixlabError:
                continue
            counted = mixlab.account(case.preset, task=task, length=longest(model), **case.given, **{field.name: other}).params
            assert sum(p.numel() for p in model.parameters()) == counted, f"{field.name}={other!r}"


def _checks_off() -> Any:
    """Values of a meta tensor cannot be looked at."""
    from unittest.mock import patch

    return patch("mixlab.modeling.inputs.tracing", return_value=True)


@over(cases())
def test_export_with_any_batch_and_length_equals_eager(case: Case) -> None:
    model, texts = case.features(), case.config().modality == "text"
    inputs = case.inputs(batch=3, length=9)
    axes: dict[str, Any] = {name: {0: torch.export.Dim("batch", min=1, max=64)} for name in inputs}
    stretches = texts and case.traits.length in ("cap", "any")
    if texts and case.traits.masks:
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    if stretches:
        batch, length = torch.export.Dim("batch", min=1, max=64), torch.export.Dim("length", min=1, max=longest(model))
        axes = {name: {0: batch, 1: length} for name in inputs}
    exported = torch.export.export(model, (), kwargs=inputs, dynamic_shapes=axes).module()
    for n in (1, 7, longest(model) - 1, longest(model)) if stretches else (9,):
        new = case.inputs(batch=2, length=n, seed=n + 3)
        if "attention_mask" in inputs:
            new["attention_mask"] = torch.ones_like(new["input_ids"])
            new["attention_mask"][1, : n // 2] = 0
        close(exported(**new).last_hidden_state, model(**new).last_hidden_state)


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
@over(cases())
def test_compiled_with_any_length_equals_eager(case: Case, backend: str) -> None:
    model = case.features(**({} if case.hierarchical else {"num_hidden_layers": 1}))
    torch._dynamo.reset()
    compiled = torch.compile(model, backend=backend)
    images = case.config().modality == "image"
    stretches = not images and case.traits.length != "fixed"
    for n in (9, 13, 17) if stretches else (13, 13):
        inputs = case.inputs(length=n, seed=n)
        # Of images any batch, of sequences any length: one symbol, which may not become a number. With dynamic=True all sizes and every
        # eps would be symbols too, and tracing takes several times as long.
        for value in inputs.values() if images or stretches else ():
            torch._dynamo.mark_dynamic(value, 0 if images else 1)
        # Inductor knows the gradient of a convolution for one length only, so that its lengths are judged without gradients.
        with torch.no_grad() if backend == "inductor" else nullcontext():
            close(compiled(**inputs).last_hidden_state, model(**inputs).last_hidden_state)


@over(cases())
def test_models_survive_copying_and_pickling(case: Case) -> None:
    model, inputs = case.features(), case.inputs()
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    for twin in (copy.deepcopy(model), torch.load(buffer, weights_only=False)):
        assert torch.equal(twin(**inputs).last_hidden_state, model(**inputs).last_hidden_state)
