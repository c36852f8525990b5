"""The data set for TensorFlow, where that is installed."""

import numpy
import pytest

INSTALL = "tensorflow does not import: target/venv-package/bin/pip install tensorflow-cpu (a quarter of a GiB)"
tensorflow = pytest.importorskip("tensorflow", reason=INSTALL, exc_type=ImportError)

import tapetum.tensorflow  # noqa: E402
from tapetum import Pipeline  # noqa: E402
from test_images import COUNT, folder, store  # noqa: E402, F401


def loader(store, kind="", **options):  # noqa: F811
    return tapetum.Loader(store.images(), Pipeline(f"jpeg_decode | random_resized_crop 16x12{kind}"), 5, seed=7, **{"drop_last": True, **options})


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


@pytest.fixture
def mounted(store):  # noqa: F811
    tapetum.tensorflow.mount(store, "store")
    yield "tapetum://store"
    assert tapetum.tensorflow.unmount("store")


def test_items_are_files(store, mounted):  # noqa: F811
    gfile = tensorflow.io.gfile
    written = f"{mounted}/default/folder/one.txt"
    tensorflow.io.write_file(written, b"some text")
    assert store["folder/one.txt"] == b"some text"
    assert tensorflow.io.read_file(written).numpy() == b"some text"
    store["folder/deeper/two.txt"] = b"2"
    assert sorted(gfile.listdir(f"{mounted}/default/folder")) == ["deeper", "one.txt"]
    assert "default" in gfile.listdir(mounted) and "images" in gfile.listdir(mounted)
    assert gfile.isdir(f"{mounted}/default/folder") and not gfile.isdir(written)
    assert gfile.exists(written) and not gfile.exists(written + ".not")
    assert gfile.stat(written).length == 9
    assert gfile.glob(f"{mounted}/default/folder/*.txt") == [written]
    with gfile.GFile(written, "ab") as file:
        file.write(b", and more")
    with gfile.GFile(written, "rb") as file:
        assert file.read(4) == b"some"
        file.seek(10)
        assert file.read() == b" and more"
    gfile.rename(written, f"{mounted}/default/renamed")
    assert store["renamed"] == b"some text, and more" and "folder/one.txt" not in store
    gfile.remove(f"{mounted}/default/renamed")
    assert "renamed" not in store
    with pytest.raises(tensorflow.errors.NotFoundError, match="no such key"):
        tensorflow.io.read_file(written)
    with pytest.raises(tensorflow.errors.NotFoundError, match="no store is mounted as .other"):
        tensorflow.io.read_file("tapetum://other/default/key")
    with pytest.raises(tensorflow.errors.ResourceExhaustedError, match="16MiB"):
        tensorflow.io.write_file(written, bytes((16 << 20) + 1))


def test_pictures_are_files(store, mounted):  # noqa: F811
    name = f"{mounted}/images/cats/00.jpg"
    assert tensorflow.io.read_file(name).numpy() == store.keyspace("images")["cats/00.jpg"]
    made = tensorflow.io.read_file(name + "?pipeline=jpeg_decode | random_resized_crop 16 | flip&seed=1&epoch=2&item=3")
    picture = tensorflow.reshape(tensorflow.io.decode_raw(made, tensorflow.uint8), (16, 16, 3))
    pipeline = Pipeline("jpeg_decode | random_resized_crop 16 | flip")
    wanted = tapetum.run(pipeline, store.keyspace("images"), "cats/00.jpg", seed=1, epoch=2, item=3)
    numpy.testing.assert_array_equal(picture.numpy(), wanted)
    with pytest.raises(tensorflow.errors.InvalidArgumentError, match="blur: there is no such stage"):
        tensorflow.io.read_file(name + "?pipeline=jpeg_decode | blur")
    names = tensorflow.data.Dataset.from_tensor_slices([name] * 4).map(tensorflow.io.read_file)
    assert len(list(names)) == 4
