"""What reads come to. What changes and what is refused is tested by crates/server/tests/sockets/block_devices.rs."""

import nbd
from device import BLOCK, DISK, GROUPED, REQUEST_MAX, DeviceTest, pattern

DF = nbd.CMD_FLAG_DF


def chunks(handle, count, offset, flags=0):
    """The bytes of a read, and its chunks as they came."""
    found = []

    def take(piece, at, status, error):
        found.append((status, at, len(piece)))
        assert error.value == 0
        return 0

    return handle.pread_structured(count, offset, take, flags), found


class Reads(DeviceTest):
    def test_the_longest_read_and_write(self):
        handle = self.opened()
        data = pattern(REQUEST_MAX)
        handle.pwrite(data, 1)
        self.assertEqual(handle.pread(REQUEST_MAX, 1), data)
        handle.trim(REQUEST_MAX + BLOCK, 0)

    def test_chunks_of_data_and_of_holes(self):
        base = 8 << 20
        for name in (DISK, GROUPED):
            handle = self.opened(name)
            handle.pwrite(pattern(BLOCK), base)
            handle.pwrite(pattern(3 * BLOCK), base + 2 * BLOCK)
            read, found = chunks(handle, 8 * BLOCK, base)
            self.assertEqual(read, pattern(BLOCK) + bytes(BLOCK) + pattern(3 * BLOCK) + bytes(3 * BLOCK))
            expected = [
                (nbd.READ_DATA, base, BLOCK), (nbd.READ_HOLE, base + BLOCK, BLOCK),
                (nbd.READ_DATA, base + 2 * BLOCK, 3 * BLOCK), (nbd.READ_HOLE, base + 5 * BLOCK, 3 * BLOCK),
            ]
            self.assertEqual([(kind, at) for kind, at, _ in sorted(found, key=lambda chunk: chunk[1])],
                             [(kind, at) for kind, at, _ in expected])
            self.assertEqual([length for kind, _, length in found if kind == nbd.READ_DATA], [BLOCK, 3 * BLOCK])
            # From within a block into a hole, and from a hole into a block.
            read, found = chunks(handle, 2 * BLOCK, base + 100)
            self.assertEqual(read, pattern(BLOCK)[100:] + bytes(BLOCK) + pattern(100))
            self.assertEqual([at - base for _, at, _ in sorted(found, key=lambda chunk: chunk[1])], [100, BLOCK, 2 * BLOCK])
            self.assertEqual(chunks(handle, 5, base + BLOCK + 7)[1][0][:2], (nbd.READ_HOLE, base + BLOCK + 7))
            # Not to be cut into pieces.
            read, found = chunks(handle, 8 * BLOCK, base, DF)
            self.assertEqual(found, [(nbd.READ_DATA, base, 8 * BLOCK)])
            self.assertEqual(read, handle.pread(8 * BLOCK, base))

    def test_chunks_without_structured_replies(self):
        read, found = chunks(self.opened(structured=False), 2 * BLOCK, 16 << 20)
        self.assertEqual((read, found), (bytes(2 * BLOCK), [(nbd.READ_DATA, 16 << 20, 2 * BLOCK)]))
