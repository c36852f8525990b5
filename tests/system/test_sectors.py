"""Drives with other sectors than 512 bytes."""

from host import HostTest, needs_root


class Sectors(HostTest):
    @needs_root
    def test_a_round_trip_on_sectors_of_512_bytes(self):
        server = self.serve(data=self.mount_ext4(300 << 20) / "data")
        self.assertEqual(server.ask("set a 0 0 1\r\nx\r\nget a\r\n"), "STORED\r\nVALUE a 0 1\r\nx\r\nEND\r\n")
        self.assertEqual(server.stop(), 0)
