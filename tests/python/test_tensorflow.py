"""The data set for TensorFlow, where that is installed."""

import numpy
import pytest

INSTALL = "tensorflow does not import: target/venv-package/bin/pip install tensorflow-cpu (a quarter of a GiB)"
tensorflow = pytest.importorskip("tensorflow", reason=INSTALL, exc_type=ImportError)

import tapetum.tensorflow  # noqa: E402
from tapetum import Pipeline  # noqa: E402
from test_images import COUNT, folder, store  # noqa: E402, F401


def loader(store, kind="", **options):  # noqa: F811
    return tapetum.Loader(store.images(), Pipeline(f"jpeg_decode | random_resized_crop 16x12{kind}"), 5, seed=7, **options)


def test_batches_are_those_of_the_loader(store):  # noqa: F811
    data = tapetum.tensorflow.of_loader(loader(store))
    images, labels = data.element_spec
    assert (images.shape, images.dtype) == ((5, 12, 16, 3), tensorflow.uint8)
    assert (labels.shape, labels.dtype) == ((5,), tensorflow.int64)
    for (images, labels), batch in zip(data, loader(store), strict=True):
        numpy.testing.assert_array_equal(images.numpy(), batch.images)
        numpy.testing.assert_array_equal(labels.numpy(), batch.labels)


def test_shapes_say_what_may_differ(store):  # noqa: F811
    data = tapetum.tensorflow.of_loader(loader(store, " | normalize | layout chw", drop_last=False))
    images, labels = data.element_spec
    assert (images.shape.as_list(), images.dtype) == ([None, 3, 12, 16], tensorflow.float32)
    assert [len(labels) for _, labels in data] == [5, 5, 5, 5, COUNT % 5]
    skipping = tapetum.tensorflow.of_loader(loader(store, on_error="skip"))
    assert skipping.element_spec[0].shape.as_list() == [None, 12, 16, 3]


def test_a_model_learns_from_it(store):  # noqa: F811
    options = {"batch_size": 6, "seed": 1}
    data = tapetum.tensorflow.dataset(store.images(), Pipeline("jpeg_decode | resize 8x8 | normalize"), **options)
    data = data.prefetch(2)
    layers = [tensorflow.keras.layers.Flatten(), tensorflow.keras.layers.Dense(3)]
    model = tensorflow.keras.Sequential(layers)
    loss = tensorflow.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer="sgd", loss=loss)
    history = model.fit(data, epochs=2, verbose=0)
    assert len(history.history["loss"]) == 2


def test_a_picture_that_fails_ends_the_pass(store, tmp_path):  # noqa: F811
    (tmp_path / "bad.jpg").write_bytes(b"no picture")
    bad = store.import_images(tmp_path, keyspace="not jpeg")
    data = tapetum.tensorflow.dataset(bad, Pipeline("jpeg_decode | resize 8x8"), 1)
    with pytest.raises(tensorflow.errors.OpError, match="bad.jpg"):
        list(data)
