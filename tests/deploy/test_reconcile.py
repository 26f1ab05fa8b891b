"""reconcile: settled worlds rest, and acting on its word reaches what was wanted."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from greenroom.deploy.base import Action, EndpointState
from greenroom.deploy.reconcile import reconcile

OWNER = "/deployments.toml"

_names = st.sampled_from(["a", "b", "c"])
_states = st.builds(
    EndpointState,
    endpoint=_names,
    model=st.sampled_from(["m", "n"]),
    version=st.sampled_from(["", "1", "2"]),
    source=st.sampled_from(["models:/m-1", "models:/m-2"]),
    workers=st.integers(1, 2),
    port=st.sampled_from([0, 81, 82]),
    owner=st.sampled_from([OWNER, "/other.toml"]),
)
_desired = st.lists(
    st.builds(lambda s, hold: replace(s, hold=hold, owner=OWNER), _states, st.booleans()),
    unique_by=lambda s: s.endpoint,
)
_actual = st.lists(
    st.builds(lambda s, up: replace(s, up=up, port=s.port or 80), _states, st.booleans()),
    unique_by=lambda s: s.endpoint,
)


def _act(world: dict[str, EndpointState], action: Action) -> None:
    """What a deployer does, on a model of the world; its preconditions are those of a real one."""
    found = world.get(action.endpoint)
    assert action.before == (found if found and found.serves else None) or action.kind == "replace"
    if action.kind == "remove":
        del world[action.endpoint]
    elif action.kind == "restart":
        assert found is not None
        world[action.endpoint] = replace(found, up=True)
    else:
        assert action.after is not None
        if action.kind == "replace":
            assert found is not None
            assert found.up, "what served must serve while the new one starts"
        port = action.after.port or (found.port if found else 80)
        world[action.endpoint] = replace(action.after, port=port)


def _run(desired: list[EndpointState], actual: list[EndpointState]) -> dict[str, EndpointState]:
    world = {state.endpoint: state for state in actual}
    for action in reconcile(desired, actual, OWNER):
        _act(world, action)
    return world


@given(_desired, _actual)
def test_acting_reaches_what_is_wanted_and_then_rests(
    desired: list[EndpointState], actual: list[EndpointState]
) -> None:
    world = _run(desired, actual)
    before = {state.endpoint: state for state in actual if state.serves}
    for want in desired:
        got = world.get(want.endpoint)
        serving = got if got and got.serves else None
        if want.hold:
            assert (serving is None) == (want.endpoint not in before)
            assert serving is None or replace(serving, up=True) == replace(
                before[want.endpoint], up=True
            )
        elif not want.serves:
            assert serving is None
        else:
            assert serving is not None
            assert (serving.model, serving.version, serving.source, serving.workers) == (
                want.model,
                want.version,
                want.source,
                want.workers,
            )
            assert want.port in (0, serving.port)
        assert serving is None or serving.up
    assert reconcile(desired, world.values(), OWNER) == ()


@given(_desired, _actual)
def test_others_endpoints_are_left_alone(
    desired: list[EndpointState], actual: list[EndpointState]
) -> None:
    wanted = {want.endpoint for want in desired}
    serving = {state.endpoint for state in actual if state.serves}
    waiting = {want.model for want in desired if want.hold and want.endpoint not in serving}
    world = _run(desired, actual)
    for state in actual:
        if state.endpoint not in wanted:
            if state.owner != OWNER or state.model in waiting:
                assert world[state.endpoint] == state
            elif state.serves:
                assert state.endpoint not in world


@given(_desired)
def test_silence_starts_and_removes_nothing(desired: list[EndpointState]) -> None:
    silent = [replace(want, hold=True) for want in desired]
    assert reconcile(silent, [], OWNER) == ()
    serving = [replace(want, hold=False, version="1") for want in desired]
    assert reconcile(silent, serving, OWNER) == ()


def test_a_renamed_endpoint_goes_last_or_first_where_the_new_one_asks_for_its_port() -> None:
    old = EndpointState("old", model="m", version="1", port=80, owner=OWNER)
    new = EndpointState("new", model="m", version="1", owner=OWNER)
    plan = [str(a) for a in reconcile([new], [old], OWNER)]
    assert plan == ["+ new (local): serve m version 1", "- old (local): take m version 1 down"]
    same_port = [str(a) for a in reconcile([replace(new, port=80)], [old], OWNER)]
    assert same_port == [
        "- old (local): take m version 1 down, for new takes over its port",
        "+ new (local): serve m version 1",
    ]
    refused = replace(new, port=80, version="", hold=True)
    assert reconcile([refused], [old], OWNER) == ()


def test_actions_read_like_a_plan() -> None:
    old = EndpointState("web", model="m", version="1", port=80)
    new = replace(old, version="2")
    assert [str(a) for a in reconcile([new], [replace(old, up=False)])] == [
        "! web (local): bring m version 1 up again",
        "~ web (local): m version 1 -> m version 2",
    ]
    assert str(*reconcile([new], [])) == "+ web (local): serve m version 2"
    assert str(*reconcile([replace(new, version="")], [old])) == (
        "- web (local): take m version 1 down"
    )
