"""Requests that no page of the server would send: each is refused, and the server goes on."""

import socket
import unittest

from console import Server, papers

BODY_BYTES = 64 << 10
ROUTES = ["figures", "slow", "keyspaces", "sample", "map", "query", "get", "betweenness"]
BODIES = {"sample": {"keyspace": "papers", "prefix": ""}, "query": {"sql": "select count(*) from papers", "side": "drive"},
          "get": {"keyspace": "papers", "key": "1", "select": "*", "side": "drive"},
          "betweenness": {"keyspace": "references", "where": "year > 2015", "top": 3, "side": "drive"}}


class Requests(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = papers()

    def setUp(self):
        status, session = self.server.post("login")
        self.assertEqual(status, 200, session)
        self.token = session["token"]
        self.addCleanup(self.assert_serves)

    def assert_serves(self):
        self.assertEqual(self.server.post("figures", token=self.token)[0], 200)

    def assert_refused(self, statuses, *arguments, **options):
        status, answer = self.server.post(*arguments, **options)
        self.assertIn(status, statuses, answer)
        self.assertTrue(not isinstance(answer, dict) or answer.get("error"), answer)
        return answer

    def test_each_route_answers_a_right_one(self):
        for route in ROUTES:
            status, answer = self.server.post(route, BODIES.get(route, {}), token=self.token)
            self.assertEqual(status, 200, (route, answer))

    def test_without_a_token_or_with_a_wrong_one(self):
        for route in ROUTES:
            for token in (None, "", "0" * len(self.token), self.token[:-1], self.token + "0", "\u00fc"):
                self.assert_refused([400, 401], route, BODIES.get(route, {}), token=token)

    def test_of_another_origin(self):
        port = self.server.console_port
        for route in (*ROUTES, "login"):
            for origin in (None, "null", "http://example.org", f"http://localhost:{port}", f"https://127.0.0.1:{port}",
                           f"http://127.0.0.1:{port}.example.org", f"http://127.0.0.1:{port + 1}", "http://127.0.0.1"):
                self.assert_refused([400, 403], route, BODIES.get(route, {}), token=self.token, origin=origin)

    def test_for_another_host(self):
        """A name that was made to lead to this machine (DNS rebinding)."""
        for host in ("example.org", f"example.org:{self.server.console_port}", f"127.0.0.1.example.org:{self.server.console_port}"):
            self.assert_refused([400, 403, 421], "figures", token=self.token, host=host, origin=f"http://{host}")
            self.assert_refused([400, 403, 421], "login", host=host, origin=f"http://{host}")

    def test_by_another_method_or_route(self):
        for route in (*ROUTES, "login"):
            for method in ("GET", "PUT", "DELETE", "OPTIONS", "HEAD"):
                self.assert_refused([403, 404, 405], route, method=method, token=self.token)
        self.assert_refused([404], "nothing", token=self.token)
        self.assert_refused([404], "../figures/..", token=self.token)

    def test_with_a_wrong_body(self):
        for body in (b"", b"{", b"[]", b"null", b"1", b"\xff\xfe", b"{}" * 3, b"[" * 20_000, b'{"sql": 1, "side": "drive"}',
                     b'{"sql": "select 1", "side": "moon"}', b'{"side": "drive"}', b'{"sql": "\\ud800", "side": "drive"}'):
            self.assert_refused([400, 413, 422], "query", body, token=self.token)
        for body in ({"keyspace": "nowhere", "prefix": ""}, {"keyspace": 7}, {"prefix": ""}):
            self.assert_refused([400, 403, 404, 422], "sample", body, token=self.token)
        for where, top in (("year >", 3), ("1=1", -1), ("1=1", 1 << 40), (7, 3)):
            body = {"keyspace": "references", "where": where, "top": top, "side": "drive"}
            self.assert_refused([400, 404, 422], "betweenness", body, token=self.token)
        for key in ("", "x", "1,2", "99999999999999", "\x00"):
            status, answer = self.server.post("get", {"keyspace": "papers", "key": key, "select": "*", "side": "drive"}, token=self.token)
            self.assertIn(status, (200, 400, 404, 422), answer)

    def test_as_no_json(self):
        """A form of another page is sent with these, without asking the server first."""
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
            self.assert_refused([400, 415], "figures", token=self.token, content_type=kind)

    def test_too_long(self):
        body = {"sql": "select 1 -- " + "x" * BODY_BYTES, "side": "drive"}
        self.assert_refused([400, 413], "query", body, token=self.token)
        # One that says so, and one that says nothing sensible.
        for length in (1 << 40, -1, "x"):
            with socket.create_connection(("127.0.0.1", self.server.console_port), timeout=30) as connection:
                head = ["POST /api/query HTTP/1.1", f"Host: 127.0.0.1:{self.server.console_port}", f"Origin: {self.server.origin}",
                        "Content-Type: application/json", f"Authorization: Bearer {self.token}", f"Content-Length: {length}", "", ""]
                connection.sendall("\r\n".join(head).encode() + b"x" * (BODY_BYTES + 1))
                try:
                    self.assertRegex(connection.recv(100).decode(), r"^(HTTP/1.1 4\d\d |$)")
                except ConnectionResetError:
                    # It closed before all had come.
                    pass

    def test_the_page_and_what_guards_it(self):
        with socket.create_connection(("127.0.0.1", self.server.console_port), timeout=30) as connection:
            connection.sendall(f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{self.server.console_port}\r\nConnection: close\r\n\r\n".encode())
            reply = b"".join(iter(lambda: connection.recv(65536), b"")).decode()
        head = reply.partition("\r\n\r\n")[0].lower()
        self.assertTrue(head.startswith("http/1.1 200 "), head)
        for line in ("default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "x-content-type-options: nosniff",
                     "referrer-policy: no-referrer"):
            self.assertIn(line, head)
        self.assertNotIn("access-control-allow", head)

    def test_off_unless_asked_for(self):
        server = Server("off")
        self.addCleanup(server.close)
        self.assertNotIn("the console is at", server.log.read_text())


if __name__ == "__main__":
    unittest.main()
