"""Token maps and their weights: the fast path, the numbers behind it, and what remains true when a weight changes its length."""

from __future__ import annotations

import itertools

import pytest
import scipy.linalg
import torch

from mixlab import MixlabError
from mixlab.maps import DenseMap, DenseWeight, SoftmaxMap, ToeplitzMap, ToeplitzWeight
from mixlab.maps.dense import rescale_last
from mixlab.maps.softmax import skew
from tests.reference import toeplitz
from tests.reference.compare import random_input, randomised

ROWS = {
    "Token maps: dense, Toeplitz, softmax with bias and relative keys [naive loops]": "test_fast_path_is_dense",
    "Token maps: the same, gradients [numeric differences]": "test_gradients",
    "Token maps: Toeplitz from its taps [scipy]": "test_toeplitz_against_scipy",
    "Token maps: scores by distance skewed into place [naive loops]": "test_skew",
    "Token maps: the same, multiply-adds [closed form]": "test_macs",
}

CAP = 8
WEIGHTS = {"dense": DenseWeight, "toeplitz": ToeplitzWeight}
structures = pytest.mark.parametrize("structure", list(WEIGHTS))
causalities = pytest.mark.parametrize("causal", [False, True], ids=["both", "causal"])


def weight_of(structure: str, causal: bool, length: int = CAP, heads: int = 3):
    return randomised(WEIGHTS[structure](length, heads, causal=causal))


def numbers(weight, n: int) -> torch.Tensor:
    """What a weight says about tokens 0..n-1, written out from its parameters alone."""
    if isinstance(weight, DenseWeight):
        allowed = torch.ones(n, n).tril() if weight.causal else torch.ones(n, n)
        return weight.weight[:, :n, :n] * allowed
    build = toeplitz.causal if weight.causal else toeplitz.two_sided
    return torch.stack([build(taps, n) for taps in weight.taps])


def triangle(n: int) -> torch.Tensor:
    return torch.ones(n, n, dtype=torch.bool).tril()[None, None]


# One entry per kind of map: its tensors (m = 4 written, t = 5 read where the two may differ), and how it is made of them.
MAPS = {
    "dense": (((3, 4, 5),), DenseMap),
    "dense one head": (((1, 4, 5),), DenseMap),
    "dense per sample": (((2, 3, 4, 5),), DenseMap),
    "dense per sample one head": (((2, 1, 4, 5),), DenseMap),
    "toeplitz": (((3, 9),), ToeplitzMap),
    "toeplitz one head": (((1, 9),), ToeplitzMap),
    "toeplitz one token": (((3, 1),), ToeplitzMap),
    "softmax": (((2, 3, 4, 2), (2, 3, 5, 2)), SoftmaxMap),
    "softmax one head": (((2, 1, 4, 2), (2, 1, 5, 2)), SoftmaxMap),
    "softmax causal": (((2, 3, 5, 2), (2, 3, 5, 2)), lambda q, k: SoftmaxMap(q, k, causal=True)),
    "softmax relative": (((2, 3, 4, 2), (2, 3, 5, 2), (3, 8, 2)), lambda q, k, e: SoftmaxMap(q, k, relative=e)),
    "softmax relative shared one query": (((2, 3, 1, 2), (2, 3, 5, 2), (1, 5, 2)), lambda q, k, e: SoftmaxMap(q, k, relative=e)),
    "softmax relative causal masked": (
        ((2, 3, 5, 2), (2, 3, 5, 2), (3, 5, 2)),
        lambda q, k, e: SoftmaxMap(q, k, triangle(5), relative=e),
    ),
    "softmax relative and bias": (
        ((2, 3, 5, 2), (2, 3, 5, 2), (1, 9, 2), (1, 3, 5, 5)),
        lambda q, k, e, b: SoftmaxMap(q, k, bias=b, relative=e),
    ),
    "softmax masked": (((2, 3, 5, 2), (2, 3, 5, 2)), lambda q, k: SoftmaxMap(q, k, triangle(5).expand(2, -1, -1, -1))),
}


def make(kind: str):
    shapes, build = MAPS[kind]
    tensors = [random_input(*shape, seed=i).requires_grad_() for i, shape in enumerate(shapes)]
    read = build(*tensors).dense().shape[-1]
    v = random_input(2, read, 6, seed=9).requires_grad_()
    return tensors, build, v


@pytest.mark.parametrize("kind", MAPS)
def test_fast_path_is_dense(kind):
    """`map(v)` is the product with `map.dense()`, channel by channel, each head with its own contiguous channels."""
    tensors, build, v = make(kind)
    matrix = build(*tensors).dense()
    matrix = matrix.expand(2, *matrix.shape[-3:])
    heads = matrix.shape[1]
    expected = torch.zeros(2, matrix.shape[2], 6, dtype=torch.float64)
    for b in range(2):
        for to in range(matrix.shape[2]):
            for e in range(6):
                head = e // (6 // heads)
                expected[b, to, e] = sum(matrix[b, head, to, frm] * v[b, frm, e] for frm in range(matrix.shape[3]))
    torch.testing.assert_close(build(*tensors)(v), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", MAPS)
def test_gradients(kind):
    tensors, build, v = make(kind)
    assert torch.autograd.gradcheck(lambda v, *tensors: build(*tensors)(v), (v, *tensors))


@pytest.mark.parametrize("kind", [kind for kind in MAPS if "softmax" in kind])
def test_softmax_rows_are_weights(kind):
    """Each row is a distribution over what is read (not over the batch, the heads or the readers), and 0 where nothing may be."""
    tensors, build, _ = make(kind)
    matrix = build(*tensors).dense()
    torch.testing.assert_close(matrix.sum(-1), torch.ones_like(matrix[..., 0]))
    if "causal" in kind or "masked" in kind:
        assert torch.equal(matrix.triu(1), torch.zeros_like(matrix))


@pytest.mark.parametrize("n", [1, 2, 5])
def test_toeplitz_against_scipy(n):
    """Offsets to - from = 0, 1, ... down the first column and 0, -1, ... along the first row."""
    taps = random_input(2, 2 * n - 1)
    dense = ToeplitzMap(taps).dense()
    for head in range(2):
        wanted = scipy.linalg.toeplitz(taps[head, n - 1 :].numpy(), taps[head, :n].flip(0).numpy())
        assert torch.equal(dense[head], torch.from_numpy(wanted))


def test_macs():
    """m t per channel; attention pays also for q k^T: m t per channel of q."""
    assert DenseMap(torch.zeros(3, 4, 5)).macs(6) == 4 * 5 * 6
    assert ToeplitzMap(torch.zeros(3, 9)).macs(6) == 5 * 5 * 6
    q, k = torch.zeros(2, 3, 4, 7), torch.zeros(2, 3, 5, 7)
    assert SoftmaxMap(q, k).macs(6) == 4 * 5 * (3 * 7 + 6)
    assert SoftmaxMap(q, k, relative=torch.zeros(1, 8, 7)).macs(6) == 4 * 5 * (3 * 7 + 6) + 4 * 8 * 3 * 7


@pytest.mark.parametrize(("m", "t"), [(1, 1), (1, 6), (4, 6), (6, 6)])
@pytest.mark.parametrize("ahead", [False, True])
def test_skew(m, t, ahead):
    """Scores of distances t - 1, t - 2, ... land at the tokens that stand so far away."""
    scores = random_input(2, m, m + t - 1 if ahead else t)
    given = skew(scores, t)
    assert given.shape == (2, m, t)
    for i in range(m):
        place = t - m + i
        for j in range(t if ahead else place + 1):
            assert torch.equal(given[:, i, j], scores[:, i, t - 1 - (place - j)])


def test_relative_keys_that_do_not_fit_are_refused():
    q, k = torch.zeros(1, 1, 4, 2), torch.zeros(1, 1, 6, 2)
    with pytest.raises(MixlabError, match="keys of 7 distances for 4 of 6 tokens; give 6 or 9"):
        SoftmaxMap(q, k, relative=torch.zeros(1, 7, 2))
    with pytest.raises(MixlabError, match="either causal"):
        SoftmaxMap(k, k, relative=torch.zeros(1, 6, 2), causal=True)


@structures
@causalities
@pytest.mark.parametrize("n", [1, 5, CAP])
def test_crop(structure, causal, n):
    """A shorter text uses the corner, exactly."""
    weight = weight_of(structure, causal)
    assert torch.equal(weight.at(n).dense(), numbers(weight, n))
    assert torch.equal(weight.at(n).dense(), weight.at(CAP).dense()[:, :n, :n])


@structures
@causalities
def test_crop_gradient(structure, causal):
    """Parameters that the corner does not use get a gradient of exactly 0, the others their share."""
    weight = weight_of(structure, causal)
    cotangent = random_input(3, 5, 5)
    (given,) = torch.autograd.grad((weight.at(5).dense() * cotangent).sum(), list(weight.parameters()))
    (wanted,) = torch.autograd.grad((numbers(weight, 5) * cotangent).sum(), list(weight.parameters()))
    torch.testing.assert_close(given, wanted)


@structures
@causalities
@pytest.mark.parametrize("batched", [False, True])
def test_between(structure, causal, batched):
    """Entries by position are entries of the full matrix, in any order and with repetitions."""
    weight = weight_of(structure, causal)
    full = weight.at(CAP).dense()
    to, frm = torch.tensor([[7, 0, 3], [2, 2, 5]]), torch.tensor([[0, 7, 4, 4, 1], [6, 5, 2, 0, 3]])
    picked = torch.stack([full[:, t][:, :, f] for t, f in zip(to, frm, strict=True)])
    given = weight.between(to, frm) if batched else torch.stack([weight.between(t, f) for t, f in zip(to, frm, strict=True)])
    assert given.shape == (2, 3, 3, 5)
    assert torch.equal(given, picked)


@structures
@causalities
@pytest.mark.parametrize("length", [1, 5, CAP, 11])
def test_resized(structure, causal, length):
    """Old and new act alike on the tokens that both know; the new parameters of a longer one are zero."""
    weight = weight_of(structure, causal)
    new, said = weight.resized(length)
    shared = min(length, CAP)
    assert new.length == length
    assert new.at(length).dense().shape == (3, length, length)
    assert torch.equal(new.at(shared).dense(), weight.at(shared).dense())
    assert ("zero" if length > CAP else "cropped") in said
    assert new.at(1).dense().dtype == torch.float64
    (old_p,), (new_p,) = weight.parameters(), new.parameters()
    assert new_p.count_nonzero() == min(old_p.numel(), new_p.numel())  # randn has no zeros: nothing lost, nothing made up


@structures
def test_resized_there_and_back(structure):
    weight = weight_of(structure, False)
    back = weight.resized(CAP + 3)[0].resized(CAP)[0]
    assert torch.equal(back.at(CAP).dense(), weight.at(CAP).dense())


@structures
@causalities
def test_causal_half(structure, causal):
    """The same on earlier tokens and on the token itself, nothing from later ones; of a causal weight, the weight itself."""
    weight = weight_of(structure, causal)
    half, _ = weight.causal_half()
    assert half.causal
    torch.testing.assert_close(half.at(CAP).dense(), weight.at(CAP).dense().tril(), rtol=1e-6, atol=1e-6, check_dtype=False)


CHANGES = {
    "resized": lambda weight: weight.resized(5),
    "interpolated": lambda weight: weight.interpolated(3, 2, 0),
    "causal_half": lambda weight: weight.causal_half(),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("structure", "change"), [(s, c) for s in WEIGHTS for c in CHANGES if (s, c) != ("toeplitz", "interpolated")])
def test_changes_keep_the_dtype(structure, change, dtype):
    """A model that was loaded in another precision stays in it, or its next product mixes two."""
    new, _ = CHANGES[change](WEIGHTS[structure](9).to(dtype))
    assert {p.dtype for p in new.parameters()} == {dtype}


def test_causal_half_says_what_is_lost():
    assert "dropped 28 of the 64 numbers" in weight_of("dense", False).causal_half()[1]
    assert "dropped 7 of the 15 taps" in weight_of("toeplitz", False).causal_half()[1]


def test_causal_half_of_a_causal_weight_loses_nothing():
    """Nothing of a causal weight reads later tokens."""
    for structure in WEIGHTS:
        assert "dropped 0 " in weight_of(structure, True).causal_half()[1]


@pytest.mark.parametrize("prefix", [0, 1])
def test_interpolated_identity(prefix):
    weight = weight_of("dense", False, length=prefix + 9)
    same, _ = weight.interpolated(3, 3, prefix)
    torch.testing.assert_close(same.weight, weight.weight, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("prefix", [0, 1])
@pytest.mark.parametrize("new", [2, 5])
def test_interpolated_constant(new, prefix):
    """A W of equal numbers stays one, each number smaller by as much as there are more tokens: the row sums are kept."""
    weight = DenseWeight(prefix + 9, 2).double()
    torch.nn.init.constant_(weight.weight, 0.25)
    scaled, said = weight.interpolated(3, new, prefix)
    assert scaled.length == prefix + new * new
    assert "3 x 3" in said
    assert f"{new} x {new}" in said
    torch.testing.assert_close(scaled.weight[..., prefix:].sum(-1), torch.full((2, scaled.length), 0.25 * 9, dtype=torch.float64))
    torch.testing.assert_close(scaled.weight[..., :prefix], torch.full((2, scaled.length, prefix), 0.25, dtype=torch.float64))


def test_interpolated_row_sums():
    """Of any W whose columns are constant images: upsampling keeps each row's sum, and the new rows are interpolated old ones."""
    weight = DenseWeight(9).double()
    sums = random_input(9)
    weight.weight.data = (sums[:, None] / 9).expand(1, 9, 9).clone()
    scaled, _ = weight.interpolated(3, 6, 0)
    wanted = torch.nn.functional.interpolate(sums.view(1, 1, 3, 3), size=(6, 6), mode="bilinear", align_corners=False).flatten()
    torch.testing.assert_close(scaled.weight[0].sum(-1), wanted)


def test_interpolated_prefix():
    """What the prefix tokens read of each other stays; what they read of the image is rescaled as any other row."""
    weight = weight_of("dense", False, length=2 + 9)
    scaled, _ = weight.interpolated(3, 6, 2)
    assert torch.equal(scaled.weight[:, :2, :2], weight.weight[:, :2, :2])
    image = weight.weight[:, :2, 2:].unflatten(-1, (3, 3))
    wanted = torch.nn.functional.interpolate(image, size=(6, 6), mode="bilinear", align_corners=False).flatten(-2) / 4
    torch.testing.assert_close(scaled.weight[:, :2, 2:], wanted)


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_rescaling_whatever_stands_before_the_last_axis(shape):
    """Rows are rescaled on their own: many of them as one of them."""
    x = random_input(*shape, 1 + 9)
    scaled = rescale_last(x, 3, 4, 1)
    assert scaled.shape == (*shape, 1 + 16)
    for place in itertools.product(*(range(size) for size in shape)):
        torch.testing.assert_close(scaled[place], rescale_last(x[place][None], 3, 4, 1)[0])


def test_toeplitz_refuses_to_interpolate():
    with pytest.raises(MixlabError, match="use a dense W") as caught:
        ToeplitzWeight(9).interpolated(3, 6, 0)
    assert "\n" not in str(caught.value)


@structures
def test_initialisation(structure):
    """Near zero, with the standard deviation that was asked for; `reset_parameters` draws anew."""
    torch.manual_seed(0)
    weight = WEIGHTS[structure](2000 if structure == "toeplitz" else 64, 2, init_std=1e-2)
    (p,) = weight.parameters()
    assert p.std().item() == pytest.approx(1e-2, rel=0.05)  # at least 8,000 draws: the error is about 1 %
    assert abs(p.mean().item()) < 5e-4
    before = p.detach().clone()
    weight.reset_parameters()
    assert not torch.equal(before, p)
    assert p.std().item() == pytest.approx(1e-2, rel=0.05)


@structures
def test_parameter_counts(structure):
    """Dense n^2 whether causal or not; Toeplitz 2n - 1, causal n (per head)."""
    counts = {causal: sum(p.numel() for p in weight_of(structure, causal).parameters()) for causal in (False, True)}
    assert counts == ({False: 3 * 64, True: 3 * 64} if structure == "dense" else {False: 3 * 15, True: 3 * 8})
