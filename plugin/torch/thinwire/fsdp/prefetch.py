"""FSDP2 on CPUs: in the forward pass, gathers a group of parameters while the one before computes.

FSDP2 itself gathers ahead only in the backward pass."""

from __future__ import annotations

import typing

from .. import inside
from ..collectives import operations
from ..engine.communicators import Waitable


class Forward:
    """Gathers ahead in the forward passes of a tree of FSDP2 modules. Assumes that a pass uses groups of
    parameters in the order of the pass before. If it does not, gathering ahead is turned off."""

    def __init__(self) -> None:
        self._before: list[object] = []
        self._now: list[object] = []
        self._place = 0  # index in _before of the next group
        self._ahead: list[object] = []  # groups that are gathered ahead and not used yet
        self._off = False

    def used(self, group: object) -> None:
        """Note that `group` is gathered and used now, and begin to gather the group after it."""
        if group in self._ahead:
            self._ahead.remove(group)
        # Modules under activation checkpointing run forward again in backward, in another order.
        if self._off or inside.backward_pass() != -1:
            return
        self._now.append(group)
        if group in self._before[self._place :]:
            self._place = self._before.index(group, self._place) + 1
            for following in self._before[self._place : self._place + 1]:
                self._ask(following)

    def _ask(self, group: object) -> None:
        if not inside.is_gathered(group):
            inside.gather(group)
            if inside.is_gathered(group):
                self._ahead.append(group)

    def give_up(self) -> None:
        """After a failed pass, drop its gathers: at the next use their weights could be out of date."""
        self._drop()
        self._now, self._place = [], 0

    def end(self) -> None:
        """End a pass. If gathers are unused, drop them, as weights may change, and gather ahead no more."""
        self._off = self._off or bool(self._ahead)
        self._drop()
        self._before, self._now, self._place = self._now or self._before, [], 0

    def _drop(self) -> None:
        while self._ahead:
            work = inside.drop_gather(self._ahead.pop())
            if work is not None:
                work.end() if isinstance(work, Gathering) else work.wait()


class Gathering(operations.Work):
    """A posted all-gather of a group of parameters. FSDP2 calls wait() when it uses them."""

    def __init__(self, request: Waitable, group: object):
        super().__init__(request, "all-gather")
        self._group = group

    def wait(self, timeout: object = None) -> bool:
        self.end()
        if inside.is_in_forward(self._group):
            forward(inside.context(self._group)).used(self._group)
        return True

    def end(self) -> None:
        """Wait for the gather, without noting a use of the group."""
        super().wait()


def forward(context: typing.Any) -> Forward:
    """Returns the Forward of the tree of modules that shares this FSDP2 context."""
    if not hasattr(context, "_thinwire"):
        context._thinwire = Forward()
    return context._thinwire


def _ends(original):
    def _register_pre_backward_hook(self, output):
        if inside.runs_root(self):
            forward(inside.state_context(self)).end()
        return original(self, output)

    return _register_pre_backward_hook


def _joins(original):
    def init(self, *args, **kwargs):
        original(self, *args, **kwargs)
        watch_state(self)

    return init


def watch_state(state: typing.Any) -> None:
    """Call give_up() if a forward pass that began at this module has failed: torch does not notice."""
    if hasattr(state, "_thinwire"):
        return
    state._thinwire = True

    @inside.no_dynamo
    def failed(*_args):
        if inside.may_run_root(state) and inside.backward_pass() == -1:
            forward(inside.state_context(state)).give_up()

    for module in inside.state_modules(state):
        # The first hook runs after each pass, even a failed one, but not after KeyboardInterrupt. For that
        # case the second hook runs before the next pass.
        module.register_forward_hook(failed, always_call=True)
        module.register_forward_pre_hook(failed, prepend=True)


def watch() -> None:
    """Wrap FSDP2's functions, so that Forward learns when forward passes end or fail."""
    inside.wrap_fsdp2(inside.STATE_INIT, _joins)
    inside.wrap_fsdp2(inside.END_OF_FORWARD, _ends)
