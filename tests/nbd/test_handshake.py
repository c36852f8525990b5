"""What a client and the server agree on before the first request."""

import errno

import nbd
from device import BLOCK, DISK, FROZEN, GROUPED, LARGE, REQUEST_MAX, SIZES, DeviceTest

HOLE = nbd.STATE_HOLE | nbd.STATE_ZERO


class Handshake(DeviceTest):
    def test_a_list_names_all_exports(self):
        handle, names = self.negotiating(), []
        self.assertEqual(handle.opt_list(lambda name, _description: names.append(name) or 0), len(SIZES))
        self.assertEqual(names, sorted(SIZES))
        # Twice, and then an export.
        handle.opt_list(lambda *_: 0)
        handle.opt_go()
        self.assertEqual(handle.get_size(), SIZES[DISK])

    def test_what_an_export_can_do(self):
        for name, size in SIZES.items():
            handle = self.opened(name)
            self.assertEqual(handle.get_protocol(), "newstyle-fixed")
            self.assertEqual(handle.get_size(), size)
            self.assertEqual(handle.is_read_only(), name == FROZEN)
            able = (handle.can_multi_conn, handle.can_fua, handle.can_flush, handle.can_trim, handle.can_zero, handle.can_df)
            self.assertTrue(all(can() for can in able), name)
            unable = (handle.can_fast_zero, handle.can_cache, handle.is_rotational, handle.get_tls_negotiated)
            self.assertFalse(any(can() for can in unable), name)
            sizes = (nbd.SIZE_MINIMUM, nbd.SIZE_PREFERRED, nbd.SIZE_MAXIMUM)
            self.assertEqual([handle.get_block_size(which) for which in sizes], [1, BLOCK, REQUEST_MAX])

    def test_information_is_given_without_going(self):
        handle = self.negotiating(LARGE)
        handle.set_full_info(True)
        handle.opt_info()
        self.assertTrue(handle.aio_is_negotiating())
        self.assertEqual((handle.get_size(), handle.get_canonical_export_name()), (SIZES[LARGE], LARGE))
        # Nothing describes it.
        with self.refuses("ENOTSUP"):
            handle.get_export_description()
        handle.set_export_name(FROZEN)
        handle.opt_info()
        self.assertTrue(handle.is_read_only())
        handle.opt_go()
        self.assertEqual(handle.pread(1, 0), b"\0")

    def test_block_sizes_are_told_to_those_who_ask(self):
        handle = self.handle()
        handle.set_request_block_size(False)
        handle.connect_unix(self.server.socket)
        self.assertEqual(handle.get_block_size(nbd.SIZE_MAXIMUM), 0)
        self.assertEqual(handle.pread(3, 5), bytes(3))

    def test_contexts_are_listed(self):
        for asked in ((), (nbd.CONTEXT_BASE_ALLOCATION,), ("base:",), ("x-other:any", "base:")):
            handle, found = self.negotiating(contexts=asked), []
            self.assertEqual(handle.opt_list_meta_context(lambda name: found.append(name) or 0), 1, asked)
            self.assertEqual(found, [nbd.CONTEXT_BASE_ALLOCATION])
            handle.opt_go()
        for asked in (("x-other:any",), ("base:allocation2",), ("base",), ("qemu:dirty-bitmap:one",)):
            self.assertEqual(self.negotiating(contexts=asked).opt_list_meta_context(lambda _: 0), 0, asked)
        # libnbd makes one error of all.
        with self.refuses("ENOTSUP"):
            self.negotiating("absent").opt_list_meta_context(lambda _: 0)

    def test_a_context_that_is_not_known_is_not_set(self):
        handle = self.opened(contexts=("x-other:any", nbd.CONTEXT_BASE_ALLOCATION, "base:unknown"))
        self.assertTrue(handle.can_meta_context(nbd.CONTEXT_BASE_ALLOCATION))
        self.assertFalse(handle.can_meta_context("x-other:any"))
        self.assertFalse(handle.can_meta_context("base:unknown"))
        # A query of a whole namespace lists, and sets nothing.
        for contexts in (("x-other:any",), ("base:",), ()):
            handle = self.opened(contexts=contexts, lax=True)
            self.assertFalse(handle.can_meta_context(nbd.CONTEXT_BASE_ALLOCATION))
            with self.refuses("EINVAL"):
                handle.block_status(BLOCK, 0, lambda *_: 0)
            self.assertEqual(handle.pread(BLOCK, 0), bytes(BLOCK))

    def test_contexts_of_one_export_are_not_those_of_another(self):
        handle = self.negotiating(LARGE)
        handle.opt_info()
        self.assertTrue(handle.can_meta_context(nbd.CONTEXT_BASE_ALLOCATION))
        handle.set_export_name(GROUPED)
        handle.opt_go()
        found = []
        handle.block_status(BLOCK, 0, lambda _context, _at, entries, _error: found.extend(entries) or 0)
        self.assertEqual(found, [BLOCK, HOLE])

    def test_flags_of_the_handshake(self):
        handle = self.handle()
        handle.set_handshake_flags(nbd.HANDSHAKE_FLAG_FIXED_NEWSTYLE)
        handle.connect_unix(self.server.socket)
        self.assertEqual(handle.get_size(), SIZES[DISK])
        # Without the fixed newstyle nobody may be told of an error.
        handle = self.handle()
        handle.set_handshake_flags(0)
        with self.assertRaises(nbd.Error):
            handle.connect_unix(self.server.socket)

    def test_a_uri_names_an_export(self):
        handle = self.handle()
        handle.connect_uri(f"nbd+unix:///{GROUPED}?socket={self.server.socket}")
        self.assertEqual(handle.get_export_name(), GROUPED)
        with self.assertRaises(nbd.Error) as caught:
            self.handle().connect_uri(f"nbd+unix:///absent?socket={self.server.socket}")
        self.assertEqual(caught.exception.errnum, errno.ENOENT)
