"""The jinja2 environment in which a model file's template runs: Hugging Face's settings, bounds on work and size.

A template is a program from a stranger. The sandbox keeps it from Python's internals; the `Budget` keeps it from eating
the machine. Every environment for templates is made here.
"""

from __future__ import annotations

import functools
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_NUMBER = 100_000
"""Largest number a template may hand to a function or filter; jinja2's own bound for range()."""
MAX_STEPS = 2_000_000
MAX_SECONDS = 20.0
MAX_CHARS = 1 << 22
"""Longest string or list one operation may make, beyond the length of the messages."""
MAX_TOTAL_CHARS = 1 << 26
_MAX_JSON_INDENT = 64
_NUMBERED = frozenset(("batch", "center", "format", "indent", "slice", "truncate", "wordwrap"))
_NESTED_FIELD = re.compile(r"\{[^{}]*\{|%[^a-zA-Z%]*\*")


class Budget:
    """What one rendering may still do: steps, seconds and characters. Going over raises SecurityError."""

    def __init__(self, input_chars: int) -> None:
        """`input_chars`: size of the messages, by which the bounds on characters grow."""
        self.max_chars = MAX_CHARS + 4 * input_chars
        self._chars_left = MAX_TOTAL_CHARS + 64 * input_chars
        self._steps_left = MAX_STEPS
        self._deadline = time.monotonic() + MAX_SECONDS

    def step(self) -> None:
        self._steps_left -= 1
        if self._steps_left < 0 or time.monotonic() > self._deadline:
            raise SecurityError(f"more than {MAX_STEPS} steps or {MAX_SECONDS:.0f} s")

    def claim(self, n_chars: int) -> None:
        """Account for a string or list of `n_chars` before it is made, or when it has just been made."""
        self._chars_left -= n_chars
        if n_chars > self.max_chars or self._chars_left < 0:
            raise SecurityError(f"makes texts or lists of more than {self.max_chars} characters or items")


_BUDGET: ContextVar[Budget] = ContextVar("template_budget")


class _BoundedCodeGenerator(CodeGenerator):
    """Sends `a ~ b` through the environment, as jinja2 itself does with the intercepted operators."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.join_pieces((")
        for piece in node.nodes:
            self.visit(piece, frame)
            self.write(", ")
        self.write("))")


class _GenerationTag(Extension):
    """`{% generation %}...{% endgeneration %}` marks the assistant's text for training; here it is only its body."""

    tags = {"generation"}  # noqa: RUF012  (as jinja2 declares it)

    def parse(self, parser: Parser) -> nodes.Node:
        lineno = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=lineno)


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """Compile with `from_string`, render inside `bounded`."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))
    code_generator_class = _BoundedCodeGenerator

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols])
        self.filters["tojson"] = _tojson
        for name, function in list(self.filters.items()):
            self.filters[name] = _bounded_filter(name, function)
        self.filters["_counted"] = _counted
        self.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
        self.concat = _bounded_concat  # type: ignore[method-assign]

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        """Compile, with the items of every loop counted."""
        for loop in source.find_all(nodes.For):
            loop.iter = nodes.Filter(loop.iter, "_counted", [], [], None, None, lineno=loop.lineno)
        return super()._generate(source, *args, **kwargs)

    def join_pieces(self, pieces: Iterable[Any]) -> str:
        """`a ~ b`, counted."""
        return _bounded_concat([str(piece) for piece in pieces])

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        budget = _BUDGET.get()
        budget.step()
        _check_operands(budget, operator, left, right)
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        budget = _BUDGET.get()
        budget.step()
        method = getattr(__obj, "__wrapped__", __obj)  # the sandbox wraps str.format
        owner, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
        if isinstance(owner, (str, bytes, int)) or name == "generate_lorem_ipsum":
            _check_numbers(args, kwargs)
        if isinstance(owner, str):
            budget.claim(_size_of_method(name, owner, args, kwargs))
        result = super().call(__context, __obj, *args, **kwargs)
        budget.claim(_length(result))
        return result


def bounded(render: Callable[[], str], input_chars: int) -> str:
    """Run `render` under a fresh budget."""
    token = _BUDGET.set(Budget(input_chars))
    try:
        return render()
    finally:
        _BUDGET.reset(token)


def _length(value: Any) -> int:
    return len(value) if isinstance(value, (str, bytes, list, tuple, Mapping)) else 0


def _bounded_concat(pieces: Iterable[str]) -> str:
    budget, parts, n_chars = _BUDGET.get(), [], 0
    for piece in pieces:
        n_chars += len(piece)
        budget.step()
        if n_chars > budget.max_chars:
            break
        parts.append(piece)
    budget.claim(n_chars)
    return "".join(parts)


class _CountedItems:
    """The items of a loop, one step each. Has a length where they have one, so that `loop.length` costs nothing."""

    def __init__(self, items: Iterable[Any]) -> None:
        self._items = items

    def __len__(self) -> int:
        return len(self._items)  # type: ignore[arg-type]  # TypeError for a generator, which jinja2 expects

    def __iter__(self) -> Iterator[Any]:
        budget = _BUDGET.get()
        for item in self._items:
            budget.step()
            yield item


def _counted(items: Any) -> Any:
    return _CountedItems(items) if isinstance(items, Iterable) else items


def _check_operands(budget: Budget, operator: str, left: Any, right: Any) -> None:
    if operator == "%" and isinstance(left, str):
        budget.claim(_size_of_format(left, list(right.values()) if isinstance(right, Mapping) else right))
    elif operator == "+":
        budget.claim(_length(left) + _length(right))
    elif operator == "*":
        if isinstance(left, int) and isinstance(right, int):
            budget.claim((left.bit_length() + right.bit_length()) // 8)
        for sequence, times in ((left, right), (right, left)):
            if isinstance(times, int):
                budget.claim(_length(sequence) * max(times, 0))
    elif operator == "**" and isinstance(left, int) and isinstance(right, int) and left.bit_length() * right > 4096:
        raise SecurityError("a power with a very large result")


def _check_numbers(args: Iterable[Any], kwargs: Mapping[str, Any]) -> None:
    for value in (*args, *kwargs.values()):
        if isinstance(value, int) and abs(value) > MAX_NUMBER:
            raise SecurityError(f"the number {value} is given to a function; at most {MAX_NUMBER} is allowed")


def _size_of_format(text: str, values: Any) -> int:
    """Upper bound on what `text % values` or `text.format(values)` makes; SecurityError for a computed field width."""
    if _NESTED_FIELD.search(text.replace("{{", "")):
        raise SecurityError("a format computes the width of a field")
    values = values if isinstance(values, (list, tuple)) else [values]
    n_fields = text.count("{") + text.count("%")
    widths = sum(map(int, re.findall(r"\d{1,18}", text)))
    return len(text) + widths + n_fields * max([32, *map(_length, values)])


def _size_of_join(glue: str, items: Any) -> int:
    return sum(len(glue) + _length(item) for item in items) if isinstance(items, (str, list, tuple)) else 0


def _size_of_method(name: str, text: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
    """Upper bound on the characters that `text.name(...)`, or the filter of that name on `text`, makes."""
    values = (*args, *kwargs.values())
    strings = [value for value in values if isinstance(value, str)]
    numbers = [value for value in values if isinstance(value, int)]
    if name == "translate":
        raise SecurityError("str.translate is not allowed")
    if name == "replace" and len(strings) > 1:
        return len(text) + (text.count(strings[0]) if strings[0] else len(text) + 1) * len(strings[1])
    if name == "join":
        return _size_of_join(text, values[0]) if values else 0
    if name in ("expandtabs", "indent"):
        width = max([8, *numbers, *map(len, strings)])
        return len(text) + width * (text.count("\t") + text.count("\n") + 1)
    if name in ("format", "format_map"):
        return _size_of_format(text, values)
    return len(text) + sum(numbers)


def _bounded_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` with the size of its result bounded before the call where that can be told, and counted after it."""
    takes_context = hasattr(function, "jinja_pass_arg")

    @functools.wraps(function)
    def bounded_filter(*args: Any, **kwargs: Any) -> Any:
        budget = _BUDGET.get()
        budget.step()
        value, *rest = args[1:] if takes_context else args
        if name in _NUMBERED:
            _check_numbers(rest, kwargs)
        if name == "join":
            glue = next((item for item in (*rest, *kwargs.values()) if isinstance(item, str)), "")
            budget.claim(_size_of_join(glue, value))
        elif isinstance(value, str):
            budget.claim(_size_of_method(name, value, tuple(rest), kwargs))
        result = function(*args, **kwargs)
        budget.claim(_length(result))
        return result

    return bounded_filter


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As transformers has it: jinja2's own escapes <, > and & for HTML."""
    if isinstance(indent, int) and indent > _MAX_JSON_INDENT:
        raise SecurityError(f"tojson with an indent of {indent}; at most {_MAX_JSON_INDENT} is allowed")
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)
