"""Queries over several nodes: what each node is asked, and how a client merges what the nodes answer.

1. A query without groups is asked of each node as it is. Its rows are joined, put in order again and cut to the limit.
2. Of a query with aggregates each node computes them over its own records: counts, sums, least and greatest values. The client adds these up
   for each group, and computes averages of sums and counts. Conditions on groups, their order and the limit come after that.

Pure, but for pyarrow.
"""

import functools
import math
import re
from dataclasses import dataclass

from tapetum.expressions import (
    Column,
    Time,
    Unsupported,
    aggregates_in,
    columns_of,
    computed,
    condition_of,
    knowing,
    order_of,
    rank,
    without_distinct,
)
from tapetum.expressions import _in_range as in_range

#: A column that nodes are asked for beside those that are wanted.
_ORDER = "tapetum_order"


def plan_of(words, schema, field_names):
    """The plan of a query, of which a node has said that it is right: the schema of its rows, and the names of the fields.

    Raises ``Unsupported`` for a text that this package does not take apart.
    """
    select, is_distinct = without_distinct(words.get("select") or "*")
    if is_distinct:
        groups = columns_of(words["group_by"]) if "group_by" in words else []
        return Grouped(words, schema, columns_of(select), groups, is_distinct=True)
    # A text that cannot be taken apart may be a query without groups, which needs none of that.
    columns = columns_of(select) if "group_by" in words or re.search(r"(count|sum|min|max|avg)\s*\(", select, re.IGNORECASE) else []
    if "group_by" in words or any(column.is_aggregate for column in columns):
        return Grouped(words, schema, columns, _groups(words.get("group_by"), columns, field_names))
    return Joined(words, schema)


def _groups(group_by, columns, field_names):
    """What is grouped by; names and places of selected columns stand for them."""
    groups = []
    for group in columns_of(group_by) if group_by else []:
        match group.tree:
            case ("literal", "int", place) if 1 <= place <= len(columns):
                group = columns[place - 1]
            case ("field", name) if name not in field_names:
                group = next((column for column in columns if column.alias == name), group)
        groups.append(group)
    return groups


class Joined:
    """A query without groups."""

    def __init__(self, words, schema):
        self._schema, self.limit = schema, words.get("limit")
        self.node_words, self._place, self._is_descending = words, None, False
        if "order_by" in words:
            self._plan_order(words)

    @property
    def is_ordered(self):
        return self._place is not None

    def _plan_order(self, words):
        order, self._is_descending = order_of(words["order_by"])
        names = self._schema.names
        match order.tree:
            case ("literal", "int", place) if 1 <= place <= len(names):
                self._place = place - 1
            case ("field", name) if names.count(name) == 1:
                self._place = names.index(name)
            case _:
                self._place = len(names)
                self.node_words = words | {"select": f"{words.get('select') or '*'}, {order.text} as {_ORDER}"}

    def merged(self, tables):
        """The rows in order, of tables each of which is."""
        import pyarrow

        table = pyarrow.concat_tables(tables)
        values = _values(table.column(self._place))
        order = _in_order(range(len(values)), values.__getitem__, self._is_descending)
        table = table.take(pyarrow.array(order[: self.limit], pyarrow.int64()))
        return table.select(list(range(len(self._schema)))).cast(self._schema)


class Grouped:
    """A query whose rows are groups: of aggregates, or distinct ones."""

    def __init__(self, words, schema, columns, groups, *, is_distinct=False):
        self._schema, self.limit = schema, words.get("limit")
        self._having = condition_of(words["having"]) if "having" in words else None
        self._columns = columns
        self._aliases = [(column.alias, place) for place, column in enumerate(columns) if column.alias]
        if is_distinct:
            if groups or any(column.is_aggregate for column in columns):
                raise Unsupported(words["select"])
            # Its columns are those of the schema: a star among what is selected stands for several.
            self._groups = list(range(len(schema)))
            self._trees, self._aggregates = [], []
            # Of each row by itself: nodes keep those that are wanted.
            self._having = None
            self._outputs = [("group", place) for place in self._groups]
            self.node_words, self._is_whole = words, False
        else:
            self.node_words = {name: text for name, text in words.items() if name not in ("having", "order_by", "limit")}
            self.node_words |= self._plan_groups(columns, groups)
        self._order = self._plan_order(words["order_by"]) if "order_by" in words else None

    def _plan_groups(self, columns, groups):
        """Decides what nodes are asked for."""
        wanted = [column.tree for column in columns if column.is_aggregate]
        wanted += [tree for tree in (aggregates_in(self._having) if self._having else []) if tree not in wanted]
        texts = []

        def ask(text):
            if text not in texts:
                texts.append(text)
            return texts.index(text)

        self._trees, self._groups = [], []
        for group in [column for column in columns if not column.is_aggregate] + groups:
            if group.tree not in self._trees:
                self._trees.append(group.tree)
                self._groups.append(ask(group.text))
        self._aggregates = [Aggregate.of(tree, ask) for tree in dict.fromkeys(wanted)]
        self._is_whole = not groups
        # Values that are counted once are grouped by, so that nodes tell them.
        group_texts = [group.text for group in groups] + list(dict.fromkeys(one.text for one in self._aggregates if one.is_set))
        self._outputs = []
        for column in columns:
            if column.is_aggregate:
                self._outputs.append(("aggregate", next(at for at, one in enumerate(self._aggregates) if one.tree == column.tree)))
            else:
                self._outputs.append(("group", self._trees.index(column.tree)))
        words = {"select": ", ".join(f"{text} as c{place}" for place, text in enumerate(texts))}
        return words | {"group_by": ", ".join(group_texts)} if group_texts else words

    def _plan_order(self, order_by):
        order, is_descending = order_of(order_by)
        match order.tree:
            case ("literal", "int", place):
                return place - 1, is_descending
            case ("field", name) if name in self._schema.names:
                return self._schema.names.index(name), is_descending
        place = next((place for place, column in enumerate(self._columns) if column.tree == order.tree), None)
        if place is None:
            raise Unsupported(order_by)
        return place, is_descending

    def merged(self, tables):
        """The rows of all nodes, merged, in order and cut to the limit."""
        import pyarrow

        found = {}
        for table in tables:
            columns = [_values(column) for column in table.columns]
            for row in zip(*columns, strict=True):
                key = tuple(rank(row[place]) for place in self._groups)
                values, states = found.setdefault(key, ([row[place] for place in self._groups], [None] * len(self._aggregates)))
                for at, aggregate in enumerate(self._aggregates):
                    states[at] = aggregate.added(states[at], row)
        if self._is_whole and not found:
            # Aggregates of nothing are a row.
            found[()] = ([], [None] * len(self._aggregates))
        rows = [self._row(values, states) for values, states in found.values() if self._is_kept(values, states)]
        if self._order is not None:
            place, is_descending = self._order
            rows = _in_order(rows, lambda row: row[place], is_descending)
        rows = rows[: self.limit]
        columns = list(zip(*rows, strict=True)) if rows else [[]] * len(self._schema)
        arrays = [_array(column, field.type) for column, field in zip(columns, self._schema, strict=True)]
        return pyarrow.table(arrays, schema=self._schema)

    def _row(self, values, states):
        of = {"group": lambda at: values[at], "aggregate": lambda at: self._aggregates[at].value(states[at])}
        return [of[kind](at) for kind, at in self._outputs]

    def _is_kept(self, values, states):
        if self._having is None:
            return True
        known = list(zip(self._trees, values, strict=False))
        known += [(one.tree, one.value(state)) for one, state in zip(self._aggregates, states, strict=True)]
        row = self._row(values, states)
        known += [(("field", alias), row[place]) for alias, place in self._aliases]
        return computed(self._having, knowing(known)) is True


@dataclass(frozen=True)
class Aggregate:
    """An aggregate, and the places of what nodes are asked for it."""

    tree: tuple
    name: str
    places: tuple

    @property
    def text(self):
        """The argument, as it is written."""
        return str(self.tree[3])

    @property
    def is_set(self):
        """Whether nodes are asked for the values."""
        return self.name == "count distinct" and self.tree[2][0] != "literal"

    @classmethod
    def of(cls, tree, ask):
        _, name, argument, text = tree
        if name == "count distinct":
            asked = f"count({text})" if argument[0] == "literal" else str(text)
            return cls(tree, name, (ask(asked),))
        asked = {"sum": ("sum", "count"), "avg": ("sum", "count", "avg")}.get(name, (name,))
        return cls(tree, name, tuple(ask(f"{one}({text})") for one in asked))

    def added(self, state, row):
        """The state with a row of a node; None is that of no row."""
        parts = [row[place] for place in self.places]
        if self.is_set:
            values = set() if state is None else state
            values.update(rank(value) for value in parts if value is not None)
            return values
        match self.name:
            case "count" | "count distinct":
                return (state or 0) + parts[0]
            case "min" | "max":
                if state is None or parts[0] is None:
                    return state if parts[0] is None else parts[0]
                return (min if self.name == "min" else max)(state, parts[0], key=rank)
        return [*(state or []), tuple(parts)]

    def value(self, state):
        match self.name:
            case "count":
                return state or 0
            case "count distinct":
                return len(state or ()) if self.is_set else min(state or 0, 1)
            case "min" | "max":
                return state
        state = state or []
        parts = [part for part in state if part[1] > 0]
        count = sum(part[1] for part in parts)
        sums = [part[0] for part in parts]
        # NULL is the sum of nothing, and one that does not fit at a node.
        total = None if not parts or None in sums else functools.reduce(lambda left, right: left + right, sums)
        if self.name == "sum":
            return None if total is None else in_range(total)
        if not parts:
            return None
        return total / count if total is not None else math.fsum(part[2] * (part[1] / count) for part in parts)


def _in_order(rows, value_of, is_descending):
    """Rows by a value of theirs, with NULLs last."""
    rows = list(rows)
    valued = [row for row in rows if value_of(row) is not None]
    valued.sort(key=lambda row: rank(value_of(row)), reverse=is_descending)
    return valued + [row for row in rows if value_of(row) is None]


def _values(column):
    """The values of a column. Times are microseconds."""
    import pyarrow

    if pyarrow.types.is_timestamp(column.type):
        return [None if value is None else Time(value) for value in column.cast(pyarrow.int64()).to_pylist()]
    return column.to_pylist()


def _array(values, kind):
    import pyarrow

    if pyarrow.types.is_timestamp(kind):
        return pyarrow.array([None if value is None else int(value) for value in values], pyarrow.int64()).cast(kind)
    return pyarrow.array(values, kind)


__all__ = ["Column", "Grouped", "Joined", "Unsupported", "plan_of"]
