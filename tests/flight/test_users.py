"""Users and TLS: who gets in, what each may do, and what others hear of it."""

import json
import pathlib
import pickle
import socket
import subprocess
import sys
import time
import unittest

import adbc_driver_manager
import pyarrow as pa
import pyarrow.flight as flight

from served import BINARY, SecureServed, command_descriptor, free_port, key, renew_certificate, wait_until

# The package as it is without its native module.
sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "python"))
import tapetum  # noqa: E402

ALL = command_descriptor(items={"keyspace": "papers"})
UNAUTHENTICATED = flight.FlightUnauthenticatedError
FORBIDDEN = flight.FlightUnauthorizedError
USERS = {
    "reader": ["--read", "papers"],
    "writer": ["--write", "papers"],
    "other": ["--write", "secret", "--read", "nowhere"],
    "admin": ["--admin", "*"],
    "owner": ["--admin", "mine"],
}
ACTIONS = {
    "tapetum.request": b"",
    "tapetum.keyspaces": json.dumps({"name": "papers", "freeze": None}).encode(),
    "tapetum.get": json.dumps({"keyspace": "papers", "keys": [key(b"a")]}).encode(),
    "tapetum.delete": json.dumps({"keyspace": "papers", "keys": [key(b"none")]}).encode(),
    "tapetum.freeze": json.dumps({"owner": "test", "seconds": 1, "flash_bytes": None}).encode(),
    "tapetum.freezes": b"{}",
    "tapetum.renew_freeze": json.dumps({"id": 1, "seconds": 1}).encode(),
    "tapetum.release_freeze": json.dumps({"id": 1}).encode(),
    "tapetum.stats": b"{}",
    "CreatePreparedStatement": b"",
    "ClosePreparedStatement": b"",
    "CancelFlightInfo": b"",
    "RenewFlightEndpoint": b"",
    "CloseSession": b"",
}


def items(pairs):
    return pa.table({"key": pa.array([pair[0] for pair in pairs], pa.binary()),
                     "value": pa.array([pair[1] for pair in pairs], pa.binary())})


def put(client, options, keyspace, table):
    descriptor = command_descriptor(put={"keyspace": keyspace})
    writer, reader = client.do_put(descriptor, table.schema, options)
    with writer:
        writer.write_table(table)
        writer.done_writing()
        return json.loads(reader.read().to_pybytes())["stored"]


def act(client, options, name, body):
    return [result.body.to_pybytes() for result in client.do_action(flight.Action(name, body), options)]


def sized(message):
    size, length = len(message), bytearray()
    while size >= 128:
        length.append(size % 128 + 128)
        size //= 128
    return bytes([*length, size]) + message


class Case(unittest.TestCase):
    def login(self, user, password=None):
        client, options = self.server.logged_in(user, password)
        self.addCleanup(client.close)
        return client, options

    def stranger(self):
        client = self.server.client()
        self.addCleanup(client.close)
        return client


class TestUsers(Case):
    @classmethod
    def setUpClass(cls):
        cls.server = SecureServed("flight-users", USERS)
        cls.addClassCleanup(cls.server.close)
        for keyspace in ("papers", "secret"):
            cls.server.keyspace(keyspace)
        client, options = cls.server.logged_in("admin")
        with client:
            assert put(client, options, "papers", items([(b"a", b"1"), (b"b", b"2")])) == 2

    def test_whoever_logs_in_reads(self):
        client, options = self.login("reader")
        info = client.get_flight_info(ALL, options)
        rows = client.do_get(info.endpoints[0].ticket, options).read_all()
        self.assertEqual(sorted(rows["value"].to_pylist()), [b"1", b"2"])
        with self.server.adbc("reader") as connection, connection.cursor() as cursor:
            cursor.execute("SELECT count(*) AS n FROM papers")
            self.assertEqual(cursor.fetch_arrow_table()["n"].to_pylist(), [2])

    def test_a_password_does_with_any_call(self):
        import base64

        client = self.stranger()
        basic = (b"authorization", b"Basic " + base64.b64encode(b"reader:readerreader"))
        options = flight.FlightCallOptions(timeout=60, headers=[basic])
        [told] = act(client, options, "tapetum.keyspaces", b'{"name": null, "freeze": null}')
        self.assertEqual([row["name"] for row in json.loads(told)], ["papers"])

    def test_a_wrong_password_and_a_user_who_is_not_there_are_told_alike(self):
        told = []
        for user, password in (("reader", "wrong"), ("nobody", "wrong")):
            client = self.stranger()
            with self.assertRaises(UNAUTHENTICATED) as refused:
                client.authenticate_basic_token(user, password)
            told.append(str(refused.exception).split(". Detail")[0].split("gRPC client debug")[0])
        self.assertEqual(told[0], told[1])
        self.assertIn("there is no such user, or the password is another one", told[0])
        with self.assertRaises(adbc_driver_manager.Error) as refused:
            with self.server.adbc("reader", "wrong") as connection, connection.cursor() as cursor:
                cursor.execute("SELECT 1")
        self.assertIn("no such user", str(refused.exception))

    def test_every_call_without_credentials_is_refused_with_what_to_do(self):
        reader, options = self.login("reader")
        endpoint = reader.get_flight_info(ALL, options).endpoints[0]
        table = items([(b"x", b"y")])

        def do_exchange(client, options):
            writer, reader = client.do_exchange(ALL, options)
            with writer:
                writer.begin(table.schema)
                writer.done_writing()
                reader.read_all()

        calls = {
            "get_flight_info": lambda client, options: client.get_flight_info(ALL, options),
            "get_schema": lambda client, options: client.get_schema(ALL, options),
            "do_get": lambda client, options: client.do_get(endpoint.ticket, options).read_all(),
            "do_put": lambda client, options: put(client, options, "papers", table),
            "do_exchange": do_exchange,
            "list_flights": lambda client, options: list(client.list_flights(b"", options)),
            "list_actions": lambda client, options: client.list_actions(options),
            "constants": lambda client, options: client.get_flight_info(command_descriptor(query={"keyspace": ""}), options),
        }
        for name, body in ACTIONS.items():
            calls[name] = lambda client, options, name=name, body=body: act(client, options, name, body)
        tokens = {"none": [], "made up": [(b"authorization", b"Bearer made-up")], "other": [(b"authorization", b"Digest x")]}
        for kind, headers in tokens.items():
            stranger = self.stranger()
            shown = flight.FlightCallOptions(timeout=60, headers=headers)
            for name, call in calls.items():
                if kind == "other" and name != "get_schema":
                    # Each failure makes the next one slower.
                    continue
                # Some calls of pyarrow have no exception of their own for it.
                with self.subTest(name, kind=kind):
                    with self.assertRaisesRegex(Exception, "unauthenticated") as refused:
                        call(stranger, shown)
                    self.assertIn("password is another one" if kind == "other" else "log in", str(refused.exception))

    def test_each_call_of_grpc_is_refused_and_poll_too(self):
        """pyarrow has no PollFlightInfo: the doorkeeper looks at all methods alike, also at those that are not there."""
        # gRPC over HTTP/2 with curl, if the machine has one that can.
        has_curl = subprocess.run(["sh", "-c", "curl --version | grep -q HTTP2"], capture_output=True).returncode == 0
        if not has_curl:
            self.skipTest("curl is not there, or has no HTTP/2")
        for method in ("PollFlightInfo", "GetFlightInfo", "Handshake", "Nothing"):
            done = subprocess.run(
                ["curl", "-sS", "-i", "--http2", "--cacert", self.server.authority, "-X", "POST", "-H", "content-type: application/grpc",
                 "-H", "te: trailers", "-d", "",
                 f"https://127.0.0.1:{self.server.flight_port}/arrow.flight.protocol.FlightService/{method}"],
                capture_output=True, timeout=60)
            self.assertIn(b"grpc-status: 16", done.stdout, (method, done.stderr))

    def test_a_stolen_ticket_is_worth_nothing(self):
        reader, options = self.login("reader")
        endpoint = reader.get_flight_info(ALL, options).endpoints[0]
        info = reader.get_flight_info(ALL, options)
        renew = b"\x0a" + sized(endpoint.serialize())
        cancel = b"\x0a" + sized(info.serialize())
        for thief in ("writer", "other", "admin"):
            client, shown = self.login(thief)
            for name, call in {
                "do_get": lambda: client.do_get(endpoint.ticket, shown).read_all(),
                "renew": lambda: act(client, shown, "RenewFlightEndpoint", renew),
                "cancel": lambda: act(client, shown, "CancelFlightInfo", cancel),
            }.items():
                with self.subTest(thief, call=name), self.assertRaises(FORBIDDEN) as refused:
                    call()
                self.assertIn("another user's", str(refused.exception))
        self.assertEqual(reader.do_get(endpoint.ticket, options).read_all().num_rows, 2)
        self.assertEqual(len(act(reader, options, "RenewFlightEndpoint", renew)), 1)
        self.assertEqual(len(act(reader, options, "CancelFlightInfo", cancel)), 1)

    def test_a_reader_writes_nothing(self):
        client, options = self.login("reader")
        for name, call in {
            "put": lambda: put(client, options, "papers", items([(b"x", b"y")])),
            "empty": lambda: put(client, options, "papers", items([])),
            "delete": lambda: act(client, options, "tapetum.delete", ACTIONS["tapetum.delete"]),
        }.items():
            with self.subTest(name), self.assertRaises(FORBIDDEN) as refused:
                call()
            self.assertIn('"reader" may not write the keyspace "papers"', str(refused.exception))
            self.assertIn("tapetum user add reader --replace --write papers", str(refused.exception))
        with self.assertRaises(Exception) as refused, self.server.adbc("reader") as connection, connection.cursor() as cursor:
            cursor.adbc_ingest("papers", items([(b"x", b"y")]), mode="append")
        self.assertIn("may not write", str(refused.exception))
        with self.assertRaises(FORBIDDEN):
            act(client, options, "tapetum.freeze", ACTIONS["tapetum.freeze"])
        with self.assertRaises(FORBIDDEN):
            act(client, options, "tapetum.stats", b"{}")
        writer, options = self.login("writer")
        self.assertEqual(put(writer, options, "papers", items([(b"w", b"1")])), 1)
        self.assertEqual(json.loads(act(writer, options, "tapetum.delete", json.dumps(
            {"keyspace": "papers", "keys": [key(b"w")]}).encode())[0]), {"deleted": 1})

    def test_a_keyspace_that_may_not_be_read_looks_as_one_that_is_not_there(self):
        client, options = self.login("reader")

        def of(keyspace):
            told = []
            for call in (
                lambda: client.get_flight_info(command_descriptor(items={"keyspace": keyspace}), options),
                lambda: client.get_flight_info(command_descriptor(items={"keyspace": keyspace, "range": {"from": key(b"a")}}), options),
                lambda: client.get_flight_info(command_descriptor(query={"keyspace": keyspace}), options),
                lambda: client.get_flight_info(command_descriptor(
                    query={"keyspace": keyspace, "fields": "key: k bytes; value: v bytes"}), options),
                lambda: client.get_flight_info(flight.FlightDescriptor.for_path(keyspace), options),
                lambda: client.get_schema(flight.FlightDescriptor.for_path(keyspace), options),
                lambda: put(client, options, keyspace, items([])),
                lambda: act(client, options, "tapetum.keyspaces", json.dumps({"name": keyspace, "freeze": None}).encode()),
                lambda: act(client, options, "tapetum.get", json.dumps({"keyspace": keyspace, "keys": [key(b"a")]}).encode()),
                lambda: act(client, options, "tapetum.delete", json.dumps({"keyspace": keyspace, "keys": []}).encode()),
            ):
                # get_schema of pyarrow has no exception of its own for it.
                with self.assertRaisesRegex(Exception, "unauthorized|Unauthorized") as refused:
                    call()
                told.append(str(refused.exception).split("gRPC client debug")[0].split(". Detail")[0].replace(keyspace, "…"))
            with self.server.adbc("reader") as connection, connection.cursor() as cursor:
                with self.assertRaises(adbc_driver_manager.Error) as refused:
                    cursor.execute(f"SELECT * FROM {keyspace}")
                told.append(str(refused.exception).replace(keyspace, "…"))
            return told

        self.assertEqual(of("secret"), of("sacred"))

    def test_lists_show_what_may_be_read(self):
        for user, names in (("reader", ["papers"]), ("other", ["secret"]), ("admin", ["default", "papers", "secret"])):
            client, options = self.login(user)
            flights = [info.descriptor.path[0].decode() for info in client.list_flights(b"", options)]
            self.assertEqual(sorted(name for name in flights if name in ("default", "papers", "secret")), names)
            [told] = act(client, options, "tapetum.keyspaces", b'{"name": null, "freeze": null}')
            self.assertEqual(sorted(row["name"] for row in json.loads(told) if row["name"] != "mine"), names)
            with self.server.adbc(user) as connection:
                [catalog] = connection.adbc_get_objects(depth="tables").read_all().to_pylist()
                tables = [table["table_name"] for table in catalog["catalog_db_schemas"][0]["db_schema_tables"]]
                self.assertEqual(sorted(name for name in tables if name != "mine"), names)

    def test_a_right_over_a_keyspace_that_is_not_there_tells_of_no_other(self):
        client, options = self.login("other")
        with self.assertRaises(Exception) as refused:
            client.get_flight_info(command_descriptor(items={"keyspace": "nowhere"}), options)
        self.assertIn("there is no keyspace", str(refused.exception))
        self.assertNotIn("papers", str(refused.exception))

    def run_as(self, user, *words, password=None, check=True, address=None):
        file = self.server.folder / f"{user}.password"
        file.write_text((password or user * 2) + "\n")
        file.chmod(0o600)
        where = ["--server", address or self.server.address, "--server-ca", self.server.authority, "--user", user, "--password-file", file]
        done = subprocess.run([BINARY, *words, *map(str, where)], capture_output=True, text=True, timeout=120)
        if check:
            self.assertEqual(done.returncode, 0, done.stderr)
        return done

    def test_commands_log_in_and_their_errors_say_what_to_do(self):
        self.assertEqual(self.run_as("reader", "get", "a", "--keyspace", "papers").stdout.strip(), "1")
        refused = self.run_as("reader", "put", "a", "3", "--keyspace", "papers", check=False)
        self.assertIn('"reader" may not write the keyspace "papers"', refused.stderr)
        wrong = self.run_as("reader", "get", "a", "--keyspace", "papers", password="wrong", check=False)
        self.assertIn("the password is another one", wrong.stderr)
        plain = self.run_as("reader", "get", "a", address=self.server.address.replace("+tls", ""), check=False)
        self.assertIn("grpc+tls://", plain.stderr)

        def bare(*words):
            done = subprocess.run([BINARY, "get", "a", "--server", self.server.address, *map(str, words)],
                                  capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
            self.assertNotEqual(done.returncode, 0)
            return done.stderr

        self.assertIn("--server-ca", bare())
        self.assertIn("--user", bare("--server-ca", self.server.authority))
        self.assertIn("--password-file", bare("--server-ca", self.server.authority, "--user", "reader"))
        foreign = self.server.folder / "foreign.pem"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout",
                        foreign.with_suffix(".key"), "-out", foreign, "-subj", "/CN=foreign"], check=True, capture_output=True)
        self.assertIn("another authority", bare("--server-ca", foreign))

    def test_what_an_admin_does_is_done_and_leaves_an_audit_line(self):
        self.run_as("admin", "keyspace", "create", "made")
        refused = self.run_as("reader", "keyspace", "drop", "papers", "--yes", check=False)
        self.assertIn("may not administer", refused.stderr)
        self.run_as("owner", "keyspace", "create", "mine")
        self.run_as("owner", "keyspace", "format", "mine", "key: k u32be; value: v u32be")
        self.assertIn("may not administer", self.run_as("owner", "keyspace", "rename", "mine", "yours", check=False).stderr)
        self.run_as("admin", "keyspace", "drop", "made", "--yes")
        log = self.server.log.read_text()
        self.assertRegex(log, r'audit: "admin" from 127\.0\.0\.1:\d+ over Flight: create keyspace "made": done')
        self.assertRegex(log, r'audit: "reader" from 127\.0\.0\.1:\d+ over Flight: drop keyspace "papers": "reader" may not')
        self.assertRegex(log, r'audit: "owner" from 127\.0\.0\.1:\d+ over Flight: rename keyspace "mine" to "yours": "owner" may not')


class TestCertificates(Case):
    def connect(self, whose=None, names=None):
        shown = {}
        if whose:
            certificate, key = renew_certificate(self.server.folder, names, whose)
            shown = {"cert_chain": certificate.read_bytes(), "private_key": key.read_bytes()}
        client = flight.connect(self.server.address, tls_root_certs=self.server.authority.read_bytes(), **shown)
        self.addCleanup(client.close)
        return client

    def serve(self, asks):
        users = {"carol": ["--read", "papers", "--certificate"], "dave": ["--read", "papers"]}
        self.server = SecureServed(f"flight-certificates-{asks}", users, asks=asks)
        self.addCleanup(self.server.close)
        self.server.keyspace("papers")

    def test_a_user_is_known_by_a_certificate_and_an_unknown_name_is_nobody(self):
        self.serve("request")
        patience = flight.FlightCallOptions(timeout=60)
        carol = self.connect("client", "DNS:carol")
        carol.get_flight_info(ALL, patience)
        with self.assertRaises(FORBIDDEN):
            put(carol, patience, "papers", items([(b"x", b"y")]))
        for client in (self.connect("other", "DNS:eve"), self.connect()):
            with self.assertRaises(UNAUTHENTICATED):
                client.get_flight_info(ALL, patience)
        # A password goes before the certificate.
        token = carol.authenticate_basic_token("dave", "davedave")
        carol.get_flight_info(ALL, flight.FlightCallOptions(timeout=60, headers=[token]))

    def test_whoever_has_none_does_not_get_in_where_one_is_needed(self):
        self.serve("require")
        with self.assertRaises(Exception):
            self.connect().get_flight_info(ALL, flight.FlightCallOptions(timeout=20))
        self.connect("client", "DNS:carol").get_flight_info(ALL, flight.FlightCallOptions(timeout=60))


class TestPackage(Case):
    """The package tapetum as a client."""

    def setUp(self):
        self.server = SecureServed("flight-package", {"alice": ["--write", "papers", "--write", "default"]})
        self.addCleanup(self.server.close)
        self.server.keyspace("papers", ordered=True)
        self.login = {"user": "alice", "password": "alicealice"}
        self.ca = self.server.authority

    def connect(self, address=None, **changed):
        store = tapetum.connect(address or self.server.address, **({"ca": self.ca} | self.login | changed))
        self.addCleanup(store.close)
        return store

    def test_a_store_is_used_as_a_user(self):
        for ca in (self.ca, str(self.ca), self.ca.read_bytes()):
            store = self.connect(ca=ca)
            self.assertEqual(sorted(store.keyspaces()), ["default", "papers"])
        papers = store.keyspace("papers")
        papers["a"] = b"1"
        papers.batch([("b", b"2"), ("c", None)])
        self.assertEqual(papers.multi_get(["a", "b", "c"]), [b"1", b"2", None])
        self.assertEqual(dict(papers.scan()), {b"a": b"1", b"b": b"2"})
        self.assertEqual(papers.delete("b"), True)

    def test_a_copy_logs_in_by_itself(self):
        store = self.connect()
        store.keyspace("papers")["a"] = b"1"
        keyspace = pickle.dumps(store.keyspace("papers"))
        program = ("import pickle, sys; sys.path.insert(0, sys.argv[1])\n"
                   "print(dict(pickle.loads(bytes.fromhex(sys.argv[2])).scan()))")
        done = subprocess.run([sys.executable, "-c", program, sys.path[0], keyspace.hex()], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.stdout.strip(), "{b'a': b'1'}", done.stderr)
        self.assertNotIn("alicealice", repr(store) + repr(store.login))
        with pickle.loads(pickle.dumps(store)) as copy:
            self.assertEqual(copy.keyspace("papers")["a"], b"1")

    def test_several_nodes_have_the_same_user(self):
        nodes = self.connect({"one": self.server.address})
        nodes.keyspace("papers")["n"] = b"1"
        self.assertEqual(pickle.loads(pickle.dumps(nodes.keyspace("papers")))["n"], b"1")
        self.assertEqual(pickle.loads(pickle.dumps(nodes)).keyspace("papers")["n"], b"1")

    def test_a_token_that_ended_is_exchanged(self):
        store = self.connect()
        papers = store.keyspace("papers")
        papers["a"] = b"1"
        # Tokens of before a restart are worth nothing.
        self.server.restart()
        for call in (lambda: papers["a"], lambda: list(papers.scan()), lambda: papers.put("a", b"2"), lambda: papers.scan(
                select="key", fields="key: key bytes; value: value bytes").columns):
            wait_until(lambda: self.is_answered(call))
            self.server.restart()
        wait_until(lambda: self.is_answered(lambda: papers["a"]))
        self.assertEqual(papers["a"], b"2")

    def is_answered(self, call):
        """Whether a call succeeds, or the server is not there yet."""
        try:
            call()
        except tapetum.Error as error:
            self.assertIn("no server answers", str(error))
            return False
        return True

    def test_errors_say_what_to_do(self):
        for changed, told in [
            ({"password": "wrong"}, "there is no such user, or the password is another one"),
            ({"user": None, "password": None}, "log in"),
            ({"user": None}, "given together"),
            ({"ca": None}, "needs ca="),
            ({"ca": "/nowhere"}, "is not read"),
            ({"address": f"grpc+tls://127.0.0.1:{free_port()}"}, "no server answers"),
        ]:
            with self.subTest(told), self.assertRaises(tapetum.Error) as refused:
                self.connect(**changed)
            self.assertIn(told, str(refused.exception))
            self.assertNotIn("Detail", str(refused.exception))
        with self.assertRaises(tapetum.Error) as refused:
            self.connect().stats()
        self.assertIn('"alice" may not read the whole store', str(refused.exception))


class TestReload(Case):
    def setUp(self):
        self.server = SecureServed("flight-reload", {"alice": ["--write", "papers"], "bob": ["--read", "papers"]})
        self.addCleanup(self.server.close)
        self.server.keyspace("papers")

    def test_what_was_taken_away_ends_at_the_next_call(self):
        client, options = self.login("alice")
        self.assertEqual(put(client, options, "papers", items([(b"a", b"1")])), 1)
        ticket = client.get_flight_info(ALL, options).endpoints[0].ticket
        self.server.user("alice", "--read", "other")
        self.server.reload()
        # The password was given again, and so its hash is another one.
        with self.assertRaises(UNAUTHENTICATED):
            put(client, options, "papers", items([(b"a", b"2")]))
        client, options = self.login("alice")
        with self.assertRaises(FORBIDDEN):
            put(client, options, "papers", items([(b"a", b"2")]))
        with self.assertRaises(FORBIDDEN):
            client.do_get(ticket, options).read_all()
        text = self.server.users_file.read_text()
        self.server.users_file.write_text(text.replace("read:other", "write:papers"))
        self.server.reload()
        self.assertEqual(put(client, options, "papers", items([(b"a", b"2")])), 1, "the token is good still")
        self.server.users_file.write_text(text.replace("read:other", "read:papers"))
        self.server.reload()
        with self.assertRaises(FORBIDDEN):
            put(client, options, "papers", items([(b"a", b"3")]))
        self.assertEqual(client.do_get(ticket, options).read_all().num_rows, 1)

    def test_a_certificate_that_is_exchanged_holds_for_those_who_connect_later(self):
        before, options = self.login("bob")
        before.get_schema(ALL, options)
        renew_certificate(self.server.folder, "DNS:elsewhere")
        self.server.reload()
        before.get_schema(ALL, options)
        words = ["get", "a", "--keyspace", "papers", "--server", self.server.address, "--server-ca", self.server.authority]
        done = subprocess.run([BINARY, *map(str, words)], capture_output=True, text=True, timeout=60)
        self.assertIn("for another name", done.stderr)
        with self.assertRaises(tapetum.Error) as refused:
            tapetum.connect(self.server.address, user="bob", password="bobbob", ca=self.server.authority)
        self.assertIn("is not trusted", str(refused.exception))
        renew_certificate(self.server.folder, "IP:127.0.0.1")
        self.server.reload()
        client, options = self.login("bob")
        client.get_schema(ALL, options)

    def test_a_put_under_way_ends_where_the_right_was_taken_away(self):
        client, options = self.login("alice")
        table = items([(b"a", b"1")])
        writer, reader = client.do_put(command_descriptor(put={"keyspace": "papers"}), table.schema, options)
        writer.write_table(table)
        time.sleep(0.5)
        text = self.server.users_file.read_text()
        self.server.users_file.write_text(text.replace("write:papers", "read:papers"))
        self.server.reload()
        with self.assertRaises(FORBIDDEN):
            writer.write_table(table)
            writer.done_writing()
            reader.read()
            writer.close()

    def test_handshakes_that_never_finish_keep_nobody_out_for_long(self):
        stalled = []
        for number in range(200):
            connection = socket.create_connection(("127.0.0.1", self.server.flight_port), timeout=10)
            if number % 2:
                # The head of a message that does not come.
                connection.sendall(bytes.fromhex("16030102000100"))
            stalled.append(connection)
        began = time.monotonic()
        client, options = self.login("bob")
        self.assertEqual(client.get_schema(ALL, options).schema.names[0], "key")
        self.assertLess(time.monotonic() - began, 10)
        for connection in stalled:
            connection.close()

    def test_clients_that_speak_no_tls_end_alone(self):
        for line in (b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\0" * 100):
            with socket.create_connection(("127.0.0.1", self.server.flight_port), timeout=30) as connection:
                connection.sendall(line)
                while connection.recv(4096):
                    pass
        client, options = self.login("bob")
        client.get_schema(ALL, options)


if __name__ == "__main__":
    unittest.main()
