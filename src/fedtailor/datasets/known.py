"""The data sets known by name: their classes, where the hub keeps them, what files are called."""

from __future__ import annotations

import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from fedtailor.datasets.parts import SourcePart


@dataclass(frozen=True)
class KnownDataset:
    """A data set with a name."""

    name: str  # as the user writes it
    kind: Literal["image", "text"]  # `image` or `text`
    channels: int  # 1 (grey) or 3 (colour); 0 for text
    classes: tuple[str, ...]  # the class names; empty where the files tell them
    repository: str  # its id on the Hugging Face hub
    # other names of its folder or file, in the form `simple_name` gives
    aliases: tuple[str, ...] = ()

    def is_called(self, name: str) -> bool:
        return simple_name(name) in (simple_name(self.name), *self.aliases)


def simple_name(name: str) -> str:
    """A name without case, hyphens and underscores: FashionMNIST is fashion-mnist."""
    return re.sub(r"[-_ ]", "", name.lower())


DIGITS = tuple(string.digits)
FASHION = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
    "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
CIFAR10 = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
CIFAR100 = (
    "apple", "aquarium_fish", "baby", "bear", "beaver", "bed", "bee", "beetle", "bicycle", "bottle",
    "bowl", "boy", "bridge", "bus", "butterfly", "camel", "can", "castle", "caterpillar", "cattle",
    "chair", "chimpanzee", "clock", "cloud", "cockroach", "couch", "crab", "crocodile", "cup",
    "dinosaur", "dolphin", "elephant", "flatfish", "forest", "fox", "girl", "hamster", "house",
    "kangaroo", "keyboard", "lamp", "lawn_mower", "leopard", "lion", "lizard", "lobster", "man",
    "maple_tree", "motorcycle", "mountain", "mouse", "mushroom", "oak_tree", "orange", "orchid",
    "otter", "palm_tree", "pear", "pickup_truck", "pine_tree", "plain", "plate", "poppy",
    "porcupine", "possum", "rabbit", "raccoon", "ray", "road", "rocket", "rose", "sea", "seal",
    "shark", "shrew", "skunk", "skyscraper", "snail", "snake", "spider", "squirrel", "streetcar",
    "sunflower", "sweet_pepper", "table", "tank", "telephone", "television", "tiger", "tractor",
    "train", "trout", "tulip", "turtle", "wardrobe", "whale", "willow_tree", "wolf", "woman",
    "worm",
)  # fmt: skip
NEWS = ("World", "Sports", "Business", "Sci/Tech")

_MERGED = tuple(string.digits + string.ascii_uppercase + "abdefghnqrt")
# In the order of preference when a folder holds several variants.
EMNIST: Mapping[str, tuple[str, ...]] = {
    "balanced": _MERGED,
    "byclass": tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase),
    "bymerge": _MERGED,
    "letters": tuple(string.ascii_lowercase),
    "digits": DIGITS,
    "mnist": DIGITS,
}

SETS: Mapping[str, KnownDataset] = {
    known.name: known
    for known in (
        KnownDataset("mnist", "image", 1, DIGITS, "ylecun/mnist"),
        KnownDataset("fashion-mnist", "image", 1, FASHION, "zalando-datasets/fashion_mnist"),
        KnownDataset("emnist", "image", 1, (), "tanganke/emnist_letters"),
        KnownDataset(
            "cifar10", "image", 3, CIFAR10, "uoft-cs/cifar10", ("cifar10batchespy", "cifar10python")
        ),
        KnownDataset("cifar100", "image", 3, CIFAR100, "uoft-cs/cifar100", ("cifar100python",)),
        KnownDataset(
            "tiny-imagenet", "image", 3, (), "zh-plus/tiny-imagenet", ("tinyimagenet200",)
        ),
        KnownDataset("ag-news", "text", 0, NEWS, "fancyzhx/ag_news", ("agnewscsv",)),
    )
}


def guessed_emnist(parts: Sequence[SourcePart]) -> tuple[list[SourcePart], tuple[str, ...]]:
    """EMNIST parts whose file does not say the variant: it is told from the labels' range."""
    if any(p.labels.dtype.kind == "U" for p in parts):
        return list(parts), ()
    low = min(int(p.labels.min()) for p in parts)
    high = max(int(p.labels.max()) for p in parts)
    if low == 1 and high == 26:  # letters are counted from 1
        parts = [replace(p, labels=p.labels - 1) for p in parts]
        high = 25
    fitting = [classes for classes in EMNIST.values() if len(classes) > high]
    classes = min(fitting, key=len, default=EMNIST["byclass"])
    return [replace(p, labels=p.labels.astype(np.int64)) for p in parts], classes
