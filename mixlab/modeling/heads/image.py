"""Heads over images: a label, what was hidden, or a better image.

Axes: b batch, c channels, n patches, k visible patches, p pixels of a patch, numbers of one patch: p p c.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn
from transformers.utils.generic import can_return_tuple

from mixlab.errors import MixlabError
from mixlab.layers import Tokens
from mixlab.layers.patches import from_patches, to_patches
from mixlab.layers.tokens import Record
from mixlab.modeling.config import MixerConfig
from mixlab.modeling.heads.base import ClassifierHead, MixerHead, head_output, pool
from mixlab.modeling.inputs import check_classes, check_tensor
from mixlab.modeling.outputs import HeadOutput, ImageOutput, MaskedImageOutput


class MixerForImageClassification(ClassifierHead):
    """A label for an image, from its cls token, the mean of its patches, or an attention over them."""

    task = "image-classification"
    main_input_name = "pixel_values"

    def build(self, config: MixerConfig) -> None:
        super().build(config)
        pooler = self.architecture.pooler_for(config)
        self.pooler = pooler.build(config) if pooler else None

    @can_return_tuple
    def forward(
        self,
        pixel_values: Float[Tensor, "b c height width"] | None = None,
        labels: Shaped[Tensor, "b ..."] | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        output_maps: bool = False,
    ) -> HeadOutput:
        base = self.model(
            pixel_values=pixel_values,
            output_hidden_states=output_hidden_states,
            output_attentions=output_attentions,
            output_maps=output_maps,
            return_dict=True,
        )
        hidden = base.last_hidden_state
        pooled = pool(hidden, None, self.config.pooling) if self.pooler is None else self.pooler(hidden)
        logits = self.classifier(self.dropout(pooled))
        if labels is not None:
            check_classes(self.config, labels, len(logits))
        loss = None if labels is None else self.loss_function(labels, logits, self.config)
        return head_output(base, loss, logits)


class MixerForMaskedImageModeling(MixerHead):
    """Predicts the pixels of hidden patches.

    `masking="drop"` leaves them out, and a light decoder of the same architecture puts them back (MAE, He et al. 2021, arXiv:2111.06377);
    `masking="token"` covers them with a learned token (SimMIM, Xie et al. 2021, arXiv:2111.09886).
    """

    task = "masked-image-modeling"
    main_input_name = "pixel_values"

    def build(self, config: MixerConfig) -> None:
        if config.masking == "drop":
            self.decoder = PatchDecoder(config, self.architecture.body(config.of_decoder()))
        else:
            self.mask_token = nn.Parameter(torch.empty(1, 1, config.stem_size))
            self.decoder = nn.Linear(config.hidden_size, config.final_patch**2 * config.num_channels)
            self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.config.masking == "token":
            nn.init.normal_(self.mask_token, std=self.config.initializer_range)

    @can_return_tuple
    def forward(
        self,
        pixel_values: Float[Tensor, "b c height width"] | None = None,
        noise: Float[Tensor, "b n"] | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        output_maps: bool = False,
    ) -> MaskedImageOutput:
        """The patches with the least noise stay visible; without noise it is drawn. The loss is over hidden patches alone."""
        x, grid = self.model.embed_image(pixel_values)  # b (prefix + n) d
        assert pixel_values is not None
        batch, n = len(x), grid[0] * grid[1]
        noise = torch.rand(batch, n, device=x.device) if noise is None else noise
        check_tensor(noise, "noise")
        if noise.shape != (batch, n):
            raise MixlabError(f"noise of shape {tuple(noise.shape)}, expected ({batch}, {n}): one number per patch")
        order = noise.argsort(dim=1, stable=True)  # b n
        visible = order[:, : max(1, int(n * (1 - self.config.mask_ratio)))]  # b k
        if visible.shape[1] == n:
            raise MixlabError(f"mask_ratio {self.config.mask_ratio} of {n} patches hides none, and nothing is left to predict; raise it")
        hidden = torch.ones(batch, n, device=x.device, dtype=torch.bool).scatter(1, visible, False)
        record = self.model.record_of(output_hidden_states, output_attentions, output_maps)
        if self.config.masking == "drop":
            predicted = self.from_visible(x, visible, grid, record)
        else:
            predicted = self.from_tokens(x, hidden, grid, record)
        kept = self.model.kept(record)
        return MaskedImageOutput(
            loss=self.loss(predicted, pixel_values, hidden, grid),
            logits=predicted,
            mask=hidden.to(x.dtype),
            hidden_states=kept.get("hidden"),
            attentions=kept.get("attention"),
            maps=kept.get("maps"),
        )

    def from_visible(
        self, x: Float[Tensor, "b s d"], visible: Int[Tensor, "b k"], grid: tuple[int, int], record: Record
    ) -> Float[Tensor, "b n numbers"]:
        prefix = self.config.prefix_tokens
        start = torch.arange(prefix, device=x.device).expand(len(x), -1)
        places = torch.cat([start, visible + prefix], dim=1)  # b (prefix + k)
        kept = x.gather(1, places[..., None].expand(-1, -1, x.shape[-1]))
        encoded = self.model.body(Tokens(kept, positions=places, record=record)).x
        assert isinstance(self.decoder, PatchDecoder)
        return self.decoder(encoded, places, grid)

    def from_tokens(
        self, x: Float[Tensor, "b s d"], hidden: Bool[Tensor, "b n"], grid: tuple[int, int], record: Record
    ) -> Float[Tensor, "b m numbers"]:
        covered = F.pad(hidden, (self.config.prefix_tokens, 0), value=False)
        x = torch.where(covered[..., None], self.mask_token.to(x), x)
        encoded = self.model.body(Tokens(x, grid=grid, record=record)).x
        return self.decoder(encoded[:, self.config.prefix_tokens :])

    def loss(
        self, predicted: Float[Tensor, "b m numbers"], pixels: Tensor, hidden: Bool[Tensor, "b n"], grid: tuple[int, int]
    ) -> Float[Tensor, ""]:
        """Mean squared error; targets are normalised per patch if the configuration says so."""
        config = self.config
        side, fine = config.final_patch, config.patch_size
        targets = to_patches(pixels, side)  # b m numbers
        if config.normalized_targets:
            mean, variance = targets.mean(-1, keepdim=True), targets.var(-1, keepdim=True)
            targets = (targets - mean) / (variance + 1e-6) ** 0.5
        error = (predicted - targets) ** 2  # b m numbers
        if side == fine:
            return (error.mean(-1) * hidden).sum() / hidden.sum()
        # A final token of a hierarchy covers several patches; its pixels count where their own patch was hidden.
        shape = (len(pixels), config.num_channels, *pixels.shape[-2:])
        cover = hidden.unflatten(1, grid)[:, None].repeat_interleave(fine, 2).repeat_interleave(fine, 3).expand(shape)
        weight = to_patches(cover.to(error), side)
        return (error * weight).sum() / weight.sum()


class PatchDecoder(nn.Module):
    """A light body over all patches: the encoded ones where they were, a learned token for the others."""

    def __init__(self, config: MixerConfig, body: nn.Module) -> None:
        super().__init__()
        self.prefix, self.std = config.prefix_tokens, config.initializer_range
        self.embed = nn.Linear(config.hidden_size, config.decoder_hidden_size)
        self.mask_token = nn.Parameter(torch.empty(1, 1, config.decoder_hidden_size))
        self.body = body
        self.pixels = nn.Linear(config.decoder_hidden_size, config.patch_size**2 * config.num_channels)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.mask_token, std=self.std)

    def forward(self, encoded: Float[Tensor, "b s d"], places: Int[Tensor, "b s"], grid: tuple[int, int]) -> Float[Tensor, "b n numbers"]:
        x = self.embed(encoded)
        full = self.mask_token.to(x).repeat(len(x), self.prefix + grid[0] * grid[1], 1)
        full = full.scatter(1, places[..., None].expand_as(x), x)
        return self.pixels(self.body(Tokens(full, grid=grid)).x[:, self.prefix :])


class MixerForImageToImage(MixerHead):
    """Restores an image: what it adds to its input, enlarged `upscale` times. At the start it adds nothing."""

    task = "image-restoration"
    main_input_name = "pixel_values"

    def build(self, config: MixerConfig) -> None:
        self.residual = ZeroLinear(config.hidden_size, (config.final_patch * config.upscale) ** 2 * config.num_channels)

    @can_return_tuple
    def forward(
        self,
        pixel_values: Float[Tensor, "b c height width"] | None = None,
        labels: Float[Tensor, "b c taller wider"] | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        output_maps: bool = False,
    ) -> ImageOutput:
        """Labels are the clean images; the loss is the mean squared error."""
        base = self.model(
            pixel_values=pixel_values,
            output_hidden_states=output_hidden_states,
            output_attentions=output_attentions,
            output_maps=output_maps,
            return_dict=True,
        )
        assert pixel_values is not None
        config, (height, width) = self.config, pixel_values.shape[-2:]
        patches = self.residual(base.last_hidden_state[:, config.prefix_tokens :])
        side = config.final_patch * config.upscale
        added = from_patches(patches, side, (height // config.final_patch, width // config.final_patch))
        start = pixel_values
        if config.upscale > 1:
            start = F.interpolate(pixel_values, scale_factor=config.upscale, mode="bicubic", align_corners=False)
        restored = start + added
        loss = None
        if labels is not None:
            check_tensor(labels, "labels")
            if not labels.is_floating_point():
                raise MixlabError(f"labels are {labels.dtype}, expected floats; scale the clean images as pixel_values are")
            if labels.shape != restored.shape:
                raise MixlabError(f"labels of shape {tuple(labels.shape)}, expected {tuple(restored.shape)}: the clean images")
            loss = F.mse_loss(restored, labels)
        return ImageOutput(loss=loss, reconstruction=restored, hidden_states=base.hidden_states, attentions=base.attentions, maps=base.maps)


class ZeroLinear(nn.Linear):
    """A projection that begins as zero."""

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)
