"""Test classes for transformers' common model tests, one per tiny preset and variant of every architecture in the registry.

The judge must be fetched and on `sys.path` before this module is imported. What is not run as transformers wrote it stands in
two tables, with the reasons: `SKIPPED`, and `ADAPTED`, whose tests run with one thing changed.
"""

from __future__ import annotations

import contextlib
import re
import unittest
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn
from transformers.models.auto import modeling_auto
from transformers_tests import test_configuration_common as configurations
from transformers_tests import test_modeling_common as models
from transformers_tests.test_training_mixin import TrainingTesterMixin

import mixlab
from mixlab import registry
from mixlab.layers import Stack
from mixlab.modeling import loading
from mixlab.modeling.architecture import find_preset, load
from mixlab.modeling.auto import model_classes
from mixlab.modeling.config import MixerConfig
from mixlab.modeling.tasks import TASK_HEADS

# Sizes of the judged models, where an architecture has the field.
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 64, "attention_size": 16}
SMALL_TEXT = {"vocab_size": 99, "max_position_embeddings": 64, "type_vocab_size": 2}
SMALL_IMAGE = {"image_size": 8, "patch_size": 4}
SMALL_SOUND = {"vocab_size": 99, "num_mel_bins": 16}

NO_GENERATION = "mixlab: the source distribution lacks the tests of generation; mixlab has its own"
NO_EAGER = "mixlab: attention always runs through SDPA; there is no eager form to compare with"
NO_IDS = "mixlab: an image model reads pixels, and one of sound reads frames, not embeddings of ids"
NO_ONE_SHAPE = "mixlab: tokens and channels change from stage to stage; mixlab's conformance suite counts the hidden states"
NO_ONE_MAP = "mixlab: attention in windows has a map for each window; mixlab's conformance suite looks at their shapes"
NO_FEW_STAGES = "mixlab: a hierarchy has a block for each stage at least, and is small for all that"
NO_ONE_BLOCK = "mixlab: a hierarchy has more blocks than one; mixlab's conformance suite counts what is computed again"
# (which variants, which test) -> why. Variants: "causal", "image" and "sound" by their kind, "attention" and "hierarchy" by what they have.
SKIPPED = {
    ("causal", "test_generation_tester_mixin_inheritance"): NO_GENERATION,
    ("attention", "test_eager_matches_sdpa_inference"): NO_EAGER,
    ("image", "test_inputs_embeds"): NO_IDS,
    ("image", "test_inputs_embeds_matches_input_ids"): NO_IDS,
    ("sound", "test_inputs_embeds"): NO_IDS,
    ("sound", "test_inputs_embeds_matches_input_ids"): NO_IDS,
    ("hierarchy", "test_hidden_states_output"): NO_ONE_SHAPE,
    ("hierarchy", "test_attention_outputs"): NO_ONE_MAP,
    ("hierarchy", "test_num_layers_is_small"): NO_FEW_STAGES,
    ("hierarchy", "test_training_gradient_checkpointing"): NO_ONE_BLOCK,
    ("hierarchy", "test_training_gradient_checkpointing_use_reentrant_false"): NO_ONE_BLOCK,
    ("hierarchy", "test_training_gradient_checkpointing_use_reentrant_true"): NO_ONE_BLOCK,
}
ADAPTED = {
    "test_config": "the configuration is given max_position_embeddings, which has no default in mixlab.",
    "test_can_init_all_missing_weights": "new weights come from loading an empty checkpoint, which mixlab refuses; the refusal is off.",
    "test_model_weights_reload_no_missing_tied_weights": "loads an emptied checkpoint, which mixlab refuses; the refusal is off.",
    "test_gradient_checkpointing_enable_disable": "the layer with the switch is mixlab's stack of blocks, not the single block.",
    "test_training_gradient_checkpointing": "as above, with one block, since calls of the stack and of the blocks are compared.",
    "test_training_gradient_checkpointing_use_reentrant_false": "as above.",
    "test_training_gradient_checkpointing_use_reentrant_true": "as above.",
    "test_retain_grad_hidden_states_attentions": (
        "padding stands behind the text; with padding elsewhere, and for attention maps, the outputs are copies off the gradient's path."
    ),
    "test_hidden_states_output": "hidden patches are covered and not left out, since one number of tokens is expected of all heads.",
    "test_attention_outputs": "as above.",
    "test_model_get_set_embeddings": "for images the input embedding is the patch projection, as in transformers' own test of ViT.",
}

# Tasks whose further inputs transformers' tests cannot know: which patches are hidden, the image that is wanted, symbols beside the blank.
OWN_TARGETS = ("masked-image-modeling", "image-restoration", "ctc")

# Run always; the others are marked slow.
FAST = (
    "test_batching_equivalence",
    "test_can_init_all_missing_weights",
    "test_can_load_ignoring_mismatched_shapes",
    "test_causal_lm_loss_honors_shift_labels",
    "test_config",
    "test_correct_missing_keys",
    "test_gradient_checkpointing_enable_disable",
    "test_hidden_states_output",
    "test_init_weights_can_init_buffers",
    "test_inputs_embeds_matches_input_ids",
    "test_load_save_without_tied_weights",
    "test_load_with_mismatched_shapes",
    "test_model_outputs_equivalence",
    "test_problem_types",
    "test_resize_embeddings_untied",
    "test_resize_tokens_embeddings",
    "test_retain_grad_hidden_states_attentions",
    "test_save_load",
    "test_tied_weights_keys",
    "test_training",
    "test_training_gradient_checkpointing",
)


@dataclass(frozen=True)
class Variant:
    """One configuration of an architecture, and the tasks that it can do."""

    arch: str
    preset: str
    kind: str  # encoder, causal, image, sound
    tasks: tuple[str, ...]

    @property
    def name(self) -> str:
        """Of the test class, such as TestGMLPTinyEncoder."""
        words = self.preset.removeprefix(self.arch).split("-") + ([self.kind] if self.kind in ("encoder", "causal") else [])
        return f"Test{load(self.arch).class_prefix}{''.join(word.capitalize() for word in words)}"

    def settings(self) -> dict[str, Any]:
        """What is changed in the preset."""
        arch = load(self.arch)
        if arch.config.hierarchical:  # its widths belong together, and its tiny preset is small
            return {}
        settings: dict[str, Any] = SMALL | {"image": SMALL_IMAGE, "sound": SMALL_SOUND}.get(self.kind, SMALL_TEXT)
        if self.kind == "encoder":
            settings |= {"head_transform": True, "head_bias": True, "causal": False, "pooling": "cls"}
        if self.kind == "causal":
            settings |= {"causal": True, "pooling": "last"}
        own = mixlab.config(self.preset).max_position_embeddings
        if own is not None and "max_position_embeddings" in settings:
            settings["max_position_embeddings"] = min(own, settings["max_position_embeddings"])
        return {name: value for name, value in settings.items() if name in arch.field_names()}

    def config(self, **more: Any) -> MixerConfig:
        return mixlab.config(self.preset, **{**self.settings(), **more})


def variants() -> list[Variant]:
    """Of every architecture in the registry: each tiny preset, and its causal form where there is one."""
    found, judged = [], []
    for arch in registry.archs():
        tiny = [preset for preset in registry.presets(arch) if "tiny" in preset.split("-")]
        if not tiny:
            raise LookupError(f"{arch} has no preset with 'tiny' in its name, so nothing of it can be judged")
        for preset in tiny:
            config = mixlab.config(preset)
            tasks = config.traits.tasks
            if (arch, config.to_dict()) in judged:  # one preset under two names
                continue
            judged.append((arch, config.to_dict()))
            if config.modality != "text":
                found.append(Variant(arch, preset, "image" if config.modality == "image" else "sound", tasks))
                continue
            found.append(Variant(arch, preset, "encoder", tuple(task for task in tasks if task != "causal-lm")))
            if config.traits.causal:
                found.append(Variant(arch, preset, "causal", tuple(task for task in tasks if task != "masked-lm")))
    return found


class Tester:
    """What transformers calls a model tester: makes configurations and inputs."""

    batch_size = 3
    is_training = True

    def __init__(self, variant: Variant) -> None:
        self.variant = variant
        self.more: dict[str, Any] = {}  # settings of a single test
        config = self.get_config()
        self.hidden_size, self.num_hidden_layers = config.hidden_size, config.num_hidden_layers
        self.num_attention_heads = getattr(config, "num_attention_heads", None)
        fixed = config.modality == "image" or config.traits.length not in ("any", "cap")
        self.seq_length = config.length if fixed else 7
        self.causal_lm_class = model_classes(variant.arch)["causal-lm"] if "causal-lm" in variant.tasks else None

    def get_config(self) -> MixerConfig:
        return self.variant.config(**self.more)

    def prepare_config_and_inputs_for_common(self) -> tuple[MixerConfig, dict[str, torch.Tensor]]:
        config = self.get_config()
        if config.modality == "image":
            shape = [self.batch_size, config.num_channels, config.image_size, config.image_size]
            return config, {"pixel_values": models.floats_tensor(shape)}
        if config.modality == "audio":
            frames = config.fewest_frames(self.seq_length)
            return config, {"input_features": models.floats_tensor([self.batch_size, frames, config.num_mel_bins])}
        shape = [self.batch_size, self.seq_length]
        inputs = {"input_ids": models.ids_tensor(shape, config.vocab_size)}
        if config.traits.masks:
            inputs["attention_mask"] = models.random_attention_mask(shape)
        return config, inputs


class Judged(models.ModelTesterMixin):
    """transformers' common tests of models and of configurations, with what `ADAPTED` says changed."""

    variant: Variant
    model_tester: Tester

    def setUp(self) -> None:
        self.model_tester = Tester(self.variant)
        # transformers' tests decide by these tables of class names which labels a model takes.
        for task, cls in model_classes(self.variant.arch).items():
            names = getattr(modeling_auto, TASK_HEADS[task].auto_class)._model_mapping._model_mapping
            patch = mock.patch.dict(names, {cls.config_class.model_type: cls.__name__})
            patch.start()
            self.addCleanup(patch.stop)

    def _prepare_for_class(self, inputs_dict: dict[str, Any], model_class: Any, return_labels: bool = False) -> dict[str, Any]:
        task = getattr(model_class, "task", "features")
        if task not in OWN_TARGETS:
            return super()._prepare_for_class(inputs_dict, model_class, return_labels)
        if task == "ctc":
            return {**inputs_dict, **({"labels": torch.ones(self.model_tester.batch_size, 3).long()} if return_labels else {})}
        config, pixels = self.model_tester.get_config(), inputs_dict["pixel_values"]
        if task == "masked-image-modeling":
            noise = torch.rand(len(pixels), config.grid**2, generator=torch.Generator().manual_seed(0))
            return {**inputs_dict, "noise": noise}
        side = config.image_size * config.upscale
        return {**inputs_dict, **({"labels": pixels.new_zeros(*pixels.shape[:2], side, side)} if return_labels else {})}

    def test_config(self) -> None:
        config = self.variant.config()
        preset = find_preset(self.variant.preset)[1]
        settings = {name: value for name, value in preset.settings.items() if name != "num_labels"}
        given = {**settings, **self.variant.settings(), "modality": config.modality, "pooling": config.pooling}
        passed = {"return_dict": False, "output_hidden_states": True, "dtype": "float16", "problem_type": "regression"}
        passed |= {"architectures": ["BertModel"], "id2label": {0: "label"}, "label2id": {"label": 0}}
        if type(config).modality != "image":  # an image's size says how many tokens it has
            passed |= {"max_position_embeddings": config.max_position_embeddings}
        tester = configurations.ConfigTester(
            self, type(config), has_text_modality=config.modality == "text", common_properties=["hidden_size", "num_hidden_layers"], **given
        )
        with mock.patch.object(configurations, "config_common_kwargs", passed):
            tester.run_common_tests(can_init_without_params=False)

    def test_can_init_all_missing_weights(self) -> None:
        with _no_refusal():
            super().test_can_init_all_missing_weights()

    def test_model_weights_reload_no_missing_tied_weights(self) -> None:
        with _no_refusal():
            super().test_model_weights_reload_no_missing_tied_weights()

    def test_gradient_checkpointing_enable_disable(self) -> None:
        with mock.patch.object(models, "GradientCheckpointingLayer", Stack):
            super().test_gradient_checkpointing_enable_disable()

    def check_training_gradient_checkpointing(self, gradient_checkpointing_kwargs: dict[str, Any] | None = None) -> None:
        self.model_tester.more = {"num_hidden_layers": 1}
        with mock.patch.object(models, "GradientCheckpointingLayer", Stack):
            super().check_training_gradient_checkpointing(gradient_checkpointing_kwargs)

    def _prepare_config_and_inputs_for_retain_grad_hidden_states_attentions(self) -> tuple[MixerConfig, dict[str, torch.Tensor]]:
        config, inputs = self.model_tester.prepare_config_and_inputs_for_common()
        if "attention_mask" in inputs:
            inputs["attention_mask"] = inputs["attention_mask"].sort(dim=1, descending=True).values
        return config, inputs

    def test_retain_grad_hidden_states_attentions(self) -> None:
        with mock.patch.object(self, "has_attentions", False):
            super().test_retain_grad_hidden_states_attentions()

    def cover_hidden_patches(self) -> None:
        if self.variant.kind == "image":
            self.model_tester.more = {"masking": "token"}

    def test_hidden_states_output(self) -> None:
        self.cover_hidden_patches()
        super().test_hidden_states_output()

    def test_attention_outputs(self) -> None:
        self.cover_hidden_patches()
        super().test_attention_outputs()

    def test_model_get_set_embeddings(self) -> None:
        if self.variant.kind not in ("image", "sound"):
            super().test_model_get_set_embeddings()
            return
        for cls in self.all_model_classes:
            model = cls(self.variant.config())
            assert isinstance(model.get_input_embeddings(), nn.Module)
            assert model.get_output_embeddings() is None


@contextlib.contextmanager
def _no_refusal() -> Iterator[None]:
    with mock.patch.object(loading, "_check_fit"):
        yield


def judge(variant: Variant) -> type[unittest.TestCase]:
    """The test class of a variant."""
    classes, config = model_classes(variant.arch), variant.config()
    training = (TrainingTesterMixin,) if "causal-lm" in variant.tasks else ()
    body = {
        "__module__": "tests.judge.test_judge",
        "__doc__": f"{variant.preset}, {variant.kind}.",
        "variant": variant,
        "model_tester": None,
        "all_model_classes": tuple(classes[task] for task in variant.tasks),
        "has_attentions": config.traits.attention,
        "test_resize_embeddings": config.modality == "text",
        "test_can_init_all_missing_weights_before_2023": True,
    }
    cls = type(variant.name, (Judged, *training, unittest.TestCase), body)
    groups = {variant.kind, *(["attention"] if config.traits.attention else []), *(["hierarchy"] if config.hierarchical else [])}
    skipped = {test: reason for (group, test), reason in SKIPPED.items() if group in groups}
    for name in dir(cls):
        test = getattr(cls, name)
        if not name.startswith("test_") or not callable(test):
            continue
        # Parameterized tests are numbered: test_x_00_fp16 and so on.
        reason = next((why for skip, why in skipped.items() if re.fullmatch(rf"{skip}(_\d+_.*)?", name)), None)
        if reason is not None:
            test = unittest.skip(reason)(test)
        if name not in FAST:
            test = pytest.mark.slow(test)
        setattr(cls, name, test)
    return cls
