"""What is wanted and what is found -> what to do. Pure; called by `controller` on every look."""

from __future__ import annotations

from collections.abc import Iterable

from greenroom.deploy.base import Action, EndpointState


def reconcile(
    desired: Iterable[EndpointState], actual: Iterable[EndpointState], owner: str = ""
) -> tuple[Action, ...]:
    """The actions that turn `actual` into `desired`; none when the world is settled.

    An endpoint that nobody wants any more goes if `owner`, the deployments file, made it; others'
    are left alone. A version that is down is brought up again before it is replaced: what served
    must serve while the new one starts. It stays as well while an endpoint of its model waits for
    the registry or a gate: that is a renaming which has not come through. One whose port another
    endpoint asks for goes first.
    """
    wanted = {(w.target, w.endpoint): w for w in desired}
    found = {(f.target, f.endpoint): f for f in actual if f.serves}
    actions = [action for key, want in wanted.items() for action in _one(want, found.get(key))]
    heirs = {(a.target, a.after.port): a.endpoint for a in actions if a.after and a.after.port}
    waiting = {want.model for key, want in wanted.items() if want.hold and key not in found}
    removals = [
        Action("remove", f.endpoint, f.target, f, None, heirs.get((f.target, f.port), ""))
        for key, f in found.items()
        if key not in wanted and owner and f.owner == owner and f.model not in waiting
    ]
    first = [removal for removal in removals if removal.heir]
    return (*first, *actions, *(removal for removal in removals if not removal.heir))


def _one(want: EndpointState, found: EndpointState | None) -> list[Action]:
    def action(kind: str, after: EndpointState | None) -> Action:
        return Action(kind, want.endpoint, want.target, found, after)

    if want.hold:
        return [action("restart", found)] if found and not found.up else []
    if found is None:
        return [action("create", want)] if want.serves else []
    if not want.serves:
        return [action("remove", None)]
    actions = [] if found.up else [action("restart", found)]
    if _differs(want, found):
        actions.append(action("replace", want))
    return actions


def _differs(want: EndpointState, found: EndpointState) -> bool:
    return (
        (want.model, want.version, want.source) != (found.model, found.version, found.source)
        or (want.workers, want.threads) != (found.workers, found.threads)
        or want.port not in (0, found.port)
    )
