"""A user's own images: ``train/<class>/`` and ``test/<class>/`` below ``data-dir``."""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFile
from PIL.ExifTags import Base

from fedif_flower.errors import ConfigError, DataError
from fedif_flower.tasks.data.cache import RawDataset, RawSplit, Source

SUFFIXES = (".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
# Folders that an operating system or an archive puts beside the class folders.
_NO_CLASSES = frozenset({"__MACOSX", "@eaDir", "lost+found"})
# Other usual names of splits. These folders are not read; a remark says so.
_OTHER_SPLITS = frozenset({"val", "valid", "validation", "dev", "eval", "training", "testing"})
_MOST_LETTERS = 12  # A remark names no longer suffix.
# Pillow's modes, and the mode to which each is converted. Floating-point images and grey ones of 16
# bits are not allowed, since uint8 cannot hold them. Of colours with 16 bits Pillow reads 8.
_MODES = {"1": "L", "L": "L", "LA": "L", "P": "RGB", "RGB": "RGB", "RGBA": "RGB", "CMYK": "RGB"}


class Listing(NamedTuple):
    """The image files of one split, sorted by class and name.

    Attributes
    ----------
    classes : tuple of str
        Names of the class folders, sorted.
    paths : tuple of str
        The image files.
    labels : tuple of int
        For each file, its class's position in ``classes``.
    digest : str
        Hash of all class names, and of every file's path, size and time of change.
    passed_over : tuple of str
        In words, what is not read, and how often each occurs.
    """

    classes: tuple[str, ...]
    paths: tuple[str, ...]
    labels: tuple[int, ...]
    digest: str
    passed_over: tuple[str, ...] = ()


class ImageFolder(Source):
    """Images of one size in any folder, with one folder per class; labels are in sort order.

    Hidden files are passed over. Files without an image's suffix, images outside of a class folder
    and folders such as ``__MACOSX`` are passed over too, and a remark counts them. Another remark
    counts images of which only the first page is read, or whose transparency, the lower 8 of 16
    bits of colour, or orientation (in EXIF) are left out.

    Every class needs a folder in ``train``, even if it is empty, so that nodes without examples of
    a class have the same labels as the others. Only clients may leave ``test`` out.
    """

    @cached_property
    def _folder(self) -> Path:
        """The folder of ``train`` and ``test``; ConfigError if ``data_dir`` is empty."""
        if not self.data_dir:
            raise ConfigError(
                "data_dir = ''; allowed: the folder's path, which 'image-folder' needs"
            )
        return Path(self.data_dir).expanduser().resolve()

    @cached_property
    def _splits(self) -> tuple[Listing, Listing]:
        """The files of ``train`` and ``test``; DataError if they cannot be used."""
        train_folder = self._folder / "train"
        test_folder = self._folder / "test"
        train = list_images(train_folder)
        test = list_images(test_folder)
        if not train.paths:
            raise DataError(
                f"no images in {train_folder}; expected train/<class>/<file> with one of "
                f"{', '.join(SUFFIXES)}"
            )
        unknown = sorted(set(test.classes) - set(train.classes))
        if unknown:
            raise DataError(
                f"{test_folder / unknown[0]} is a class that {train_folder} lacks; it has "
                f"{', '.join(train.classes)}"
            )
        return train, test

    def identity(self) -> dict[str, object]:
        """Return the folder, and for each split a hash of its files' names, sizes and times."""
        train, test = self._splits
        return {"folder": str(self._folder), "train": train.digest, "test": test.digest}

    def remarks(self) -> list[str]:
        """Return words that say which files of the folder are not read; empty if all are."""
        remarks = []
        for name, listing in zip(("train", "test"), self._splits, strict=True):
            if listing.passed_over:
                passed = ", ".join(listing.passed_over)
                count = len(listing.paths)
                remarks.append(f"{name}: {count} images are read; passed over: {passed}")
        beside = sorted(name for name in _OTHER_SPLITS if (self._folder / name).is_dir())
        if beside:
            remarks.append(f"not read beside train and test: {', '.join(beside)}")
        return remarks

    def read(self) -> RawDataset:
        """Return the splits; their images are decoded one by one while the blocks are read."""
        train, test = self._splits
        first = _decode(train.paths[0], Counter())
        label_of = {name: label for label, name in enumerate(train.classes)}
        lost: dict[str, Counter[str]] = {}

        def split(name: str, listing: Listing) -> RawSplit:
            def blocks() -> Iterator[NDArray[np.uint8]]:
                lost[name] = Counter()
                for path in listing.paths:
                    image = _decode(path, lost[name])
                    if image.shape != first.shape:
                        raise DataError(
                            f"{path} has (channels, height, width) = {image.shape} but "
                            f"{train.paths[0]} has {first.shape}; all images must have one size, "
                            "and be greyscale or all colour"
                        )
                    yield image[None]

            # A listing numbers its own classes. Labels are the numbers of the training split's
            # classes, because ``test`` may lack some.
            labels = [label_of[listing.classes[label]] for label in listing.labels]
            return RawSplit(np.array(labels, dtype=np.int64), blocks)

        def remarks() -> list[str]:
            lines = []
            for name, counts in lost.items():
                for kind, count in sorted(counts.items()):
                    lines.append(f"{name}: {kind} ({count} images)")
            return lines

        channels, height, width = first.shape
        return RawDataset(
            classes=train.classes,
            image_shape=(channels, height, width),
            max_value=255,
            train=split("train", train),
            test=split("test", test),
            remarks=remarks,
        )


def list_images(folder: Path) -> Listing:
    """List ``<class>/**/<image>`` below a folder; a missing folder has no classes.

    Raises
    ------
    DataError
        If something in the folder cannot be read.
    """
    paths = []
    labels = []
    digest = hashlib.sha256()
    passed_over: Counter[str] = Counter()
    try:
        classes = _class_names(folder, passed_over)
        for label, name in enumerate(classes):
            digest.update(os.fsencode(f"{name}/\n"))
            for entry in _image_files(folder / name, passed_over):
                stat = entry.stat()
                paths.append(entry.path)
                labels.append(label)
                digest.update(os.fsencode(f"{entry.path}\0{stat.st_size}\0{stat.st_mtime_ns}\n"))
    except OSError as error:
        if isinstance(error, FileNotFoundError) and Path(error.filename) == folder:
            return Listing((), (), (), "missing")
        # Another error comes, for example, of a dangling link or a file that was just removed.
        raise DataError(f"cannot read {error.filename}: {error.strerror}") from error
    words = tuple(f"{kind} ({count})" for kind, count in sorted(passed_over.items()))
    return Listing(classes, tuple(paths), tuple(labels), digest.hexdigest(), words)


def _class_names(folder: Path, passed_over: Counter[str]) -> tuple[str, ...]:
    """Return a split's class names, sorted; count in ``passed_over`` what is no class folder."""
    names = []
    for entry in folder.iterdir():
        if entry.name.startswith("."):
            continue
        if not entry.is_dir():
            if entry.name.lower().endswith(SUFFIXES):
                passed_over["images outside of a class folder"] += 1
            else:
                passed_over[_suffix_words(entry.name)] += 1
        elif entry.name in _NO_CLASSES:
            passed_over[f"folder {entry.name}"] += 1
        else:
            names.append(entry.name)
    return tuple(sorted(names))


def _image_files(folder: str | Path, passed_over: Counter[str]) -> Iterator[os.DirEntry[str]]:
    """Yield the images in a folder and its subfolders; count other files in ``passed_over``."""
    # os.scandir tells folders from files without a system call for each, unlike Path.
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if entry.name.startswith("."):
            continue
        if entry.is_dir(follow_symlinks=False):
            if entry.name in _NO_CLASSES:
                passed_over[f"folder {entry.name}"] += 1
            else:
                yield from _image_files(entry.path, passed_over)
        elif entry.is_symlink() and entry.is_dir():
            passed_over["links to folders"] += 1
        elif entry.name.lower().endswith(SUFFIXES):
            yield entry
        else:
            passed_over[_suffix_words(entry.name)] += 1


def _suffix_words(name: str) -> str:
    """Return the kind of a file that is not read, for a remark: ``files .txt``."""
    suffix = Path(name).suffix.lower()
    is_plain = suffix[1:].isalnum() and len(suffix) <= _MOST_LETTERS
    if not is_plain:
        return "files without a suffix"
    return f"files {suffix}"


def _decode(path: str, lost: Counter[str]) -> NDArray[np.uint8]:
    """Return one image ``[c, h, w]``, c = 1 if greyscale and 3 otherwise.

    Parts of the image that are not read are counted in ``lost``.

    Raises
    ------
    DataError
        If the image cannot be read, or its mode is not allowed.
    """
    try:
        with Image.open(path) as image:
            mode = _MODES.get(image.mode)
            if mode is None:
                allowed = ", ".join(_MODES)
                raise DataError(f"{path} has Pillow's mode {image.mode!r}; allowed: {allowed}")
            lost.update(_losses(image))
            pixels = np.asarray(image.convert(mode), dtype=np.uint8)
    except DataError:
        raise
    except Exception as error:  # Decoders of damaged images may raise any error.
        raise DataError(f"cannot read the image {path}: {error}") from error
    if mode == "L":
        return pixels[None]
    return pixels.transpose(2, 0, 1)


def _losses(image: ImageFile.ImageFile) -> Iterator[str]:
    """Yield, in words, which parts of an image are not read."""
    # This is asked first, since it is not known any more once the image is loaded.
    if any(";16" in str(part.args) for part in image.tile):
        yield "the lower 8 of 16 bits are left out"
    if getattr(image, "n_frames", 1) > 1:
        yield "the first page or frame of several is read"
    has_alpha = image.mode in ("LA", "RGBA")
    is_opaque = has_alpha and image.getchannel("A").getextrema() == (255, 255)
    if "transparency" in image.info or (has_alpha and not is_opaque):
        yield "transparency is left out"
    # Pillow turns a TIFF by itself while loading it, and drops the orientation then.
    image.load()
    if image.getexif().get(Base.Orientation, 1) != 1:
        yield "the orientation that EXIF names is left out"


def class_folders(classes: Sequence[str]) -> list[str]:
    """Return a folder name per class: each is valid on any file system, and sorts by label."""
    names = [re.sub(r"[^\w.+ -]|^\.", "_", name) or "_" for name in classes]
    if all(first < second for first, second in pairwise(names)):
        return names
    digits = len(str(len(names) - 1))
    return [f"{label:0{digits}}-{name}" for label, name in enumerate(names)]
