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

from fedif_flower.runtime.guarded_superlink import wait_for_database

PACKAGE = Path(__file__).parents[2] / "fedif_flower"
FLOWER = f"flwr {version('flwr')}"
PUBLIC = (
    *("flwr", "flwr.app", "flwr.serverapp", "flwr.serverapp.strategy"),
    *("flwr.clientapp", "flwr.clientapp.typing"),
)


def require(condition: object, what: str) -> None:
    assert condition, f"{FLOWER}: {what}"


def private_imports() -> list[tuple[str, str, str]]:
    """Return file, module and name of every import of a private part of Flower."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        pattern = r"^ *from (flwr(?:\.\w+)*) import (?:\(([^)]*)\)|(.*))"
        for module, several, one in re.findall(pattern, path.read_text(), re.MULTILINE):
            names = [name.split(" as ")[0].strip() for name in (several or one).split(",")]
            if module not in PUBLIC:
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
    ("module", "name", "parameters"),
    [
        ("flwr.superlink.servicer.fleet.fleet_handlers", "push_messages", "request state"),
        ("flwr.superlink.servicer.fleet.fleet_handlers", "push_object", "request state"),
        ("flwr.superlink.servicer.runtime.runtime_handlers", "push_messages", "request state task"),
        ("flwr.superlink.servicer.runtime.runtime_handlers", "push_object", "request state task"),
        ("flwr.superlink.servicer.runtime.runtime_handlers", "pull_messages", "request state task"),
    ],
)
def test_reply_guard_stands_in_front_of_handlers(module, name, parameters):
    handler = getattr(import_module(module), name, None)
    require(handler, f"{module}.{name} is gone: reply_guard.py guards nothing")
    found = list(inspect.signature(handler).parameters)
    require(found == parameters.split(), f"{module}.{name} takes {found}: see reply_guard.py")


def test_routers_look_handlers_up_when_called():
    router = import_module("flwr.superlink.routers.fleet.router")
    for name in ("fleet_push_messages", "fleet_push_object"):
        source = inspect.getsource(getattr(router, name))
        called = f"fleet_handlers.{name.removeprefix('fleet_')}("
        require(called in source, f"{name} does not call {called}...): see reply_guard.py")
    runtime = inspect.getsource(import_module("flwr.supercore.routers.runtime.router"))
    for name in ("push_messages", "push_object", "pull_messages"):
        require(f"handlers.{name}(" in runtime, f"the runtime's router: see reply_guard.py, {name}")


def test_nodes_are_authenticated_by_what_reply_guard_compares_with():
    source = inspect.getsource(import_module("flwr.superlink.routers.fleet.node_auth"))
    require("protobuf_request.node.node_id" in source, "request.node is not what is authenticated")


def test_a_superlink_is_served_by_uvicorn():
    source = inspect.getsource(import_module("flwr.superlink.cli.flower_superlink"))
    require("uvicorn.run(" in source, "guarded_superlink.py cannot wrap the SuperLink")


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
    require(codes.NODE_UNAVAILABLE == ours.NODE_UNAVAILABLE, "see polling_grid.py")


def test_grids_of_flower():
    grids = import_module("flwr.superlink.grid")
    require(hasattr(grids, "InMemoryGrid"), "simulations are known by the name of InMemoryGrid")
    http = import_module("flwr.superlink.grid.http_grid").HttpGrid
    require("_message_id" in inspect.getsource(http.push_messages), "see screened_grid.py: ids")


def test_ray_s_actors():
    backend = import_module("flwr.server.superlink.fleet.vce.backend.raybackend").RayBackend
    source = inspect.getsource(backend)
    for name in ("actor_kwargs", "on_actor_init_fn", "self.pool", "num_workers", "process_message"):
        require(name in source, f"RayBackend has no {name}: see ray_grid.py")
    module = import_module("flwr.simulation.ray_transport.ray_actor")
    require("_future_to_actor" in inspect.getsource(module), "see kill_busy in ray_grid.py")


def test_what_bounded_http_needs_of_uvicorn():
    h11_impl = import_module("uvicorn.protocols.http.h11_impl")
    source = inspect.getsource(h11_impl)
    for name in ("self.app = config.loaded_app", "h11_max_incomplete_event_size", "self.cycle"):
        assert name in source, f"uvicorn {version('uvicorn')}: no {name}: see bounded_http.py"
    server = inspect.getsource(import_module("uvicorn.server"))
    for name in ("config.http_protocol_class(", "sock=sock, ssl=config.ssl"):
        assert name in server, f"uvicorn {version('uvicorn')}: no {name}: see guarded_superlink.py"


def test_a_superlink_lets_its_nodes_be_looked_up():
    source = inspect.getsource(import_module("flwr.superlink.main").create_app)
    require("state.linkstate_factory = " in source, "see guarded_superlink.py")
    state = import_module("flwr.server.superlink.linkstate").LinkState
    for name in ("get_node_id_by_public_key", "get_node_info"):
        require(hasattr(state, name), f"LinkState.{name} is gone: see node_requests.py")


def test_a_supernode_s_command_looks_its_loop_up_when_called():
    module = import_module("flwr.supernode.cli.flower_supernode")
    source = inspect.getsource(module.flower_supernode)
    for part in ("start_client_internal(\n", "state_factory=state_factory", "node_config="):
        require(part in source, f"flower_supernode() has no {part!r}: see guarded_supernode.py")
    factory = import_module("flwr.supernode.nodestate").NodeStateFactory
    require("self.objectstore_factory" in inspect.getsource(factory), "see guarded_supernode.py")


def test_a_supernode_s_loop_connects_by_the_function_that_is_guarded():
    module = import_module("flwr.supernode.start_client_internal")
    require(
        "with http_request_response(\n" in inspect.getsource(module._init_connection),
        "http_request_response is not what connects: guarded_supernode.py guards nothing",
    )
    connect = module.http_request_response
    parts = re.findall(r"yield \(\s*([^)]*)\)", inspect.getsource(connect.__wrapped__))[0]
    found = [part.strip() for part in parts.split(",") if part.strip()]
    from fedif_flower.runtime.message_guard import Connection

    wanted = ["node.node_id", *Connection._fields[1:]]
    require(found == wanted, f"a connection consists of {found}: see message_guard.py")


def test_a_supernode_s_requests_are_signed_where_refusals_are_told():
    module = import_module("flwr.supernode.fleet_http_connection")
    source = inspect.getsource(module.http_request_response)
    require("            NodeAuthHttpInterceptor(private_key" in source, "see supernode.py")


def test_a_supernode_takes_a_run_and_its_app_from_the_connection_alone():
    module = import_module("flwr.supernode.start_client_internal")
    source = inspect.getsource(module._pull_and_store_message)
    for part in ("receive()", "get_run(run_id)", "get_fab(run_info.fab_hash, run_id)"):
        require(part in source, f"the loop does not call {part}: see message_guard.py")
    parts = ("pull_object(run_id, obj_id)", "get_fused_config_from_fab(fab.content, run_info)")
    for part in parts:
        require(part in source, f"the loop does not call {part}: see message_guard.py")


def test_a_supernode_sends_replies_by_the_connection_alone():
    source = inspect.getsource(import_module("flwr.supernode.start_client_internal")._push_messages)
    part = "send(message, object_tree, clientapp_runtime)"
    require(part in source, f"the loop does not call {part}: see message_guard.py")


def test_an_object_that_is_not_there_yet_is_empty():
    store = import_module("flwr.supercore.object_store").ObjectStoreFactory().store()
    tree = import_module("flwr.proto.message_pb2").ObjectTree(object_id="0" * 64)
    store.preregister(1, tree)
    require(store.get("0" * 64) == b"", "an object to come is not b'': see message_guard.py")


def test_a_bundle_is_built_as_flwr_run_builds_it():
    source = inspect.getsource(import_module("flwr.cli.run.run"))
    require("build_fab_from_disk(" in source, "flwr run builds otherwise: see app_build.py")


def test_a_database_waits_for_a_lock_as_long_as_it_is_told(monkeypatch):
    monkeypatch.setattr(sql_mixin, "SQLITE_PRAGMAS", sql_mixin.SQLITE_PRAGMAS)
    wait_for_database()
    with closing(sqlite3.connect(":memory:")) as database:
        sql_mixin._set_sqlite_pragmas(database, None)
        (waits,) = database.execute("PRAGMA busy_timeout").fetchone()
    require(waits == 60_000, "SQLITE_PRAGMAS are not what a connection is begun with")
