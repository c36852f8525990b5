"""A server with its Flight door, and what tests ask of it. `cargo x test-flight` sets the environment, as of tests/clients."""

import base64
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time

import adbc_driver_flightsql.dbapi as adbc
import pyarrow as pa
import pyarrow.flight as flight

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "clients"))
from server import BINARY, SCRATCH, Server, free_port  # noqa: E402

# What a client may wait for an answer, in seconds: the machine may be busy.
PATIENCE = flight.FlightCallOptions(timeout=60)


class Served(Server):
    def __init__(self, name, options=()):
        self.flight_port = free_port()
        self.address = f"grpc://127.0.0.1:{self.flight_port}"
        super().__init__(name, ["--flight", f"127.0.0.1:{self.flight_port}", *options])

    def answers(self):
        if not super().answers():
            return False
        try:
            with socket.create_connection(("127.0.0.1", self.flight_port), timeout=5):
                return True
        except OSError:
            return False

    def run(self, *words, check=True, **options):
        """A command beside the server. What it prints."""
        return command(*words, "--data", self.data, check=check, **options)

    def keyspace(self, name, fields=None, ordered=False):
        self.run("keyspace", "create", name, *(["--index", "ordered"] if ordered else []))
        if fields:
            self.run("keyspace", "format", name, fields)

    def client(self):
        return flight.connect(self.address)

    def cursor(self):
        return adbc.connect(self.address, autocommit=True).cursor()

    def rows(self, sql, parameters=None):
        """The rows of a statement, as a table of Arrow."""
        with adbc.connect(self.address, autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute(sql, parameters)
            return cursor.fetch_arrow_table()

    def put(self, keyspace, table):
        """Stores a table, and gives how many rows were."""
        descriptor = flight.FlightDescriptor.for_command(json.dumps({"put": {"keyspace": keyspace}}))
        with self.client() as client:
            writer, reader = client.do_put(descriptor, table.schema, PATIENCE)
            with writer:
                writer.write_table(table)
                writer.done_writing()
                return json.loads(reader.read().to_pybytes())["stored"]

    def figure(self, name):
        """A number of `stats`, as memcached's clients see it."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=30) as connection:
            connection.sendall(b"stats\r\nquit\r\n")
            told = b"".join(iter(lambda: connection.recv(65536), b"")).decode()
        [value] = [line.split()[2] for line in told.splitlines() if line.startswith(f"STAT {name} ")]
        return int(value)


class SecureServed(Served):
    """A server with users and a certificate, both made for it. ``users`` are names with the options of `tapetum user add`.
    ``asks`` whether clients may show certificates: as `--ssl-verify-mode` has it."""

    def __init__(self, name, users, asks=None):
        self.folder = SCRATCH / f"{name}-{os.getpid()}-access"
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.authority, certificate, key = certificates(self.folder)
        self.users_file = self.folder / "users"
        for user, rights in users.items():
            self.user(user, *rights)
        clients = ["--ssl-ca-cert", self.authority, "--ssl-verify-mode", asks] if asks else []
        super().__init__(name, ["--users-file", self.users_file, "--ssl-chain-cert", certificate, "--ssl-key", key, *clients])
        self.address = f"grpc+tls://127.0.0.1:{self.flight_port}"

    def answers(self):
        # Other doors have users and TLS of their own.
        try:
            with socket.create_connection(("127.0.0.1", self.flight_port), timeout=5):
                return True
        except OSError:
            return False

    def user(self, name, *rights, password=None):
        """Adds a user, or gives one other rights; the password is the name, doubled, if none is given."""
        by = [] if "--certificate" in rights else ["--password-file", "-"]
        command("user", "add", name, "--replace", *rights, "--users-file", self.users_file, *by, input=f"{password or name * 2}\n")

    def reload(self):
        """Lets the server read the users again."""
        seen = self.log.read_text().count("again: ")
        self.process.send_signal(signal.SIGHUP)
        wait_until(lambda: self.log.read_text().count("again: ") > seen)

    def client(self):
        return flight.connect(self.address, tls_root_certs=self.authority.read_bytes())

    def logged_in(self, user, password=None):
        """A client, and the options of its calls."""
        client = self.client()
        token = client.authenticate_basic_token(user, password or user * 2)
        return client, flight.FlightCallOptions(timeout=60, headers=[token])

    def adbc(self, user, password=None):
        return adbc.connect(self.address, autocommit=True, db_kwargs={
            "username": user, "password": password or user * 2,
            "adbc.flight.sql.client_option.tls_root_certs": self.authority.read_text()})

    def close(self):
        super().close()
        shutil.rmtree(self.folder, ignore_errors=True)


def certificates(folder):
    """An authority, and a certificate of this machine that it has signed: the paths of both, and of the key."""
    authority, key = folder / "authority.pem", folder / "authority.key"
    openssl("req", "-x509", *NEW_KEY, "-keyout", key, "-out", authority, "-days", "30", "-subj", "/CN=authority")
    return authority, *renew_certificate(folder, "IP:127.0.0.1,DNS:localhost")


def renew_certificate(folder, names, whose="server"):
    """A certificate for names, in the place of the one before, and its key."""
    authority, certificate, key, asked, extensions = (
        folder / name for name in ("authority.pem", f"{whose}.pem", f"{whose}.key", f"{whose}.csr", "extensions"))
    openssl("req", *NEW_KEY, "-keyout", key, "-out", asked, "-subj", f"/CN={whose}")
    extensions.write_text(f"subjectAltName={names}\nbasicConstraints=CA:FALSE\n")
    openssl("x509", "-req", "-in", asked, "-CA", authority, "-CAkey", authority.with_suffix(".key"), "-CAcreateserial", "-days", "30",
            "-extfile", extensions, "-out", certificate)
    key.chmod(0o600)
    return certificate, key


NEW_KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]


def openssl(*words):
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True, timeout=60)


def command(*words, check=True, **options):
    done = subprocess.run([BINARY, *map(str, words)], capture_output=True, text=True, timeout=120, **options)
    if check and done.returncode != 0:
        raise RuntimeError(f"{words}: {done.stderr}")
    return done.stdout if check else done


def command_descriptor(**members):
    return flight.FlightDescriptor.for_command(json.dumps(members))


def key(data):
    return base64.b64encode(data).decode()


def read(client, descriptor):
    """All rows that a descriptor asks for."""
    info = client.get_flight_info(descriptor, PATIENCE)
    return pa.concat_tables(client.do_get(endpoint.ticket, PATIENCE).read_all() for endpoint in info.endpoints)


def wait_until(is_so, seconds=30):
    deadline = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > deadline:
            raise AssertionError("it did not come to that")
        time.sleep(0.02)
