"""The bytes of a pickle -> the plain values it describes, by a small stack machine of our own.

A pickle is a program. This machine knows the steps that build plain values and no others, and every name that a
pickle may ask for stands in a table of inert stand-ins: nothing is imported, called or set because a file says so.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any, Final, NamedTuple

from vitrail.weights.reading.pickle_opcodes import LONGEST_TEXT, RefusedPickle, read_steps, refused_step

MOST_STEPS: Final = 500_000  # a training run's file of 4,000 tensors takes about 150,000
DEEPEST_STACK: Final = 50_000
MOST_REMEMBERED: Final = 250_000  # values in its memory
LARGEST_KEY: Final = 2**60  # numbers beyond could be made to collide in a dict
LONGEST_KEY: Final = 1000
SPARE: Final = 8 * 2**20  # bytes that all texts together may take beyond the size of the pickle
PROTOCOL: Final = 5  # the newest

MODULES: Final = ("torch.nn.", "torch.optim.", "torch.fx.", "torch.jit.")  # whole objects, where found in a file


class RefusedName(RefusedPickle):
    """A pickle that asks for a name outside of the table."""


class Symbol(NamedTuple):
    """A name that a pickle may ask for, and what making one of it gives; without `make` it only stands there."""

    name: str
    make: Callable[..., Any] | None = None


class Inert:
    """Something that a pickle may hold and that nobody here needs."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def fill(self, state: Any) -> None:
        """Its state is not needed either."""

    def __repr__(self) -> str:
        return f"<{self.name}>"


class Bag(dict[Any, Any]):
    """A dict in the place of an object: its attributes by name."""

    def fill(self, state: Any) -> None:
        """Take the attributes."""
        if type(state) is not dict:
            raise RefusedPickle("has an object whose attributes are no dict: refused")
        self.update(state)


class PickleResult(NamedTuple):
    """What a pickle gave, and where in the bytes it ended."""

    value: Any
    end: int


def run(
    data: bytes,
    symbols: Mapping[str, Any],
    persistent: Callable[[Any], Any] | None = None,
    start: int = 0,
    longest: int = LONGEST_TEXT,
) -> PickleResult:
    """Run one pickle; RefusedPickle says why not, any other ValueError that it is broken.

    `longest` is how many bytes one text may have.
    """
    try:
        return _Machine(data, symbols, persistent).run(start, longest)
    except RefusedPickle:
        raise
    except (TypeError, LookupError, OverflowError, UnicodeError, RecursionError, MemoryError) as error:
        raise ValueError(f"its steps make no sense ({type(error).__name__})") from None


def printable(text: str) -> str:
    """A name out of a file, fit for a message: one line, never long."""
    text = text if text.isprintable() else repr(text)
    return text if len(text) <= 120 else f"{text[:117]}..."


class _Machine:
    """Stack, marks and memo of one pickle."""

    def __init__(self, data: bytes, symbols: Mapping[str, Any], persistent: Callable[[Any], Any] | None) -> None:
        self.data, self.symbols, self.persistent = data, symbols, persistent
        self.at = 0  # where the next step begins
        self.stack: list[Any] = []
        self.marks: list[int] = []  # how high the stack was
        self.memo: dict[int, Any] = {}
        self.copied = 0  # items that went into something made from a list or dict
        self.room = len(data) + SPARE  # bytes left for long texts

    def run(self, start: int, longest: int) -> PickleResult:
        for name, argument, end in islice(read_steps(self.data, start, longest), MOST_STEPS):
            self.at = end
            if name == "STOP":
                if len(self.stack) != 1 or self.marks:
                    raise ValueError("it ends in the middle")
                return PickleResult(self.stack[0], self.at)
            self.take(name, argument)
            if len(self.stack) > DEEPEST_STACK:
                raise RefusedPickle(f"piles up more than {DEEPEST_STACK:,} values: refused")
        raise RefusedPickle(f"has a pickle of more than {MOST_STEPS:,} steps: refused")

    def take(self, name: str, argument: Any) -> None:
        """One step; those that are not here are refused."""
        stack = self.stack
        match name:
            # plain values; sets are lists
            case "BINUNICODE" | "SHORT_BINUNICODE" | "BINUNICODE8" | "UNICODE" | "BINSTRING" | "SHORT_BINSTRING":
                self.push_text(argument)
            case "STRING" | "BINBYTES" | "SHORT_BINBYTES" | "BINBYTES8":
                self.push_text(argument)
            case "BYTEARRAY8":
                self.push_text(bytes(argument))
            case "BININT" | "BININT1" | "BININT2" | "LONG1" | "LONG4" | "INT" | "LONG" | "BINFLOAT" | "FLOAT":
                stack.append(argument)
            case "NONE":
                stack.append(None)
            case "NEWTRUE" | "NEWFALSE":
                stack.append(name == "NEWTRUE")
            # containers
            case "MARK":
                self.marks.append(len(stack))
            case "EMPTY_TUPLE":
                stack.append(())
            case "EMPTY_LIST" | "EMPTY_SET":
                stack.append([])
            case "EMPTY_DICT":
                stack.append({})
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                count = int(name[-1])
                if len(stack) < count:
                    raise ValueError("its steps make no sense (a tuple of nothing)")
                stack[-count:] = [tuple(stack[-count:])]
            case "TUPLE":
                stack.append(tuple(self.items()))
            case "LIST" | "FROZENSET":
                stack.append(self.items())
            case "DICT":
                stack.append(_pairs(self.items()))
            case "APPEND":
                self.append([stack.pop()])
            case "APPENDS" | "ADDITEMS":
                self.append(self.items())
            case "SETITEM":
                value, key = stack.pop(), stack.pop()
                self.set([key, value])
            case "SETITEMS":
                self.set(self.items())
            case "POP":
                if self.marks and self.marks[-1] == len(stack):
                    self.marks.pop()
                else:
                    stack.pop()
            case "POP_MARK":
                self.items()
            # memory
            case "BINPUT" | "LONG_BINPUT" | "PUT":
                self.put(argument)
            case "MEMOIZE":
                self.put(len(self.memo))
            case "BINGET" | "LONG_BINGET" | "GET":
                stack.append(self.memo[argument])
            # names
            case "GLOBAL":
                self.ask(*argument)
            case "STACK_GLOBAL":
                asked, module = stack.pop(), stack.pop()
                if type(module) is not str or type(asked) is not str:
                    raise RefusedPickle("asks for a name that is no text: refused")
                self.ask(module, asked)
            case "REDUCE" | "NEWOBJ":
                self.make()
            case "BUILD":
                self.build()
            case "BINPERSID":
                if self.persistent is None:
                    raise RefusedPickle("asks for a value outside of its pickle: refused")
                stack.append(self.persistent(stack.pop()))
            # about the pickle itself
            case "PROTO":
                if argument > PROTOCOL:
                    raise RefusedPickle(f"is a pickle of a newer protocol than {PROTOCOL}: save it with an older one")
            case "FRAME":
                pass  # how far the next steps go: of use to those who read from a stream
            case _:
                if name == "INST":
                    self.ask(*argument)  # a name that is refused is told first
                raise refused_step(name)

    def items(self) -> list[Any]:
        """What was piled up since the last mark."""
        at = self.marks.pop()
        found = self.stack[at:]
        del self.stack[at:]
        return found

    def weigh(self, value: str | bytes) -> None:
        """Count a long text, which may take four times the memory that it takes in the file."""
        if len(value) > 64:
            self.room -= sys.getsizeof(value)
            if self.room < 0:
                raise RefusedPickle("has texts that take far more memory than it has bytes: refused")

    def push_text(self, value: str | bytes) -> None:
        self.weigh(value)
        self.stack.append(value)

    def append(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not list:
            raise ValueError("it appends to what is no list")
        target += items

    def set(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, dict):
            raise ValueError("it sets entries of what is no dict")
        target.update(_pairs(items))

    def put(self, index: int) -> None:
        if not 0 <= index < MOST_REMEMBERED:
            raise RefusedPickle(f"remembers a value under the number {index:,}: refused")
        self.memo[index] = self.stack[-1]

    def ask(self, module: str, name: str) -> None:
        """Push the stand-in of a name, or refuse it."""
        full = f"{module}.{name}"
        if full not in self.symbols:
            raise RefusedName(_refusal(full, self.makes_an_object()))
        self.stack.append(self.symbols[full])

    def makes_an_object(self) -> bool:
        """Whether the steps that follow make an instance of the name just asked for."""
        at = self.at
        at += {b"q": 2, b"r": 5, b"\x94": 1}.get(self.data[at : at + 1], 0)  # it is remembered first
        return self.data[at : at + 2] == b")\x81"  # EMPTY_TUPLE, NEWOBJ

    def make(self) -> None:
        """REDUCE, NEWOBJ: something made from a name and arguments, by our own stand-in for it."""
        arguments, symbol = self.stack.pop(), self.stack.pop()
        if type(symbol) is not Symbol or symbol.make is None or type(arguments) is not tuple:
            what = symbol.name if type(symbol) is Symbol else f"a {type(symbol).__name__}"
            raise RefusedPickle(f"calls {printable(what)}, which is refused")
        for each in arguments:
            if type(each) in (str, bytes):
                self.weigh(each)
            elif isinstance(each, list | dict):
                self.copied += len(each)
        self.copied += len(arguments) // 16
        if self.copied > MOST_STEPS // 2:
            raise RefusedPickle("makes the same things over and over: refused")
        self.stack.append(symbol.make(*arguments))

    def build(self) -> None:
        """BUILD: attributes. Those of a dict (torch notes versions there) are not needed."""
        state, target = self.stack.pop(), self.stack[-1]
        if isinstance(target, Inert | Bag):
            self.copied += len(state) if isinstance(state, dict) else 0
            target.fill(state)
        elif type(target) is not dict:
            raise RefusedPickle(f"sets attributes of a {type(target).__name__}: refused")


def _pairs(items: list[Any]) -> dict[Any, Any]:
    """Keys and values in turn -> dict."""
    if len(items) % 2:
        raise ValueError("it has a key without a value")
    return dict(zip(map(plain_key, items[::2]), items[1::2], strict=True))


def plain_key(value: Any) -> Any:
    """A key that cannot be made to collide with others; a short tuple becomes its text."""
    kind = type(value)
    if kind is str:
        return value
    if (kind is int and -LARGEST_KEY < value < LARGEST_KEY) or kind in (bool, float, bytes, type(None)):
        return value
    if kind is tuple and len(value) <= 8:
        long = [each for each in value if type(each) in (str, bytes) and len(each) > LONGEST_KEY]
        if not long and not any(type(each) is tuple for each in value):
            return repr(tuple(plain_key(each) for each in value))
    raise RefusedPickle(f"has a dict with a key of kind {kind.__name__}: refused")


def _refusal(name: str, makes_an_object: bool) -> str:
    """Why a name is refused, and what to do."""
    shown = printable(name)
    if makes_an_object or name.startswith(MODULES):
        return (
            f"holds a whole pickled object ({shown}), not only weights: to open it, its code would have to run. "
            "Where it was made, save model.state_dict(), best as safetensors"
        )
    return f"asks for {shown}, which is refused: only plain weights are read. Save the state_dict, best as safetensors"
