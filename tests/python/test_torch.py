"""The loader for PyTorch, where that is installed."""

import numpy
import pytest

INSTALL = "torch does not import: apt-get install python3-torch, or pip install torch"
torch = pytest.importorskip("torch", reason=INSTALL, exc_type=ImportError)

import tapetum.torch  # noqa: E402
from tapetum import Pipeline  # noqa: E402
from test_images import both, folder, store  # noqa: E402, F401


def test_batches_are_tensors_without_a_copy(store):  # noqa: F811
    options = {"seed": 1, "shuffle": True}
    pipeline = Pipeline("jpeg_decode | random_resized_crop 16 | flip | normalize | layout chw")
    tensors = next(iter(tapetum.torch.Loader(store.images(), pipeline, 4, **options)))
    arrays = next(iter(tapetum.Loader(store.images(), pipeline, 4, **options)))
    images, labels = tensors
    assert images.dtype == torch.float32 and labels.dtype == torch.int64
    numpy.testing.assert_array_equal(images.numpy(), arrays.images)


def test_one_at_a_time(store):  # noqa: F811
    dataset = tapetum.torch.Dataset(store, "jpeg_decode | random_resized_crop 16", seed=3)
    assert len(dataset) == len(store.images())
    image, label = dataset[5]
    assert image.shape == (16, 16, 3) and label == store.images().label(5)
    assert (dataset.__getitems__([4, 5])[1][0] == image).all()


def weights_of(images):
    """The weights after two epochs of a small model."""
    torch.manual_seed(1)
    layers = [torch.nn.Conv2d(3, 8, 3, stride=2), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pipeline = Pipeline("jpeg_decode | random_resized_crop 32 | flip | normalize | layout chw")
    loader = tapetum.torch.Loader(images, pipeline, 5, shuffle=True, seed=2)
    for _ in range(2):
        for pictures, labels in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(pictures), labels).backward()
            optimizer.step()
    return [weights.detach() for weights in model.parameters()]


def test_an_ordered_keyspace_trains_as_a_hashed_one(both):  # noqa: F811
    plain, ordered = (weights_of(images) for images in both)
    assert all(torch.equal(one, other) for one, other in zip(plain, ordered, strict=True))
