"""What requests come to, one after the other."""

import os

import nbd
from device import BLOCK, DISK, FROZEN, GROUPED, LARGE, REQUEST_MAX, SIZES, DeviceTest, all_statuses, pattern, statuses

HOLE = nbd.STATE_HOLE | nbd.STATE_ZERO
DATA = 0
FUA, NO_HOLE, DF, REQ_ONE = nbd.CMD_FLAG_FUA, nbd.CMD_FLAG_NO_HOLE, nbd.CMD_FLAG_DF, nbd.CMD_FLAG_REQ_ONE
# Neither of blocks nor of sectors.
RANGES = ((0, 1), (1, 4095), (4095, 2), (4096, 4096), (511, 513), (3, 100_001), (12_288, 8_193), (65_535, 262_147))


def chunks(handle, count, offset, flags=0):
    """The bytes of a read, and its chunks as they came."""
    found = []

    def take(piece, at, status, error):
        found.append((status, at, len(piece)))
        assert error.value == 0
        return 0

    return handle.pread_structured(count, offset, take, flags), found


class Reads(DeviceTest):
    def test_pieces_of_any_size_at_any_place(self):
        for name in (DISK, GROUPED):
            for structured in (True, False):
                with self.subTest(name=name, structured=structured):
                    handle, data = self.opened(name, structured=structured), bytearray(1 << 19)
                    handle.pwrite(data, 0)
                    for seed, (offset, count) in enumerate(RANGES):
                        data[offset:offset + count] = pattern(count, seed)
                        handle.pwrite(data[offset:offset + count], offset, FUA if seed % 2 else 0)
                        self.assertEqual(handle.pread(count, offset), data[offset:offset + count])
                    self.assertEqual(handle.pread(len(data), 0), data)
                    for offset, count in RANGES:
                        self.assertEqual(handle.pread(count, offset), data[offset:offset + count])
                    end = SIZES[name]
                    handle.pwrite(b"the end", end - 7)
                    self.assertEqual(handle.pread(8, end - 8), b"\0the end")

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

    def test_several_connections_are_one(self):
        one, other = self.opened(), self.opened(structured=False)
        for number in range(20):
            one.pwrite(pattern(700, number), 20 << 20)
            self.assertEqual(other.pread(700, 20 << 20), pattern(700, number))
            other.flush()


class Frees(DeviceTest):
    def test_trimmed_blocks_are_zeroes_and_holes(self):
        for name in (DISK, GROUPED):
            handle = self.opened(name)
            handle.pwrite(pattern(256 << 10), 0)
            self.assertEqual(all_statuses(handle, 256 << 10), [(256 << 10, DATA)])
            # A group of blocks is a hole as a whole.
            handle.trim(64 << 10, 64 << 10, FUA)
            self.assertEqual(handle.pread(64 << 10, 64 << 10), bytes(64 << 10))
            self.assertEqual(all_statuses(handle, 256 << 10), [(64 << 10, DATA), (64 << 10, HOLE), (128 << 10, DATA)])
            # Of blocks in part it is a hint.
            handle.trim(BLOCK, 128 << 10 | 1)
            self.assertEqual(handle.pread(3 * BLOCK, 128 << 10), pattern(256 << 10)[128 << 10:][:3 * BLOCK])
            handle.trim(SIZES[name], 0)
            self.assertEqual(all_statuses(handle, SIZES[name]), [(SIZES[name], HOLE)])

    def test_zeroes_with_holes_and_without(self):
        for name in (DISK, GROUPED):
            handle = self.opened(name)
            for base, flags, status in ((0, 0, HOLE), (1 << 20, NO_HOLE, DATA), (2 << 20, FUA, HOLE)):
                handle.pwrite(pattern(128 << 10), base)
                handle.zero(32 << 10, base + (32 << 10), flags)
                self.assertEqual(handle.pread(32 << 10, base + (32 << 10)), bytes(32 << 10))
                self.assertEqual(statuses(handle, 32 << 10, base + (32 << 10)), [(32 << 10, status)])
                # Unlike a trim, of blocks in part, too.
                data = bytearray(handle.pread(128 << 10, base))
                data[70_001:90_002] = bytes(20_001)
                handle.zero(20_001, base + 70_001, flags)
                self.assertEqual(handle.pread(128 << 10, base), data)
            # Where nothing is, room is taken all the same.
            handle.zero(64 << 10, 4 << 20, NO_HOLE)
            self.assertEqual(all_statuses(handle, 128 << 10, 4 << 20), [(64 << 10, DATA), (64 << 10, HOLE)])
            handle.trim(SIZES[name], 0)

    def test_zeroes_that_are_to_be_fast_are_not_offered(self):
        handle = self.opened(lax=True)
        handle.pwrite(b"x", 0)
        for flags in (nbd.CMD_FLAG_FAST_ZERO, nbd.CMD_FLAG_FAST_ZERO | NO_HOLE):
            with self.refuses("EINVAL", "ENOTSUP"):
                handle.zero(BLOCK, 0, flags)
        self.assertEqual(handle.pread(1, 0), b"x")

    def test_the_statuses_of_a_large_export(self):
        handle, size = self.opened(LARGE), SIZES[LARGE]
        self.assertEqual(all_statuses(handle, size), [(size, HOLE)])
        handle.pwrite(pattern(BLOCK), size - BLOCK)
        handle.pwrite(b"x", size // 2)
        expected = [(size // 2, HOLE), (BLOCK, DATA), (size // 2 - 2 * BLOCK, HOLE), (BLOCK, DATA)]
        self.assertEqual(all_statuses(handle, size), expected)
        # One extent, within what was asked for, or of what lies in part in it.
        self.assertEqual(statuses(handle, 3 * BLOCK, size // 2 - BLOCK, REQ_ONE), [(BLOCK, HOLE)])
        self.assertEqual(statuses(handle, 100, size // 2 + 50), [(100, DATA)])
        self.assertEqual(statuses(handle, 2 * BLOCK, size // 2 + 50), [(BLOCK - 50, DATA), (BLOCK + 50, HOLE)])


class Full(DeviceTest):
    store = ("--capacity", "64MiB", "--memory", "64MiB")

    def test_a_write_that_finds_no_space_costs_no_connection(self):
        handle, piece, full = self.opened(LARGE), 8 << 20, []
        for number in range(12):
            try:
                handle.pwrite(os.urandom(piece), number * piece)
            except nbd.Error as error:
                self.assertEqual(error.errno, "ENOSPC")
                full.append(number)
        self.assertGreater(len(full), 2)
        self.assertEqual(len(handle.pread(piece, 0)), piece)
        handle.trim(12 * piece, 0)
        for number in range(12):
            self.assertEqual(handle.pread(piece, number * piece), bytes(piece))
        handle.pwrite(b"room", 0)


class Refused(DeviceTest):
    def test_past_the_end(self):
        for structured in (True, False):
            handle, size = self.opened(structured=structured, lax=True), SIZES[DISK]
            for offset, count in ((size, 1), (size - 1, 2), (size - BLOCK, 2 * BLOCK), (1 << 62, BLOCK), (2**63 - 1, 9)):
                with self.subTest(structured=structured, offset=offset):
                    with self.refuses("EINVAL"):
                        handle.pread(count, offset)
                    with self.refuses("ENOSPC"):
                        handle.pwrite(bytes(count), offset)
                    with self.refuses("ENOSPC"):
                        handle.zero(count, offset)
                    with self.refuses("EINVAL"):
                        handle.trim(count, offset)
                    with self.refuses("EINVAL"):
                        handle.block_status(count, offset, lambda *_: 0)
                    self.assertEqual(handle.pread(1, size - 1), b"\0")
            with self.refuses("ENOSPC"):
                handle.pwrite(bytes(REQUEST_MAX), size - REQUEST_MAX + 1)
            # A trim of a length that no read has, and zeroes.
            handle.trim(size, 0)
            handle.zero(size, 0)
            with self.refuses("EINVAL"):
                handle.trim(0xFFFFFFFF, 0)

    def test_too_long(self):
        handle = self.opened(LARGE, lax=True)
        for count in (REQUEST_MAX + 1, 64 << 20):
            with self.refuses("EINVAL"):
                handle.pread(count, 0)
        self.assertEqual(handle.pread(1, 0), b"\0")
        # The server does not read through so much: this client is lost, and no other.
        with self.assertRaises(nbd.Error):
            handle.pwrite(bytes(REQUEST_MAX + 1), 0)
        with self.assertRaises(nbd.Error):
            handle.pread(1, 0)
        self.assertEqual(self.opened(LARGE).pread(1, 0), b"\0")

    def test_of_no_length(self):
        for structured in (True, False):
            handle = self.opened(structured=structured, lax=True)
            self.assertEqual(handle.pread(0, 5), b"")
            self.assertEqual(handle.pread(0, SIZES[DISK]), b"")
            for ask in (handle.trim, handle.zero):
                ask(0, 5)
            handle.pwrite(b"", 5)
            with self.refuses("EINVAL"):
                handle.block_status(0, 5, lambda *_: 0)

    def test_commands_and_flags_that_are_not_offered(self):
        for structured in (True, False):
            handle = self.opened(structured=structured, lax=True)
            for ask in (
                lambda: handle.cache(BLOCK, 0),
                lambda: handle.pwrite(b"xyz", 0, NO_HOLE),
                lambda: handle.pwrite(bytes(16 << 20), 0, REQ_ONE),
                lambda: handle.trim(BLOCK, 0, NO_HOLE),
                lambda: handle.pread(BLOCK, 0, REQ_ONE),
                lambda: handle.zero(BLOCK, 0, DF),
                lambda: handle.trim(BLOCK, 0, 1 << 14),
                lambda: handle.flush(DF),
            ):
                with self.refuses("EINVAL"):
                    ask()
                self.assertEqual(handle.pread(3, 0), bytes(3))

    def test_on_a_device_that_is_only_read(self):
        for structured in (True, False):
            handle = self.opened(FROZEN, structured=structured, lax=True)
            for ask in (handle.trim, handle.zero):
                with self.refuses("EPERM"):
                    ask(BLOCK, 0)
            with self.refuses("EPERM"):
                handle.pwrite(bytes(1_000_000), 3)
            handle.flush()
            self.assertEqual(handle.pread(100_000, 3), bytes(100_000))
