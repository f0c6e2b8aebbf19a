"""``fedif inspect``: a member looks for harmful examples among its own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

inspect_cli = typer.Typer(add_completion=False)


@inspect_cli.command("inspect")
def inspect(
    node_config: Annotated[
        str, typer.Option("--node-config", help="KEY=VALUE ..., as for flower-supernode")
    ],
    output: Annotated[Path, typer.Option(help="the table of all examples")] = Path(
        "inspection.csv"
    ),
    show: Annotated[int, typer.Option(min=1, help="so many examples are shown")] = 20,
    task: Annotated[
        str, typer.Option(help="MODULE:OBJECT here, where the run was about an app's own task")
    ] = "",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda ...")] = "auto",
) -> None:
    """Find your own examples that are most likely mislabelled or harmful; nothing leaves this host.

    The run must publish its gradients (gradients.publish=true), and your node keep them
    (gradients-dir in the node config). It makes no connection.
    """
    from rich.console import Console

    from fedif_consortium.evidence.kept_gradients import kept_rounds, read_kept
    from fedif_consortium.member import inspection
    from fedif_flower.errors import ConfigError
    from fedif_flower.messages.node_config import NodeConfig
    from fedif_flower.messages.text import printable
    from fedif_flower.run.rows import csv_text
    from fedif_flower.settings import parse_overrides
    from fedif_flower.storage import make_folder, write_atomically
    from fedif_flower.tables import ResultTable

    node = NodeConfig.from_node_config(parse_overrides(node_config))
    if not node.gradients_dir:
        raise ConfigError("the node config has no gradients-dir: nothing to judge by")
    paths = kept_rounds(Path(node.gradients_dir).expanduser())
    last = read_kept(paths[-1])
    own_task, data = inspection.member_data(last, node, task)
    files = inspection.files_of(last, node)
    lines = inspection.inspect_examples(own_task, data, map(read_kept, paths), files, device)
    make_folder(output.absolute().parent)
    write_atomically(output, csv_text([inspection.Line._fields, *lines]), 0o600)
    heading = ["rank", "example", "class", "loss", "influence", "agreement"]
    shown = [
        [
            *(str(line.rank), printable(line.file, 400) or str(line.example)),
            *(printable(line.label), f"{line.loss:.3g}", f"{line.influence:.3g}"),
            "" if line.agreement is None else f"{line.agreement:.0%}",
        ]
        for line in lines[:show]
    ]
    ResultTable("", heading, shown, num_labels=3).print(Console())
    typer.echo(
        f"{len(lines)} examples, by the model of {len(paths)} rounds. The first labels "
        "are the likeliest wrong ones; a rare example has a large loss, too, and an influence "
        "below 0 alone says little about a label.\n"
        f"All examples: {output.absolute()}. Nothing was sent."
    )
