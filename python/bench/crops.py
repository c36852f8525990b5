"""The crops and flips that Tapetum's pipelines draw, so that other loaders can be given the same.

What is drawn is counted, not remembered: SipHash-1-3 keyed by seed and epoch, of the item, the stage's place in the pipeline, and how often it
drew (``crates/kernels/src/images/chance.rs`` and ``crop.rs``).
"""

import math
import struct

_MASK = (1 << 64) - 1
_SCALE = (0.08, 1.0)
_RATIO = (3 / 4, 4 / 3)
_ATTEMPTS = 10


def _round(v):
    def left(word, bits):
        return ((word << bits) | (word >> (64 - bits))) & _MASK

    a, b, c, d = v
    a, c = (a + b) & _MASK, (c + d) & _MASK
    b, d = left(b, 13) ^ a, left(d, 16) ^ c
    a = left(a, 32)
    c, a = (c + b) & _MASK, (a + d) & _MASK
    b, d = left(b, 17) ^ c, left(d, 21) ^ a
    return a, b, left(c, 32), d


def siphash13(key, words):
    """Of 64-bit words."""
    a, b = key
    v = (a ^ 0x736F6D6570736575, b ^ 0x646F72616E646F6D, a ^ 0x6C7967656E657261, b ^ 0x7465646279746573)
    for word in [*words, (len(words) * 8 & 0xFF) << 56]:
        a, b, c, d = _round((v[0], v[1], v[2], v[3] ^ word))
        v = (a ^ word, b, c, d)
    v = (v[0], v[1], v[2] ^ 0xFF, v[3])
    for _ in range(3):
        v = _round(v)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


class Draws:
    """What the stage at ``place`` draws for one picture."""

    def __init__(self, seed, epoch, item, place):
        self.key, self.item, self.place, self.drawn = (seed, epoch), item, place, 0

    def word(self):
        word = siphash13(self.key, [self.item, self.place << 32 | self.drawn])
        self.drawn += 1
        return word

    def unit(self):
        return (self.word() >> 11) / (1 << 53)

    def between(self, low, high):
        return low + (high - low) * self.unit()

    def below(self, count):
        return self.word() * count >> 64


def _single(number):
    """As 32 bits hold it."""
    return struct.unpack("f", struct.pack("f", number))[0]


def random_resized_crop(size, draws):
    """(left, top, width, height) in a picture of this size."""
    width, height = size
    scale, ratio = [_single(bound) for bound in _SCALE], [_single(bound) for bound in _RATIO]
    for _ in range(_ATTEMPTS):
        target = width * height * draws.between(*scale)
        aspect = math.exp(draws.between(math.log(ratio[0]), math.log(ratio[1])))
        w, h = round(math.sqrt(target * aspect)), round(math.sqrt(target / aspect))
        if 1 <= w <= width and 1 <= h <= height:
            top, left = draws.below(height - h + 1), draws.below(width - w + 1)
            return left, top, w, h
    own = width / height
    if own < ratio[0]:
        w, h = width, round(width / ratio[0])
    elif own > ratio[1]:
        w, h = round(height * ratio[1]), height
    else:
        w, h = width, height
    return round((width - w) / 2), round((height - h) / 2), w, h


def drawn(size, seed, epoch, items):
    """(left, top, width, height) and whether it is flipped, of each item in 'jpeg_decode | random_resized_crop N | flip'."""
    boxes = [random_resized_crop(size, Draws(seed, epoch, item, 1)) for item in range(items)]
    flips = [Draws(seed, epoch, item, 2).unit() < 0.5 for item in range(items)]
    return boxes, flips
