"""Write the 1,797 handwritten digits that scikit-learn carries as PNG files, one directory per class."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

_BRIGHTEST = 16


def main() -> None:
    """`digits.py DIRECTORY` makes DIRECTORY/0/0000.png and so on."""
    folder = Path(sys.argv[1])
    digits = load_digits()
    for label in range(10):
        (folder / str(label)).mkdir(parents=True)
    for number, (pixels, label) in enumerate(zip(digits.images, digits.target, strict=True)):
        image = Image.fromarray((pixels * 255 / _BRIGHTEST).astype(np.uint8))
        image.save(folder / str(label) / f"{number:04}.png")


if __name__ == "__main__":
    main()
