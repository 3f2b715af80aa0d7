"""Codecs with exceptions by parameter name, such as "int4;*.embed=lossless;*.norm=plain"."""

from __future__ import annotations

import dataclasses
import fnmatch
import itertools
import typing
from collections.abc import Callable, Mapping

from . import capi

BY_NAME, EXACT_BY_NAME = "plain by their names", "without loss by their names"
# Parts of parameter names that come from torch's wrapper modules (compile, activation checkpointing).
_WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.")


def cleaned(name: str) -> str:
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def _matches(pattern: str, name: str) -> bool:
    """Returns whether a pattern matches a parameter or a module around it. "*.x" matches "x", too."""
    modules = itertools.accumulate(name.split("."), lambda outer, inner: outer + "." + inner)
    return any(fnmatch.fnmatchcase(one, pattern) or fnmatch.fnmatchcase("." + one, pattern)
               for one in modules)


class Rule(typing.NamedTuple):
    pattern: str
    codec: capi.Codec | None  # None: plain
    text: str


@dataclasses.dataclass(frozen=True)
class Rules:
    """Exceptions to a codec, by parameter name. If several match a name, the last one counts."""

    rules: tuple[Rule, ...] = ()
    _found: dict[str, Rule | None] = dataclasses.field(default_factory=dict, compare=False, repr=False)

    def _rule(self, name: str) -> Rule | None:
        if name not in self._found:
            self._found[name] = next((one for one in reversed(self.rules) if _matches(one.pattern, name)),
                                     None)
        return self._found[name]

    def codec(self, name: str, usual: capi.Codec | None) -> capi.Codec | None:
        """Returns the codec of the parameter `name`: `usual` if no pattern matches."""
        rule = self._rule(name) if self.rules else None
        return usual if rule is None else rule.codec

    def unmatched(self) -> list[str]:
        """Returns the patterns that have not matched any name so far."""
        return [one.pattern for one in self.rules
                if not any(_matches(one.pattern, name) for name in self._found)]

    def __str__(self) -> str:
        return "".join(";%s=%s" % (one.pattern, one.text) for one in self.rules)


def parse(text: str, parse_codec: Callable[[str], capi.Codec | None]) -> tuple[str, Rules]:
    """Parse a text. Returns (text of the usual codec, the exceptions). ValueError if it is invalid."""
    usual, *rest = (one.strip() for one in text.split(";"))
    rules = []
    for one in filter(None, rest):
        pattern, equals, codec = (word.strip() for word in one.partition("="))
        if not pattern or not equals:
            raise ValueError("%r is not PATTERN=CODEC" % one)
        made = parse_codec(codec)
        rules.append(Rule(pattern, made, str(made or "plain")))
    return usual, Rules(tuple(rules))


def text_of(given: str | Mapping[str, str], default: str) -> str:
    """Returns {pattern: codec} as a text for parse(). The usual codec is that of "*", or without "*"
    that of the text `default`. ValueError for an invalid pattern."""
    if isinstance(given, str):
        return given
    wrong = next((one for one in given if not one or ";" in one or "=" in one), None)
    if wrong is not None:
        raise ValueError("%r is not a pattern of parameters' names" % wrong)
    rest = ["%s=%s" % pair for pair in given.items() if pair[0] != "*"]
    return ";".join([given.get("*", default.partition(";")[0]), *rest])
