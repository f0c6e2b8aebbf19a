"""``fedif inspect``: a member looks for harmful examples among its own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

inspect_cli = typer.Typer(add_completion=False)


@inspect_cli.command("inspect")
def inspect(
    node_config: Annotated[
        str, typer.Option("--node-config", help="KEY=VALUE ..., as for flower-supernode")
    ],
    gradient: Annotated[
        list[Path] | None,
        typer.Option(help="a kept round, round-NNNNNN.npz; several; default: all in gradients-dir"),
    ] = None,
    output_dir: Annotated[
        Path, typer.Option(help="gets inspection.html and inspection.csv")
    ] = Path("inspection"),
    show: Annotated[
        int, typer.Option(min=1, help="so many examples in each list of the page")
    ] = 100,
    neighbours: Annotated[int, typer.Option(min=1, help="whose labels are compared")] = 10,
    task: Annotated[
        str, typer.Option(help="MODULE:OBJECT here, where the run was about an app's own task")
    ] = "",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda ...")] = "auto",
) -> None:
    """Find your own examples that are most likely mislabelled or harmful; nothing leaves this host.

    The run must publish its gradients (publish-gradients=true), and your node keep them
    (gradients-dir in the node config). It makes no connection.
    """
    from fedif_consortium.evidence.kept_gradients import kept_rounds, read_kept
    from fedif_consortium.member.inspection import (
        examples_at,
        files_of,
        inspect_examples,
        member_data,
    )
    from fedif_consortium.member.inspection_page import harmful_lines, table_lines, write_inspection
    from fedif_flower.errors import ConfigError
    from fedif_flower.messages.node_config import NodeConfig
    from fedif_flower.settings import parse_overrides

    node = NodeConfig.from_node_config(parse_overrides(node_config))
    if not gradient and not node.gradients_dir:
        raise ConfigError(
            "the node config has no gradients-dir, and no --gradient is given: nothing to judge by"
        )
    paths = gradient or kept_rounds(Path(str(node.gradients_dir)).expanduser())
    last = read_kept(paths[-1])
    own_task, data = member_data(last, node, task)
    findings = inspect_examples(own_task, data, map(read_kept, paths), device, neighbours)
    files = files_of(last, node, len(findings.losses))
    lines = table_lines(findings, list(own_task.facts.get("classes", ())), files)
    listed = [*lines[:show], *harmful_lines(lines)[:show]]
    chosen = sorted({line.example for line in listed})
    examples = dict(zip(chosen, examples_at(data, chosen), strict=True))
    written = write_inspection(output_dir.absolute(), lines, examples, findings.rounds, show)
    console = Console()
    console.print(f"Read: {len(lines)} examples, by the model of {len(findings.rounds)} rounds")
    for name, path in zip(("Page", "Table"), written, strict=True):
        console.print(f"{name}: {path}", soft_wrap=True, highlight=False)
    console.print("Both show your data: they stay here. Nothing was sent.")
