"""Conditions of Polars as conditions of the drive.

A condition that is made keeps every row that Polars would keep, and perhaps others: whoever uses it has Polars filter what came. So parts of an
``and`` may be left out, and everything else is made only if the drive decides it as Polars does, NULLs and NaN included. Arithmetic is left
out, because sums that do not fit wrap in Polars and are NULL at the drive; so are casts, which round.

Pure.
"""

import datetime
import json
import math

_EPOCH = datetime.datetime(1970, 1, 1)
_COMPARISONS = {"Eq": "=", "NotEq": "<>", "Lt": "<", "LtEq": "<=", "Gt": ">", "GtEq": ">="}
_BETWEEN = {"Both": (">=", "<="), "Left": (">=", "<"), "Right": (">", "<="), "None": (">", "<")}
_INTEGERS = {f"{sign}Int{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)}
_UNITS_PER_SECOND = {"Milliseconds": 1_000, "Microseconds": 1_000_000, "Nanoseconds": 1_000_000_000}
# The drive takes longer patterns for an error.
_PATTERN_BYTES_MAX = 1000
# Of a text to look for. Others may mean something in a regular expression.
_PLAIN = frozenset(" !\"%&',-/:;<=>@_`~")


class _Untranslated(Exception):
    """The drive cannot decide it, or not in the same way."""


def condition_of(predicate):
    """An expression of Polars as the text of a condition; None if nothing of it can be decided at the drive."""
    try:
        return _implied(json.loads(predicate.meta.serialize(format="json")))
    except (_Untranslated, ValueError, TypeError, KeyError, IndexError):
        # A tree of another version of Polars.
        return None


def quoted(name):
    """The name of a field as it stands in a query."""
    return '"' + name.replace('"', '""') + '"'


def _implied(tree):
    """A condition that holds wherever the expression does; None if there is none but the one that always holds."""
    match tree:
        case {"BinaryExpr": {"op": "And" | "LogicalAnd", "left": left, "right": right}}:
            parts = [part for part in (_implied(left), _implied(right)) if part is not None]
            return f"({' and '.join(parts)})" if len(parts) > 1 else parts[0] if parts else None
        case {"Literal": _}:
            return None
    try:
        return _decided(tree)
    except _Untranslated:
        return None


def _decided(tree):
    """A condition that is true, false or NULL wherever the expression is."""
    match tree:
        case {"BinaryExpr": {"op": "And" | "LogicalAnd", "left": left, "right": right}}:
            return f"({_decided(left)} and {_decided(right)})"
        case {"BinaryExpr": {"op": "Or" | "LogicalOr", "left": left, "right": right}}:
            return f"({_decided(left)} or {_decided(right)})"
        case {"BinaryExpr": {"op": op, "left": left, "right": right}} if op in _COMPARISONS:
            return f"{_value(left)} {_COMPARISONS[op]} {_value(right)}"
        case {"Function": {"input": [of, *rest], "function": {"Boolean": function}}}:
            return _boolean(function, of, rest)
        case {"Function": {"input": [{"Column": name}, {"Literal": {"Scalar": {"String": text}}}], "function": {"StringExpr": function}}}:
            return f"{quoted(name)} like {_pattern(function, text)}"
        case {"Column": name}:
            return quoted(name)
    raise _Untranslated


def _boolean(function, of, rest):
    match function, rest:
        case "Not", []:
            return f"not ({_decided(of)})"
        case "IsNull", [] if "Column" in of:
            return f"{_value(of)} is null"
        case "IsNotNull", [] if "Column" in of:
            return f"{_value(of)} is not null"
        case {"IsBetween": {"closed": closed}}, [low, high]:
            above, below = _BETWEEN[closed]
            return f"({_value(of)} {above} {_value(low)} and {_value(of)} {below} {_value(high)})"
        case {"IsIn": {"nulls_equal": False}}, [{"Literal": {"Scalar": {"List": data}}}] if "Column" in of:
            return f"{_value(of)} in ({_listed(data)})"
    raise _Untranslated


def _pattern(function, text):
    """The pattern of ``like`` for a text that begins, ends or is contained."""
    escaped = text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    match function:
        case "StartsWith":
            pattern = f"{escaped}%"
        case "EndsWith":
            pattern = f"%{escaped}"
        case {"Contains": {"literal": is_literal}} if is_literal or all(sign.isalnum() or sign in _PLAIN for sign in text):
            pattern = f"%{escaped}%"
        case _:
            raise _Untranslated
    if len(pattern.encode()) > _PATTERN_BYTES_MAX:
        raise _Untranslated
    return _text(pattern)


def _value(tree):
    match tree:
        case {"Column": name}:
            return quoted(name)
        case {"Literal": {"Scalar": scalar}}:
            return _scalar(*next(iter(scalar.items())))
    raise _Untranslated


def _scalar(kind, value):
    match kind, value:
        case "Boolean", bool():
            return "true" if value else "false"
        case _, int() if kind in _INTEGERS:
            return str(value)
        case "Float64", float() | int() if math.isfinite(value):
            return repr(float(value))
        case "String", str():
            return _text(value)
        case "Binary", list():
            return f"X'{bytes(value).hex()}'"
        case "Datetime", [int(count), unit, _zone]:
            return _time(count, _UNITS_PER_SECOND[unit])
    raise _Untranslated


def _time(count, per_second):
    micros, rest = divmod(count * 1_000_000, per_second)
    if rest:
        # The drive counts microseconds.
        raise _Untranslated
    try:
        return f"'{(_EPOCH + datetime.timedelta(microseconds=micros)).isoformat(' ')}'"
    except OverflowError:
        raise _Untranslated from None


def _text(text):
    if "\0" in text:
        raise _Untranslated
    return "'" + text.replace("'", "''") + "'"


def _listed(data):
    """The values of a list, which Polars keeps as a stream of Arrow."""
    import io

    import polars

    values = polars.read_ipc_stream(io.BytesIO(bytes(data))).to_series()
    if values.dtype.is_nested() and len(values) == 1:
        values = values.explode()
    kinds = {bool: "Boolean", int: "Int64", float: "Float64", str: "String"}
    listed = [_scalar(kinds[type(value)], value) for value in values.to_list()]
    if not listed:
        raise _Untranslated
    return ", ".join(listed)
