"""What this package uses of Flower that is not public, one test a part; each names the version.

Neither Flower nor uvicorn promises anything about it. When one of these fails after an upgrade, the
module named in it has to be adapted, and so has the range of versions in pyproject.toml.
"""

from __future__ import annotations

import inspect
import re
import sqlite3
from contextlib import closing
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.supercore import sql_mixin

from fedif_consortium.superlink.guarded_superlink import wait_for_database

PACKAGE = Path(__file__).parents[2] / "fedif_flower"
FLOWER = f"flwr {version('flwr')}"
PUBLIC = r"flwr|flwr\.app|flwr\.serverapp(\.strategy)?|flwr\.clientapp(\.typing)?"


def require(condition: object, what: str) -> None:
    assert condition, f"{FLOWER}: {what}"


def private_imports() -> list[tuple[str, str, str]]:
    """Return file, module and name of every import of a private part of Flower."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        pattern = r"^ *from (flwr(?:\.\w+)*) import (?:\(([^)]*)\)|(.*))"
        for module, several, one in re.findall(pattern, path.read_text(), re.MULTILINE):
            names = [name.split(" as ")[0].strip() for name in (several or one).split(",")]
            if not re.fullmatch(PUBLIC, module):
                found += [(str(path.relative_to(PACKAGE)), module, n) for n in names if n]
    return found


@pytest.mark.parametrize(("path", "module", "name"), private_imports())
def test_what_is_imported_is_there(path, module, name):
    try:
        found = hasattr(import_module(module), name) or import_module(f"{module}.{name}")
    except ImportError as error:
        pytest.fail(f"{FLOWER}: {module}.{name}, used by {path}: {error}")
    require(found, f"{module}.{name}, used by {path}, is gone")


def test_one_room_alone_touches_what_is_private():
    assert {path.split("/")[0] for path, _, _ in private_imports()} == {"runtime"}


@pytest.mark.parametrize(
    ("room", "names", "parameters"),
    [
        ("fleet.fleet", "push_messages push_object", "request state"),
        ("runtime.runtime", "push_messages push_object pull_messages", "request state task"),
    ],
)
def test_reply_guard_stands_in_front_of_handlers(room, names, parameters):
    module = import_module(f"flwr.superlink.servicer.{room}_handlers")
    for name in names.split():
        handler = getattr(module, name, None)
        require(handler, f"{room}.{name} is gone: reply_guard.py guards nothing")
        found = list(inspect.signature(handler).parameters)
        require(found == parameters.split(), f"{room}.{name} takes {found}: see reply_guard.py")


# Whose guard rests on it; of which module, or name in it; what its source says.
SAID = """
reply_guard flwr.superlink.routers.fleet.router:fleet_push_messages fleet_handlers.push_messages(
reply_guard flwr.superlink.routers.fleet.router:fleet_push_object fleet_handlers.push_object(
reply_guard flwr.supercore.routers.runtime.router push_messages( push_object( pull_messages(
reply_guard MESSAGES:pull_and_inflate_object_from_tree iterate_object_tree( inflate_object_from
reply_guard flwr.superlink.grid.http_grid:HttpGrid.pull_messages iterate_object_tree( inflate_object
reply_guard flwr.superlink.routers.fleet.node_auth protobuf_request.node.node_id
guarded_superlink flwr.superlink.cli.flower_superlink uvicorn.run(
guarded_superlink flwr.superlink.main:create_app state.linkstate_factory
screened_grid flwr.superlink.grid.http_grid:HttpGrid.push_messages _message_id
ray_grid RAY actor_kwargs on_actor_init_fn self.pool num_workers process_message
ray_grid flwr.simulation.ray_transport.ray_actor _future_to_actor
guarded_supernode SUPERNODE start_client_internal( state_factory=state_factory node_config=
guarded_supernode flwr.supernode.nodestate:NodeStateFactory self.objectstore_factory
guarded_supernode LOOP:_init_connection http_request_response(
supernode CONNECTION:http_request_response NodeAuthHttpInterceptor(private_key
message_guard LOOP:_pull_and_store_message receive() get_run(run_id) pull_object(run_id,
message_guard LOOP:_pull_and_store_message get_fab( get_fused_config_from_fab(fab.content,
message_guard LOOP:_push_messages send(message,
app_build flwr.cli.run.run build_fab_from_disk(
""".strip()
PLACES = {
    "MESSAGES": "flwr.supercore.inflatable.inflatable_utils",
    "LOOP": "flwr.supernode.start_client_internal",
    "RAY": "flwr.server.superlink.fleet.vce.backend.raybackend:RayBackend",
    "SUPERNODE": "flwr.supernode.cli.flower_supernode:flower_supernode",
    "CONNECTION": "flwr.supernode.fleet_http_connection",
}


@pytest.mark.parametrize("line", SAID.splitlines())
def test_the_source_says_what_a_guard_rests_on(line):
    see, where, said = line.split(maxsplit=2)
    for short, place in PLACES.items():
        where = where.replace(short, place)
    module, _, names = where.partition(":")
    found = import_module(module)
    for name in filter(None, names.split(".")):
        found = getattr(found, name)
    for word in said.split():
        require(word in inspect.getsource(found), f"{where} has no {word!r}: see {see}.py")


def test_a_supernode_s_connection_has_the_parts_that_are_guarded():
    connect = import_module(PLACES["LOOP"]).http_request_response
    parts = re.findall(r"yield \(\s*([^)]*)\)", inspect.getsource(connect.__wrapped__))[0]
    found = [part.strip() for part in parts.split(",") if part.strip()]
    from fedif_consortium.member.message_guard import Connection

    wanted = ["node.node_id", *Connection._fields[1:]]
    require(found == wanted, f"a connection consists of {found}: see message_guard.py")


def test_nodes_can_be_looked_up():
    state = import_module("flwr.server.superlink.linkstate").LinkState
    for name in ("get_node_id_by_public_key", "get_node_info"):
        require(hasattr(state, name), f"LinkState.{name} is gone: see signed_requests.py")
    grids = import_module("flwr.superlink.grid")
    require(hasattr(grids, "InMemoryGrid"), "simulations are known by the name of InMemoryGrid")


def test_objects_consist_of_head_and_body():
    chunk = import_module("flwr.app.message.arraychunk").ArrayChunk(memoryview(b"values"))
    packed = chunk.deflate()
    require(packed == b"ArrayChunk  6\x00values", f"objects are packed as {packed!r}")


def test_a_random_group_makes_ids_unguessable():
    task = import_module("flwr.supercore.task_identity").TaskIdentity
    task.run_id = task.task_id = task.node_id = 1
    message = Message(RecordDict({"config": ConfigRecord()}), 5, "train")
    before = message.object_id
    message.metadata.group_id = "0123456789abcdef"
    require(message.object_id != before, "group_id is not in the hash: see screened_grid.py")


def test_codes_of_errors():
    codes = import_module("flwr.common.constant").ErrorCode
    from fedif_flower.messages import polling_grid as ours

    require(codes.MESSAGE_UNAVAILABLE == ours.MESSAGE_UNAVAILABLE, "see polling_grid.py")
    require(codes.REPLY_MESSAGE_UNAVAILABLE == ours.REPLY_UNAVAILABLE, "see polling_grid.py")
    require(codes.NODE_UNAVAILABLE == ours.NODE_UNAVAILABLE, "see polling_grid.py")


def test_an_object_that_is_not_there_yet_is_empty():
    store = import_module("flwr.supercore.object_store").ObjectStoreFactory().store()
    tree = import_module("flwr.proto.message_pb2").ObjectTree(object_id="0" * 64)
    store.preregister(1, tree)
    require(store.get("0" * 64) == b"", "an object to come is not b'': see message_guard.py")


def test_a_database_waits_for_a_lock_as_long_as_it_is_told(monkeypatch):
    monkeypatch.setattr(sql_mixin, "SQLITE_PRAGMAS", sql_mixin.SQLITE_PRAGMAS)
    wait_for_database()
    with closing(sqlite3.connect(":memory:")) as database:
        sql_mixin._set_sqlite_pragmas(database, None)
        (waits,) = database.execute("PRAGMA busy_timeout").fetchone()
    require(waits == 60_000, "SQLITE_PRAGMAS are not what a connection is begun with")
