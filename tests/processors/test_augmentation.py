"""Image augmentation: effect of each parameter, compared with Pillow on single images."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance
from torch import Tensor

from regard.errors import SettingError
from regard.processors.image import COLUMNS, Augment, augment_maps, mixup_weights, sample_params
from regard.processors.image import augment_images as augment

WHOLE = {"width": 1.0, "height": 1.0, "brightness": 1.0, "contrast": 1.0, "saturation": 1.0, "weight": 1.0}
PARTNER = COLUMNS.index("partner")


def photographs(count: int = 3, height: int = 40, width: int = 56, seed: int = 0) -> Tensor:
    """Smooth colors with some edges and some noise."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width] / max(height, width)
    waves = [127 + 90 * np.sin(6 * x * a + 5 * y * b + c) for a, b, c in random.random((3 * count, 3)) * 3]
    made = np.stack(waves).reshape(count, 3, height, width) + random.normal(0, 6, (count, 3, height, width))
    made[:, :, height // 4 : height // 2, width // 3 : width // 2] += 60
    return torch.from_numpy(made.clip(0, 255).astype(np.uint8))


def table(count: int = 3, **values: float) -> Tensor:
    rows = {name: {**WHOLE, **values}.get(name, 0.0) for name in COLUMNS}
    found = torch.tensor([list(rows.values())] * count)
    found[:, PARTNER] = torch.arange(count)
    return found


def pillow(x: Tensor, number: int) -> Image.Image:
    return Image.fromarray(x[number].permute(1, 2, 0).contiguous().numpy())


def pixels(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255


def test_images_are_unchanged_without_augmentation_and_flipped_after_the_crop() -> None:
    x = photographs(4)
    for how in (None, Augment()):
        changes = torch.from_numpy(sample_params(np.random.default_rng(1), 4, Augment()))
        assert torch.equal(augment(x, changes, (40, 56), how), x.float() / 255)
    maps = torch.randint(0, 60000, (4, 40, 56))
    assert torch.equal(augment_maps(maps, changes, (40, 56)), maps)
    x = photographs()
    box = {"left": 0.1, "top": 0.2, "width": 0.6, "height": 0.7}
    assert torch.equal(augment(x, table(**box, mirrored=1.0), (20, 20)), augment(x, table(**box), (20, 20)).flip(3))
    assert torch.equal(augment(x, table(mirrored=1.0), (40, 56)), x.flip(3).float() / 255)


@pytest.mark.parametrize("size", [(24, 24), (40, 56), (90, 70), (7, 9)])
@pytest.mark.parametrize("box", [(0.0, 0.0, 1.0, 1.0), (0.25, 0.5, 0.5, 0.25), (0.113, 0.21, 0.71, 0.437)])
def test_a_random_crop_equals_pillow(size: tuple[int, int], box: tuple[float, ...]) -> None:
    x = photographs()
    left, top, width, height = box
    found = augment(x, table(left=left, top=top, width=width, height=height), size)
    corners = (left * 56, top * 40, (left + width) * 56, (top + height) * 40)
    for number in range(3):
        wanted = pillow(x, number).resize(size[::-1], Image.Resampling.BILINEAR, box=corners)
        # Pillow rounds to bytes after the horizontal and the vertical resampling
        assert (found[number] - pixels(wanted)).abs().max() <= 1.01 / 255


def test_translated_images_keep_their_pixels_and_repeat_the_edge() -> None:
    x = photographs(height=40, width=56)
    moved = augment(x, table(right=3 / 56, down=-2.4 / 40), (40, 56))
    plain = x.float() / 255
    assert torch.equal(moved[:, :, :38, 3:], plain[:, :, 2:, :-3])
    assert torch.equal(moved[:, :, :38, :3], plain[:, :, 2:, :1].expand(-1, -1, -1, 3))
    assert torch.equal(moved[:, :, 38:, 3:], plain[:, :, -1:, :-3].expand(-1, -1, 2, -1))
    maps = torch.randint(0, 60000, (3, 40, 56))
    found = augment_maps(maps, table(right=-5 / 56, down=4 / 40), (40, 56))
    assert torch.equal(found[:, 4:, :51], maps[:, :36, 5:])
    drawn = sample_params(np.random.default_rng(1), 4000, Augment(shift=0.1))[:, 10:12]
    assert 0.099 < abs(drawn).max() <= 0.1 and abs(drawn.mean()) < 0.005


def test_a_gray_rectangle_covers_a_part_and_nothing_else() -> None:
    x = photographs(height=40, width=56)
    plain = x.float() / 255
    found = augment(x, table(across=0.25, along=0.5, wide=10 / 56, high=0.2, grey=0.3), (40, 56))
    inside = torch.zeros(40, 56, dtype=torch.bool)
    inside[16:24, 9:19] = True
    assert (found[:, :, inside] == torch.tensor(0.3)).all() and torch.equal(found[:, :, ~inside], plain[:, :, ~inside])
    drawn = sample_params(np.random.default_rng(1), 4000, Augment(erase=0.3))[:, 12:]
    share = drawn[:, 2] * drawn[:, 3]
    some = share[share > 0]
    assert 0.47 < len(some) / 4000 < 0.53 and 0.019 < some.min() < 0.021 and 0.295 < some.max() <= 0.3001
    assert not sample_params(np.random.default_rng(1), 50, Augment())[:, 14:16].any()


@pytest.mark.parametrize(
    ("name", "enhance"),
    [("brightness", ImageEnhance.Brightness), ("contrast", ImageEnhance.Contrast), ("saturation", ImageEnhance.Color)],
)
@pytest.mark.parametrize("factor", [0.6, 1.3])
def test_color_changes_equal_pillow(name: str, enhance: type, factor: float) -> None:
    x = photographs()
    found = augment(x, table(**{name: factor}), (40, 56))
    for number in range(3):
        assert (found[number] - pixels(enhance(pillow(x, number)).enhance(factor))).abs().max() <= 2 / 255
    assert found.min() >= 0 and found.max() <= 1


def test_mixed_images_have_parts_of_both() -> None:
    x = photographs()
    changes = table(weight=0.25)
    changes[:, PARTNER] = torch.tensor([2.0, 0.0, 1.0])
    weight, partner = mixup_weights(changes)
    plain = x.float() / 255
    wanted = weight.view(-1, 1, 1, 1) * plain + (1 - weight).view(-1, 1, 1, 1) * plain[partner]
    assert partner.tolist() == [2, 0, 1]
    torch.testing.assert_close(augment(x, changes, (40, 56)), wanted, rtol=0, atol=1e-6)


def test_changes_are_a_function_of_the_seed_alone_within_their_bounds() -> None:
    how = Augment(0.35, flip=True, color_jitter=0.2, mixup=0.4)
    first, again = (sample_params(np.random.default_rng(7), 64, how) for _ in range(2))
    assert first.dtype == np.float32 and first.shape == (64, len(COLUMNS)) and np.array_equal(first, again)
    assert not np.array_equal(first, sample_params(np.random.default_rng(8), 64, how))
    plain = sample_params(np.random.default_rng(7), 64, Augment(0.35))
    assert np.array_equal(plain[:, :4], first[:, :4])  # disabled augmentations do not change the others
    assert not plain[:, 4].any() and (plain[:, 5:9] == 1).all()
    how = Augment(crop=0.2, flip=True, color_jitter=0.3, mixup=1.0)
    drawn = dict(zip(COLUMNS, sample_params(np.random.default_rng(0), 20_000, how).T, strict=True))
    share, apart = drawn["width"] * drawn["height"], drawn["width"] / drawn["height"]
    assert share.min() + 1e-6 >= 0.2 and share.min() < 0.21 and share.max() > 0.99 and abs(share.mean() - 0.6) < 0.01
    assert apart.max() <= 1.3334 and apart.max() > 1.3 and apart.min() < 1 / 1.3
    assert (drawn["left"] >= 0).all() and (drawn["left"] + drawn["width"] <= 1.0001).all()
    assert (drawn["top"] >= 0).all() and (drawn["top"] + drawn["height"] <= 1.0001).all()
    assert abs(drawn["mirrored"].mean() - 0.5) < 0.02
    assert abs(drawn["contrast"].min() - 0.7) < 1e-3 and abs(drawn["weight"].mean() - 0.5) < 0.02
    assert sorted(drawn["partner"]) == list(range(20_000))


def test_masks_and_depth_maps_follow_their_images_to_the_nearest_pixel() -> None:
    """The mask labels the quarters of an image by color, before and after augmentation."""
    colours = torch.tensor([[20, 20, 20], [240, 20, 20], [20, 240, 20], [20, 20, 240]], dtype=torch.uint8)
    masks = torch.zeros(8, 60, 80, dtype=torch.long)
    masks[:, :30, 40:], masks[:, 30:, :40], masks[:, 30:, 40:] = 1, 2, 3
    x = colours[masks].permute(0, 3, 1, 2).contiguous()
    changes = torch.from_numpy(sample_params(np.random.default_rng(5), 8, Augment(crop=0.3, flip=True)))
    found, mask = augment(x, changes, (48, 48)), augment_maps(masks, changes, (48, 48))
    nearest = (found[:, None] - colours.float().view(1, 4, 3, 1, 1) / 255).square().sum(2).argmin(1)
    assert (nearest == mask).float().mean() > 0.97 and mask.unique().tolist() == [0, 1, 2, 3]
    depth = torch.rand(8, 60, 80) + 1
    depth[:, 10:30, 20:60] = 0
    moved = augment_maps(depth, changes, (48, 48))
    assert torch.isin(moved, depth).all() and (moved == 0).any()
    hole = augment_maps((depth == 0).to(torch.uint8), changes, (48, 48))
    assert torch.equal(hole.bool(), moved == 0)
    mask = torch.randint(0, 9, (1, 33, 47), dtype=torch.uint8)
    box = {"left": 0.2, "top": 0.1, "width": 0.5, "height": 0.8}
    found = augment_maps(mask, table(1, **box), (21, 30))[0].numpy()
    corners = (0.2 * 47, 0.1 * 33, 0.7 * 47, 0.9 * 33)
    whole = Image.fromarray(mask[0].numpy()).transform((30, 21), Image.Transform.EXTENT, corners)  # nearest by default
    assert (found == np.array(whole)).mean() > 0.99


def test_impossible_augmentations_are_skipped_without_a_difference() -> None:
    x = photographs(6)
    for how in (Augment(0.35, True, 0.2), Augment(0.35, mixup=0.3), Augment(shift=0.1), Augment(erase=0.4)):
        changes = torch.from_numpy(sample_params(np.random.default_rng(3), 6, how))
        torch.testing.assert_close(augment(x, changes, (32, 32), how), augment(x, changes, (32, 32)), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "wrong", [{"crop": 0.0}, {"crop": 1.2}, {"color_jitter": 1.0}, {"mixup": -1.0}, {"erase": 0.01}]
)
def test_settings_without_a_meaning_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(SettingError):
        Augment(**wrong)  # type: ignore[arg-type]
