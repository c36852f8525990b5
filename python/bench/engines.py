"""The same questions to a served store over Flight, and to DuckDB's and SQLite's own files, each cold; and a group-by over three nodes beside one,
through Polars and, where it is installed, through Ray. `cargo x bench flight` runs it. Prints NAME<tab>NUMBER… a line.

Times are of everything from the question to the last row, by a process that has just started; caches of the kernel are dropped before.
"""

import argparse
import json
import os
import pathlib
import resource
import socket
import subprocess
import sys
import time

ROUNDS = 5
FIELDS = "key: id u64be; value: year u16be, place u16be, text string"
QUESTIONS = {
    "0.1 %": "SELECT id, year, text FROM t WHERE place < 1",
    "10 %": "SELECT id, year, text FROM t WHERE place < 100",
    "group by": "SELECT year, count(*) AS n, sum(place) AS places FROM t GROUP BY year",
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", type=pathlib.Path, required=True)
    parser.add_argument("--scratch", type=pathlib.Path, required=True)
    parser.add_argument("--records", type=int, required=True)
    parser.add_argument("--ask", nargs=3, metavar=("ENGINE", "PLACE", "SQL"))
    arguments = parser.parse_args()
    if arguments.ask:
        return ask(*arguments.ask)
    arguments.scratch.mkdir(parents=True, exist_ok=True)
    table = made(arguments.records)
    beside_files(arguments, table)
    over_nodes(arguments, table)


def made(records):
    import numpy
    import pyarrow as pa

    chance = numpy.random.default_rng(7)
    return pa.table({
        "id": pa.array(range(records), pa.int64()),
        "year": pa.array(chance.integers(1950, 2025, records), pa.int64()),
        "place": pa.array(chance.integers(0, 1000, records), pa.int64()),
        "text": [chr(97 + n % 26) * 96 for n in range(records)],
    })


class Node:
    """A server with a part of the table."""

    def __init__(self, arguments, name, table):
        self.data = arguments.scratch / name
        self.port = free_port()
        self.address = f"grpc://127.0.0.1:{self.port}"
        self.binary = arguments.server
        self.start()
        self.run("keyspace", "create", "t")
        self.run("keyspace", "format", "t", FIELDS)
        put(self.address, table)

    def start(self):
        self.process = subprocess.Popen(
            [self.binary, "serve", "--data", self.data, "--capacity", "2GiB", "--memory", "512MiB", "--memcached", "none", "--sync", "no",
             "--flight", f"127.0.0.1:{self.port}"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                if self.process.poll() is not None:
                    sys.exit("a server ended at once")
                time.sleep(0.02)

    def run(self, *words):
        subprocess.run([self.binary, *words, "--data", self.data, "--quiet"], check=True, stdout=subprocess.DEVNULL)

    def cpu_seconds(self):
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self):
        self.process.terminate()
        self.process.wait()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def put(address, table):
    import pyarrow.flight as flight

    with flight.connect(address) as client:
        descriptor = flight.FlightDescriptor.for_command(json.dumps({"put": {"keyspace": "t"}}))
        writer, reader = client.do_put(descriptor, table.schema)
        with writer:
            writer.write_table(table, max_chunksize=8192)
            writer.done_writing()
            reader.read()


def beside_files(arguments, table):
    import duckdb
    import sqlite3

    duck, lite = arguments.scratch / "t.duckdb", arguments.scratch / "t.sqlite"
    with duckdb.connect(str(duck)) as connection:
        connection.register("made", table)
        connection.execute("CREATE TABLE t AS SELECT * FROM made")
    with sqlite3.connect(lite) as connection:
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, year INTEGER, place INTEGER, text TEXT)")
        connection.executemany("INSERT INTO t VALUES (?, ?, ?, ?)", zip(*(table[name].to_pylist() for name in table.column_names)))
        connection.commit()
    node = Node(arguments, "one", table)
    for name, sql in QUESTIONS.items():
        took = {engine: [] for engine in ("tapetum", "duckdb", "sqlite")}
        for _ in range(ROUNDS):
            for engine, place in (("tapetum", node.address), ("duckdb", duck), ("sqlite", lite)):
                if engine == "tapetum":
                    # Its buffers hold the end of the table: a fresh server has none.
                    node.stop()
                    node.start()
                forget(duck, lite)
                done = subprocess.run(
                    [sys.executable, __file__, "--server", arguments.server, "--scratch", arguments.scratch, "--records", "0",
                     "--ask", engine, str(place), sql], check=True, capture_output=True, text=True)
                took[engine].append(float(done.stdout))
        for engine, seconds in took.items():
            print(f"{name}, cold, ms by {engine}", *(1000 * value for value in seconds), sep="\t")
    node.stop()


def forget(*files):
    """Drops what the kernel has cached of these files."""
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def ask(engine, place, sql):
    """One question. Prints the seconds, without those of imports."""
    if engine == "tapetum":
        import adbc_driver_flightsql.dbapi as adbc

        began = time.perf_counter()
        with adbc.connect(place, autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute(sql)
            cursor.fetch_arrow_table()
    elif engine == "duckdb":
        import duckdb

        began = time.perf_counter()
        with duckdb.connect(place, read_only=True) as connection:
            connection.sql(sql).to_arrow_table()
    else:
        import sqlite3

        began = time.perf_counter()
        sqlite3.connect(place).execute(sql).fetchall()
    print(time.perf_counter() - began)


def over_nodes(arguments, table):
    """A group-by over three nodes beside one with all, through Polars and Ray: seconds of processor time a million rows."""
    import tapetum
    import tapetum.polars

    third = (len(table) + 2) // 3
    one = Node(arguments, "all", table)
    parts = [Node(arguments, f"part-{number}", table.slice(number * third, third)) for number in range(3)]

    def polars_frame(nodes):
        import polars

        store = tapetum.connect([node.address for node in nodes]) if len(nodes) > 1 else tapetum.connect(nodes[0].address)
        with store:
            frame = tapetum.polars.scan(store.keyspace("t"))
            return frame.group_by("year").agg(polars.col("place").sum(), polars.len()).collect().height

    def aggregated(nodes):
        store = tapetum.connect([node.address for node in nodes]) if len(nodes) > 1 else tapetum.connect(nodes[0].address)
        with store:
            rows = store.keyspace("t").scan(select="year, count(*) as n, sum(place) as places", group_by="year")
            import pyarrow as pa

            return pa.table(rows).num_rows

    ways = {"Polars": polars_frame, "partial aggregates at the drives": aggregated}
    try:
        import ray
        import tapetum.ray
    except ImportError:
        print("ray is not installed: its rows are left out", file=sys.stderr)
    else:
        ray.init(num_cpus=2, include_dashboard=False, object_store_memory=100 << 20, log_to_driver=False)

        def through_ray(nodes):
            store = tapetum.connect([node.address for node in nodes]) if len(nodes) > 1 else tapetum.connect(nodes[0].address)
            with store:
                rows = tapetum.ray.read(store.keyspace("t"), select="year, place")
                return len(rows.groupby("year").sum("place").take_all())

        ways["Ray"] = through_ray
    for name, way in ways.items():
        ratios = []
        for round_ in range(ROUNDS + 1):
            spent = []
            for nodes in ([one], parts):
                before = cpu_seconds(nodes)
                groups = way(nodes)
                spent.append(cpu_seconds(nodes) - before)
                if groups != len(set(table["year"].to_pylist())):
                    sys.exit(f"{name}: {groups} groups")
            # The first round warms both.
            if round_ > 0:
                ratios.append(spent[1] / spent[0])
        print(f"a group-by over three nodes ÷ one with all, {name}: CPU a row", *ratios, sep="\t")
    for node in [one, *parts]:
        node.stop()


def cpu_seconds(nodes):
    """Of the nodes, this process, and those that it started and that ended."""
    own = [resource.getrusage(of) for of in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in own) + sum(node.cpu_seconds() for node in nodes)


if __name__ == "__main__":
    main()
