"""What signals do to a server."""

import signal
import subprocess
import time

from host import BINARY, SMALL, HostTest


class Signals(HostTest):
    def test_signals_that_stop_a_server_lose_nothing_and_are_named(self):
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGPWR):
            with self.subTest(signal=number):
                server = self.serve("--cache")
                self.assertEqual(server.ask("set a 0 0 1\r\nx\r\n"), "STORED\r\n")
                server.process.send_signal(number)
                self.assertEqual(server.process.wait(timeout=60), 0)
                self.assertIn(f"stopping after {number.name}:", server.log)
                self.assertIn("closed", server.log)
                again = self.serve("--cache")
                self.assertIn("restored 1 item\n", again.log)
                self.assertEqual(again.ask("get a\r\ndelete a\r\n"), "VALUE a 0 1\r\nx\r\nEND\r\nDELETED\r\n")
                self.assertEqual(again.stop(), 0)

    def test_a_server_outlives_its_terminal_if_that_was_asked_for(self):
        server = self.serve(prefix=("nohup",))
        server.process.send_signal(signal.SIGHUP)
        time.sleep(0.3)
        self.assertTrue(server.ask("version\r\n").startswith("VERSION"))
        self.assertNotIn("stopping", server.log)
        self.assertEqual(server.stop(), 0)

    def test_a_service_manager_that_reloads_a_server_does_not_stop_it(self):
        server = self.serve(prefix=("env", f"NOTIFY_SOCKET={self.folder}/none"))
        server.process.send_signal(signal.SIGHUP)
        server.wait_for_log("there are no users and no certificate to read again")
        self.assertTrue(server.ask("version\r\n").startswith("VERSION"))
        self.assertEqual(server.stop(), 0)

    def test_signals_that_mean_nothing_here_do_nothing(self):
        server = self.serve()
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGPIPE, signal.SIGXFSZ):
            server.process.send_signal(number)
        time.sleep(0.3)
        self.assertTrue(server.ask("version\r\n").startswith("VERSION"))
        self.assertEqual(server.stop(), 0)

    def test_a_server_stops_while_its_store_is_not_open_yet(self):
        first = self.serve()
        # The second waits some seconds for the first to let go of the data.
        log, path = self.folder / "second.log", self.folder / "socket"
        words = [BINARY, "serve", "--data", self.folder / "data", *SMALL, "--memcached", f"unix:{path}"]
        with open(log, "wb") as file:
            second = subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=file)
        self.addCleanup(second.wait)
        self.addCleanup(second.kill)
        while not path.exists():
            self.assertIsNone(second.poll())
            time.sleep(0.01)
        time.sleep(0.2)
        second.send_signal(signal.SIGTERM)
        self.assertEqual(second.wait(timeout=60), 0, log.read_text())
        self.assertIn("stopping after SIGTERM: the store was not open yet", log.read_text())
        self.assertEqual(first.ask("set a 0 0 1\r\nx\r\n"), "STORED\r\n")
        self.assertEqual(first.stop(), 0)

    def test_a_limit_on_file_sizes_is_an_error_and_not_a_death(self):
        done = self.tapetum("serve", "--data", self.folder / "new", *SMALL, prefix=("prlimit", "--fsize=1000000"))
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("`ulimit -f`", done.stderr)
        server = self.serve()
        self.assertEqual(server.ask("set a 0 0 1\r\nx\r\n"), "STORED\r\n")
        self.run_quietly("prlimit", "--pid", str(server.process.pid), "--fsize=1000:1000")
        self.assertIn("SERVER_ERROR", server.ask("set b 0 0 1\r\nx\r\n"))
        self.assertEqual(server.ask("get a\r\n"), "VALUE a 0 1\r\nx\r\nEND\r\n")
        self.assertIsNone(server.process.poll())
        server.kill()
        done = self.tapetum("serve", "--data", self.folder / "data", *SMALL, prefix=("prlimit", "--fsize=1000000"))
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("`ulimit -f`", done.stderr)
