"""Many requests of a client at once, and its end among them, or the server's."""

import nbd
from device import BLOCK, DISK, FROZEN, GROUPED, SIZES, DeviceTest, Server, pattern

MANY = 1000


def wait(handle):
    while handle.aio_in_flight() > 0:
        handle.poll(-1)


class InFlight(DeviceTest):
    def test_a_short_read_passes_a_long_one(self):
        for name in (DISK, GROUPED):
            handle, ended = self.opened(name), []
            handle.pwrite(pattern(16 << 20), 0)
            for count in (16 << 20, BLOCK, 1):
                handle.aio_pread(nbd.Buffer(count), 0, lambda error, count=count: ended.append(count) or 1)
            wait(handle)
            self.assertEqual(sorted(ended), [1, BLOCK, 16 << 20])
            self.assertEqual(ended[2], 16 << 20)

    def test_more_at_once_than_the_server_takes(self):
        for structured in (True, False):
            handle = self.opened(structured=structured)
            buffers, errors = {}, []

            def ended(error):
                errors.append(error.value)
                return 1

            for number in range(MANY):
                written = nbd.Buffer.from_bytearray(bytearray(pattern(5000, number)))
                handle.aio_pwrite(written, number * 5000, ended)
            wait(handle)
            for number in range(MANY):
                buffers[number] = nbd.Buffer(5000)
                handle.aio_pread(buffers[number], number * 5000, ended)
            wait(handle)
            self.assertEqual(errors, [0] * (2 * MANY))
            for number, buffer in buffers.items():
                self.assertEqual(buffer.to_bytearray(), pattern(5000, number))

    def test_errors_among_others(self):
        handle, found = self.opened(lax=True), {}
        for number in range(300):
            ended = lambda error, number=number: found.update({number: error.value}) or 1
            offset = SIZES[DISK] if number % 3 == 0 else number * BLOCK
            match number % 4:
                case 0:
                    handle.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(pattern(9000))), offset, ended)
                case 1:
                    handle.aio_pread(nbd.Buffer(9000), offset, ended)
                case 2:
                    handle.aio_trim(9000, offset, ended)
                case _:
                    handle.aio_block_status(9000, offset, lambda *_: 0, ended)
        wait(handle)
        self.assertEqual(sorted(found), list(range(300)))
        self.assertEqual({number for number, error in found.items() if error}, set(range(0, 300, 3)))

    def test_clients_that_break_off(self):
        for number in range(30):
            handle = self.opened()
            handle.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(8 << 20)), 0)
            for _ in range(number):
                handle.aio_pread(nbd.Buffer(1 << 20), 0)
            handle.aio_flush()
            handle.poll(number)
            # Closes its socket.
            del handle
        self.assertEqual(self.opened(FROZEN).pread(1, 0), b"\0")


class ServerEnds(DeviceTest):
    """A server of their own."""

    def tearDown(self):
        """It has ended, and may."""

    def test_a_server_that_is_told_to_stop_keeps_what_it_answered(self):
        server = Server("stopped")
        self.addCleanup(server.close)
        handle = self.handle()
        handle.connect_unix(server.socket)
        answered = set()
        for number in range(200):
            take = lambda error, number=number: (answered.add(number) if error.value == 0 else None) or 1
            handle.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(pattern(BLOCK * 8, number))), number * BLOCK * 8, take)
        while len(answered) < 20:
            handle.poll(-1)
        server.process.terminate()
        with self.assertRaises(nbd.Error):
            wait(handle)
            # It was quicker than the signal: it is told of the end by the next one.
            while True:
                handle.pread(1, 0)
        self.assertEqual(server.process.wait(timeout=60), 0)
        server.start()
        again = self.handle()
        again.connect_unix(server.socket)
        for number in answered:
            self.assertEqual(again.pread(BLOCK * 8, number * BLOCK * 8), pattern(BLOCK * 8, number), number)
        self.assertEqual(server.stop(), 0)
