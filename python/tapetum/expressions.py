"""Expressions of queries, taken apart and computed as the drive computes them. A client needs that to merge the answers of several nodes.

A text comes here only after a node has found it right, so what is not understood is an ``Unsupported``, without a place.

Trees are tuples, whose first element says what they are: two expressions are the same if their trees are equal.
Pure.
"""

import datetime
import functools
import math
import operator
import re
from dataclasses import dataclass, field

AGGREGATES = frozenset({"count", "sum", "min", "max", "avg"})
INT_MIN, INT_MAX = -(2**63), 2**63 - 1

_TOKEN = re.compile(
    r"""(?P<space>\s+|--[^\n]*|/\*.*?\*/)
    |(?P<hex>[xX]'[0-9a-fA-F]*')
    |(?P<text>'(?:[^']|'')*')
    |(?P<quoted>"(?:[^"]|"")*")
    |(?P<number>\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?)
    |(?P<word>[^\W\d]\w*)
    |(?P<sign><>|!=|<=|>=|[-+*/%=<>(),])""",
    re.VERBOSE | re.DOTALL,
)
# How strongly operators bind, as in the server's parser.
_OR, _AND, _NOT, _IS, _LIKE, _COMPARE, _PLUS, _TIMES, _NEGATE = 5, 10, 15, 17, 19, 20, 30, 40, 50
_BINARY = {"or": _OR, "and": _AND} | dict.fromkeys(("=", "<>", "!=", "<", "<=", ">", ">="), _COMPARE) | {"+": _PLUS, "-": _PLUS}
_BINARY |= dict.fromkeys(("*", "/", "%"), _TIMES)
_EPOCH = datetime.datetime(1970, 1, 1)
_UNKNOWN = object()


class Unsupported(Exception):
    """An expression that this module does not take apart."""


class Time(int):
    """Microseconds since 1970, as values of columns of times."""


@dataclass(frozen=True)
class Token:
    kind: str
    text: str
    start: int
    end: int

    def is_word(self, *words):
        return self.kind == "word" and self.text.lower() in words

    def is_sign(self, *signs):
        return self.kind == "sign" and self.text in signs


@dataclass(frozen=True)
class Column:
    """An element of a list of expressions."""

    text: str
    tree: tuple
    alias: str | None = None

    @property
    def is_aggregate(self):
        return self.tree[0] == "aggregate"


@dataclass
class Parser:
    text: str
    tokens: list = field(init=False)
    place: int = 0

    def __post_init__(self):
        self.tokens, at = [], 0
        while at < len(self.text):
            found = _TOKEN.match(self.text, at)
            if found is None:
                raise Unsupported(f"{self.text[at:at + 10]!r} in {self.text!r}")
            at = found.end()
            if found.lastgroup != "space":
                self.tokens.append(Token(found.lastgroup, found[0], found.start(), found.end()))
        self.tokens.append(Token("end", "", at, at))

    @property
    def next(self):
        return self.tokens[self.place]

    def take(self):
        self.place += 1
        return self.tokens[self.place - 1]

    def took_word(self, *words):
        return self.next.is_word(*words) and bool(self.take())

    def took_sign(self, *signs):
        return self.next.is_sign(*signs) and bool(self.take())

    def want(self, is_there):
        if not is_there:
            raise Unsupported(f"{self.next.text!r} in {self.text!r}")

    def end(self):
        self.want(self.next.kind == "end")

    def spanned(self, parse):
        """What ``parse`` gives, and the text that it took."""
        start = self.next.start
        found = parse()
        return found, self.text[start : self.tokens[self.place - 1].end]

    def expression(self, binds=0):
        left = self._prefix()
        while True:
            token = self.next
            word = token.text.lower() if token.kind in ("sign", "word") else ""
            strength = _BINARY.get(word)
            if strength is not None:
                if strength <= binds:
                    return left
                self.take()
                left = ("binary", "<>" if word == "!=" else word, left, self.expression(strength))
            elif word == "is" and binds < _IS:
                self.take()
                is_not = self.took_word("not")
                self.want(self.next.is_word("null", "true", "false"))
                left = ("is", is_not, self.take().text.lower(), left)
            elif word in ("not", "like", "in", "between") and binds < (_LIKE if self._is_like() else _COMPARE):
                left = self._tested(left)
            else:
                return left

    def _is_like(self):
        return self.next.is_word("like") or (self.next.is_word("not") and self.tokens[self.place + 1].is_word("like"))

    def _tested(self, left):
        is_not = self.took_word("not")
        if self.took_word("between"):
            low = self.expression(_COMPARE)
            self.want(self.took_word("and"))
            return ("between", is_not, left, low, self.expression(_COMPARE))
        if self.took_word("in"):
            self.want(self.took_sign("("))
            listed = [self.expression()]
            while self.took_sign(","):
                listed.append(self.expression())
            self.want(self.took_sign(")"))
            return ("in", is_not, left, tuple(listed))
        self.want(self.took_word("like"))
        pattern, escape = self.expression(_LIKE), ("literal", "text", "\\")
        if self.took_word("escape"):
            escape = self.expression(_LIKE)
        return ("like", is_not, left, pattern, escape)

    def _prefix(self):
        token = self.take()
        match token.kind:
            case "number":
                is_whole = token.text.isdigit()
                return ("literal", "int", int(token.text)) if is_whole else ("literal", "float", float(token.text))
            case "text":
                return ("literal", "text", _unquoted(token.text))
            case "hex":
                return ("literal", "bytes", bytes.fromhex(token.text[2:-1]))
            case "quoted":
                return ("field", _unquoted(token.text))
            case "word":
                return self._word(token)
        if token.is_sign("("):
            inner = self.expression()
            self.want(self.took_sign(")"))
            return inner
        if token.is_sign("-", "+"):
            return ("unary", token.text, self.expression(_NEGATE))
        self.place -= 1
        raise Unsupported(f"{token.text!r} in {self.text!r}")

    def _word(self, token):
        word = token.text.lower()
        if word == "not":
            return ("not", self.expression(_NOT))
        if word in ("true", "false"):
            return ("literal", "bool", word == "true")
        if word == "null":
            return ("literal", "null", None)
        if word == "float" and self.next.kind == "text":
            return ("literal", "float", float(_unquoted(self.take().text)))
        if word in AGGREGATES and self.next.is_sign("("):
            return self._aggregate(word)
        return ("field", token.text)

    def _aggregate(self, name):
        self.take()
        if self.took_sign("*"):
            argument, text = None, "*"
        else:
            if not self.took_word("all") and self.took_word("distinct") and name == "count":
                name = "count distinct"
            argument, text = self.spanned(self.expression)
        self.want(self.took_sign(")"))
        return ("aggregate", name, argument, _ArgumentText(text))


class _ArgumentText(str):
    """How an argument is written. It says nothing of what it is, so it does not tell trees apart."""

    def __eq__(self, other):
        return isinstance(other, _ArgumentText)

    def __hash__(self):
        return 0


def _unquoted(text):
    quote = text[0]
    return text[1:-1].replace(quote * 2, quote)


def columns_of(text):
    """The elements of a list, such as what is selected. Of ``*`` there is one whose tree is ``("all",)``."""
    parser, columns = Parser(text), []
    while True:
        if parser.took_sign("*"):
            columns.append(Column("*", ("all",)))
        else:
            tree, of_text = parser.spanned(parser.expression)
            columns.append(Column(of_text, tree, _alias(parser)))
        if not parser.took_sign(","):
            break
    parser.end()
    return columns


def _alias(parser):
    is_named = parser.took_word("as")
    if parser.next.kind == "quoted":
        return _unquoted(parser.take().text)
    if parser.next.kind == "word":
        return parser.take().text
    parser.want(not is_named)
    return None


def without_distinct(select):
    """What is selected, without the word ``distinct`` in front; and whether it was there."""
    parser = Parser(select)
    # A field may have that name.
    is_distinct = parser.took_word("distinct") and parser.next.kind != "end" and not parser.next.is_sign(*",/%=<>", "<>", "<=", ">=", "!=")
    return (select[parser.next.start :], True) if is_distinct else (select, False)


def order_of(text):
    """What rows are ordered by, and whether descending."""
    parser = Parser(text)
    tree, of_text = parser.spanned(parser.expression)
    is_descending = not parser.took_word("asc") and parser.took_word("desc")
    if parser.took_word("nulls"):
        parser.want(parser.took_word("last"))
    parser.end()
    return Column(of_text, tree), is_descending


def condition_of(text):
    parser = Parser(text)
    tree = parser.expression()
    parser.end()
    return tree


def aggregates_in(tree):
    """The aggregates of an expression, each once."""
    if not isinstance(tree, tuple):
        return []
    if tree and tree[0] == "aggregate":
        return [tree]
    found = []
    for part in tree:
        found += [one for one in aggregates_in(part) if one not in found]
    return found


def rank(value):
    """A key by which values have the order of the drive: NaN equals itself and is greater than all other numbers."""
    if isinstance(value, float):
        return (1, 0.0) if math.isnan(value) else (0, value)
    return (0, value)


def computed(tree, known):
    """The value of an expression. ``known`` has those of some trees, and is asked first."""
    value = known(tree)
    if value is not _UNKNOWN:
        return value
    match tree:
        case ("literal", _, literal):
            return literal
        case ("unary", sign, of):
            value = computed(of, known)
            return value if sign == "+" or value is None else _in_range(-value)
        case ("not", of):
            return _not(computed(of, known))
        case ("is", is_not, what, of):
            return _is(what, computed(of, known)) != is_not
        case ("binary", "and" | "or" as sign, left, right):
            return _junction(sign, computed(left, known), computed(right, known))
        case ("binary", sign, left, right) if sign in _COMPARISONS:
            return _compared(sign, computed(left, known), computed(right, known))
        case ("binary", sign, left, right):
            return _arithmetic(sign, computed(left, known), computed(right, known))
        case ("between", is_not, of, low, high):
            value = computed(of, known)
            above, below = _compared(">=", value, computed(low, known)), _compared("<=", value, computed(high, known))
            return _perhaps_not(is_not, _junction("and", above, below))
        case ("in", is_not, of, listed):
            value = computed(of, known)
            parts = [_compared("=", value, computed(one, known)) for one in listed]
            return _perhaps_not(is_not, functools.reduce(functools.partial(_junction, "or"), parts))
        case ("like", is_not, of, pattern, escape):
            return _perhaps_not(is_not, _like(computed(of, known), computed(pattern, known), computed(escape, known)))
    raise Unsupported(f"{tree[-1]}")


def knowing(values):
    """What ``computed`` takes for known: the values of some trees, as pairs."""

    def known(tree):
        return next((value for of, value in values if of == tree), _UNKNOWN)

    return known


_COMPARISONS = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def _compared(sign, left, right):
    if left is None or right is None:
        return None
    if isinstance(left, Time) and isinstance(right, str):
        right = time_of(right)
    elif isinstance(right, Time) and isinstance(left, str):
        left = time_of(left)
    return _COMPARISONS[sign](rank(left), rank(right))


def time_of(text):
    """A time as it is written in a query, in UTC."""
    try:
        return Time((datetime.datetime.fromisoformat(text) - _EPOCH) // datetime.timedelta(microseconds=1))
    except ValueError:
        raise Unsupported(f"{text!r}, which is no time") from None


def _not(value):
    return None if value is None else not value


def _perhaps_not(is_not, value):
    return _not(value) if is_not else value


def _is(what, value):
    return value is None if what == "null" else value is (what == "true")


def _junction(sign, left, right):
    decides = sign == "or"
    if left is decides or right is decides:
        return decides
    return None if left is None or right is None else not decides


def _in_range(value):
    if isinstance(value, float):
        return value
    return value if INT_MIN <= value <= INT_MAX else None


def _arithmetic(sign, left, right):
    if left is None or right is None or (sign in "/%" and right == 0):
        return None
    is_float = isinstance(left, float) or isinstance(right, float)
    match sign:
        case "+":
            found = left + right
        case "-":
            found = left - right
        case "*":
            found = left * right
        case "/" if is_float:
            found = left / right
        case "%" if is_float:
            found = math.fmod(left, right)
        case "/":
            # Towards zero.
            found = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
        case "%":
            # With the sign of the left one.
            found = abs(left) % abs(right) * (-1 if left < 0 else 1)
        case _:
            raise Unsupported(sign)
    return _in_range(found)


def _like(value, pattern, escape):
    if value is None or pattern is None or escape is None:
        return None
    is_bytes = isinstance(value, bytes)
    # One character is a byte, in patterns for bytes.
    value, pattern, escape = (one.decode("latin-1") if isinstance(one, bytes) else one for one in (value, pattern, escape))
    if is_bytes:
        pattern = pattern if all(ord(sign) < 256 for sign in pattern) else pattern.encode().decode("latin-1")
    parts, at = [], 0
    while at < len(pattern):
        sign = pattern[at]
        if sign == escape and at + 1 < len(pattern):
            at += 1
            parts.append(re.escape(pattern[at]))
        else:
            parts.append({"%": ".*", "_": "."}.get(sign) or re.escape(sign))
        at += 1
    return re.fullmatch("".join(parts), value, re.DOTALL) is not None
