"""Pictures of several nodes for training."""

import functools
import struct

import pytest
from served import Served

import tapetum
from tapetum.training import FileLoader, PictureFiles

HEAD = b"\0tapetum-images"
KEYS = [f"{name}/{number:02}.jpg".encode() for name in ("ants", "bees", "cats") for number in range(15)]


def file_of(key):
    return b"file " + key


def write_set(keyspace, keys, version=2):
    """What `tapetum import images` leaves, with lists of four entries."""
    classes = sorted({key.split(b"/")[0] for key in keys})
    for number, start in enumerate(range(0, len(keys), 4)):
        entries = b""
        for key in keys[start : start + 4]:
            entries += struct.pack("<I", classes.index(key.split(b"/")[0])) + (b"" if version == 1 else struct.pack("<I", len(file_of(key))))
            entries += struct.pack("<H", len(key)) + key
        keyspace.put(HEAD + b"-%08x" % number, entries)
    names = b"".join(struct.pack("<H", len(name)) + name for name in classes)
    keyspace.put(HEAD, struct.pack("<IIQI", version, len(classes), len(keys), 4) + names)
    keyspace.batch((key, file_of(key)) for key in keys)


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    servers = [Served(tmp_path_factory.mktemp(f"pictures{number}")) for number in range(2)]
    for served in servers:
        for name in ("images", "whole", "damaged"):
            served.command("keyspace", "create", name)
    yield servers
    for served in servers:
        served.stop()


@pytest.fixture(scope="module")
def pictures(servers):
    """The same pictures, of two nodes and of one."""
    with tapetum.connect([served.address for served in servers]) as store, tapetum.connect(servers[0].address) as alone:
        # A class that a node lacks; and one set of the version before.
        first, second = store.keyspace("images").nodes.values()
        write_set(first, [key for place, key in enumerate(KEYS) if place % 3 == 0 or key.startswith(b"bees")])
        write_set(second, [key for place, key in enumerate(KEYS) if place % 3 and not key.startswith(b"bees")], version=1)
        write_set(alone.keyspace("whole"), KEYS[::-1])
        yield PictureFiles(store), PictureFiles(alone, "whole")


def test_a_set_is_that_of_all_nodes(pictures):
    for found in pictures:
        assert len(found) == len(KEYS) and found.classes == ["ants", "bees", "cats"]
        assert [found.key(item) for item in range(len(found))] == KEYS
        assert [found.classes[found.label(item)] for item in range(len(found))] == [key.decode().split("/")[0] for key in KEYS]
        assert found.files([44, 3, 17]) == [file_of(KEYS[item]) for item in (44, 3, 17)]


def given(loader, batches=None):
    """The items of a pass, or of so many batches of it."""
    items = []
    for number, batch in enumerate(loader, 1):
        assert batch.files == [file_of(KEYS[item]) for item in batch.items] and len(batch) == len(batch.labels)
        items.append(batch.items)
        if number == batches:
            break
    return items


def test_the_order_does_not_depend_on_nodes_or_ranks(pictures):
    orders = [sum(given(FileLoader(found, 4, shuffle=True, seed=7)), []) for found in pictures]
    assert orders[0] == orders[1] and sorted(orders[0]) == list(range(len(KEYS))) and orders[0] != list(range(len(KEYS)))
    for world_size in (2, 3, 5):
        ranks = [given(FileLoader(pictures[rank % 2], 3, shuffle=True, seed=7, rank=rank, world_size=world_size)) for rank in range(world_size)]
        assert len({len(batches) for batches in ranks}) == 1
        steps = [sum(step, []) for step in zip(*ranks, strict=True)]
        assert sum(steps, [])[: len(KEYS)] == orders[0]
    assert sum(given(FileLoader(pictures[0], 4)), []) == list(range(len(KEYS)))
    loader = FileLoader(pictures[0], 4, shuffle=True, seed=7)
    epochs = [sum(given(loader), []) for _ in range(2)]
    loader.set_epoch(0)
    assert epochs[0] == orders[0] != epochs[1] and sum(given(loader), []) == orders[0] and loader.epoch == 1
    # Trainings go on after an update.
    assert orders[0][:8] == [20, 32, 8, 28, 22, 30, 19, 12]


def test_a_training_goes_on_with_another_number_of_ranks(pictures):
    def loaders(world_size):
        return [FileLoader(pictures[0], 2, shuffle=True, seed=1, rank=rank, world_size=world_size) for rank in range(world_size)]

    whole = sum(given(FileLoader(pictures[0], 45, shuffle=True, seed=1)), [])
    first = loaders(4)
    seen = [given(loader, 3) for loader in first]
    states = [loader.state_dict() for loader in first]
    assert states == [states[0]] * 4 and states[0]["consumed"] == 24
    second = loaders(3)
    for loader in second:
        loader.load_state_dict(states[0])
    rest = [given(loader) for loader in second]
    together = [sum(step, []) for ranks in (seen, rest) for step in zip(*ranks, strict=True)]
    assert sum(together, [])[: len(whole)] == whole
    assert second[0].state_dict()["epoch"] == 1
    with pytest.raises(tapetum.Error, match="the state is of 3 pictures"):
        second[0].load_state_dict({"items": 3})


def test_a_pass_that_was_left_goes_on(pictures):
    loader = FileLoader(pictures[0], 4, drop_last=True)
    assert len(loader) == 11
    first = given(loader, 2)
    assert first + given(loader) == [list(range(start, start + 4)) for start in range(0, 44, 4)]
    older = iter(loader)
    next(older)
    iter(loader)
    with pytest.raises(RuntimeError, match="another pass"):
        next(older)
    for options, told in [({"batch_size": 46, "drop_last": True}, "no pass would have a batch"), ({"batch_size": 0}, "batch_size is 0"), ({"batch_size": 1, "rank": 1}, "rank is 1")]:
        with pytest.raises(ValueError, match=told):
            FileLoader(pictures[0], **options)


def test_files_are_decoded_where_that_is_wanted(pictures):
    def decode(scale, file, *, seed, epoch, item):
        return scale, file[-6:], seed, epoch, item

    loader = FileLoader(pictures[0], 3, seed=5, decode=functools.partial(decode, 2))
    files, labels = next(iter(loader))
    assert files == [(2, b"00.jpg", 5, 0, 0), (2, b"01.jpg", 5, 0, 1), (2, b"02.jpg", 5, 0, 2)] and labels == [0, 0, 0]


def test_what_is_wrong_is_said_with_its_node(servers, pictures):
    with tapetum.connect([served.address for served in servers]) as store:
        with pytest.raises(tapetum.Error, match=f"node {servers[0].address}, keyspace 'default': no pictures were imported"):
            PictureFiles(store, "default")
        damaged = store.keyspace("damaged").nodes
        for part in damaged.values():
            write_set(part, KEYS[:5])
        with pytest.raises(tapetum.Error, match=r"'ants/00.jpg' is at two nodes, .* and .*: give one another name"):
            PictureFiles(store, "damaged")
        with tapetum.connect(servers[0].address) as alone:
            part = alone.keyspace("damaged")
            loader = FileLoader(PictureFiles(alone, "damaged"), 5)
            del part[KEYS[0]]
            with pytest.raises(tapetum.Error, match=f"node {servers[0].address}, keyspace 'damaged', 5 pictures from .*: the picture b'ants/00.jpg' is in the set"):
                list(loader)
            for head in (part[HEAD][:-1], part[HEAD][:8] + bytes([9]) + part[HEAD][9:], b""):
                part[HEAD] = head
                with pytest.raises(tapetum.Error, match="is damaged: import the folder again"):
                    PictureFiles(alone, "damaged")
            part[HEAD] = struct.pack("<IIQI", 3, 0, 0, 4)
            with pytest.raises(tapetum.Error, match="is of version 3: use a newer Tapetum"):
                PictureFiles(alone, "damaged")
