"""Keyspaces for Ray Data: a task for each range of keys, which runs beside the node that has them if it can.

>>> import tapetum.ray
>>> papers = tapetum.connect(["grpc://10.0.0.1:8815", "grpc://10.0.0.2:8815"]).keyspace("papers")
>>> dataset = tapetum.ray.read(papers, where="year >= 2000", select="title, year")
"""

import functools
import ipaddress
import itertools
import urllib.parse

import ray
import ray.data
from ray.data import Datasource, ReadTask
from ray.data.block import BlockMetadata
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tapetum.door import as_bytes

# Bytes of a key, behind what all keys begin with, by which a range is cut.
_CUT_BYTES = 8
# Keys at either end that are looked at, to learn which bytes keys have.
_SEEN_KEYS = 100


def read(
    keyspace,
    *,
    where=None,
    select="*",
    fields=None,
    start=None,
    end=None,
    on_error="raise",
    parallelism=-1,
    bounds=None,
    near=None,
    **options,
):
    """Rows of a served keyspace, or one over several nodes, as a ``ray.data.Dataset``.

    Conditions and columns are decided at the drives, and each task connects to its node by itself. Of an ordered keyspace a node has about
    ``parallelism`` tasks, each for a range of keys: between ``bounds``, if these are given, else between keys that divide the distance of the
    first and the last one about evenly. Of a hashed one a node has one task. Tasks read moments of their own, unless the keyspace is of a
    freeze.

    A task prefers the machine of its node, and runs elsewhere if Ray has lost that. ``near`` says by the names of nodes which machines they
    are, as Ray names or addresses them; else it is the host of the node's address. Servers that are reached on their own machine alone need
    it. ``options`` are those of ``ray.data.read_datasource``.
    """
    asked = {"where": where, "select": select, "fields": fields, "on_error": on_error}
    datasets = []
    for name, part in _parts(keyspace).items():
        source = KeyspaceDatasource(part, asked, start=start, end=end, bounds=bounds)
        placed = dict(options)
        machine = _machine((near or {}).get(name) or _host(part.address))
        if machine is not None:
            affinity = NodeAffinitySchedulingStrategy(machine, soft=True)
            placed["ray_remote_args"] = {"scheduling_strategy": affinity} | placed.get("ray_remote_args", {})
        blocks = None if parallelism < 1 else len(source.ranges(parallelism))
        datasets.append(ray.data.read_datasource(source, override_num_blocks=blocks, **placed))
    return datasets[0].union(*datasets[1:]) if len(datasets) > 1 else datasets[0]


class KeyspaceDatasource(Datasource):
    """Rows of a keyspace of one node. ``asked`` are the words of its scan that are decided record by record."""

    def __init__(self, keyspace, asked, *, start=None, end=None, bounds=None):
        super().__init__()
        self._keyspace = keyspace
        self._asked = {word: text for word, text in asked.items() if text is not None}
        self._start, self._end = (None if key is None else as_bytes(key) for key in (start, end))
        self._bounds = None if bounds is None else sorted(as_bytes(bound) for bound in bounds)
        # An error in a text is one here, not in a task.
        self._schema = self._rows(self._start, self._end)._schema

    def estimate_inmemory_data_size(self):
        """Bytes of all that is read; None where nobody knows. Ray asks it."""
        return None

    def get_read_tasks(self, parallelism, per_task_row_limit=None, data_context=None):
        """The parts that are read beside each other. Ray asks for them."""
        metadata = BlockMetadata(num_rows=None, size_bytes=None, input_files=None, exec_stats=None)
        return [
            ReadTask(
                functools.partial(_tables, self._keyspace, self._asked | _given(start, end)),
                metadata,
                schema=self._schema,
                per_task_row_limit=per_task_row_limit,
            )
            for start, end in self.ranges(parallelism)
        ]

    def ranges(self, parallelism):
        """Ranges of keys, which together are all that is read."""
        if not self._keyspace.ordered:
            return [(self._start, self._end)]
        cuts = self._cuts(parallelism) if self._bounds is None else self._bounds
        cuts = [cut for cut in cuts if (self._start is None or cut > self._start) and (self._end is None or cut < self._end)]
        return list(itertools.pairwise([self._start, *dict.fromkeys(cuts), self._end]))

    def _cuts(self, parts):
        """Keys between the first and the last one, at about even distances. Few keys are looked at, so that ranges of keys that lie unevenly
        have different sizes; together they are all keys in any case."""
        if parts < 2:
            return []
        bounds = _given(self._start, self._end)
        seen = [key for reverse in (False, True) for key, _ in self._keyspace.scan(limit=_SEEN_KEYS, reverse=reverse, **bounds)]
        if not seen:
            return []
        first, last = min(seen), max(seen)
        common = next((at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
        # A digit for each place, of the bytes that keys have there.
        columns = [{key[at] for key in seen if at < len(key)} for at in range(common, common + _CUT_BYTES)]
        digits = [(min(column), max(column)) for column in columns if column]
        low, high = _number(first[common:], digits), _number(last[common:], digits)
        return [first[:common] + _key(low + (high - low) * part // parts, digits) for part in range(1, parts)]

    def _rows(self, start, end):
        return self._keyspace.scan(**self._asked, **_given(start, end))


def _number(key, digits):
    number = 0
    for at, (least, most) in enumerate(digits):
        digit = key[at] if at < len(key) else least
        number = number * (most - least + 1) + min(max(digit - least, 0), most - least)
    return number


def _key(number, digits):
    key = []
    for least, most in reversed(digits):
        number, digit = divmod(number, most - least + 1)
        key.append(least + digit)
    return bytes(reversed(key))


def _given(start, end):
    return {name: key for name, key in (("start", start), ("end", end)) if key is not None}


def _tables(keyspace, asked):
    """What a task reads: it has a keyspace of its own, which came by pickle."""
    import pyarrow

    for batch in keyspace.scan(**asked).batches():
        yield pyarrow.Table.from_batches([batch])


def _parts(keyspace):
    """The keyspace at each node, by the names of the nodes."""
    nodes = getattr(keyspace, "nodes", None)
    return {keyspace.address: keyspace} if nodes is None else nodes


def _host(address):
    """The host of an address, if it is another name than this machine's for itself."""
    host = urllib.parse.urlsplit(address).hostname
    try:
        return None if host in (None, "localhost") or ipaddress.ip_address(host).is_loopback else host
    except ValueError:
        return host


def _machine(name):
    """The id by which Ray knows a machine; None if it has none of that name."""
    if name is None:
        return None
    ray.is_initialized() or ray.init()
    alive = [node for node in ray.nodes() if node["Alive"]]
    return next((node["NodeID"] for node in alive if name in (node["NodeID"], node["NodeManagerAddress"], node["NodeManagerHostname"])), None)
