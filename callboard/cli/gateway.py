"""`callboard gateway …`."""

from pathlib import Path
from typing import Annotated

import typer

gateway_app = typer.Typer(
    help="Run gateways: modules that are linked by a configuration.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Config = Annotated[Path, typer.Argument(metavar="CONFIG", help="TOML or JSON file.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@gateway_app.callback()
def gateway() -> None:
    """Run gateways: modules that are linked by a configuration."""


@gateway_app.command()
def run(
    config: Config,
    *,
    given: Annotated[
        Path | None,
        typer.Option("--input", metavar="FILE.jsonl", help="Publish these lines, then end."),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Follow changes of the configuration.")
    ] = False,
    timeout: Annotated[
        float, typer.Option(min=0.001, help="Seconds until all of --input is received.")
    ] = 60.0,
    as_json: AsJson = False,
) -> None:
    """Run a gateway until Ctrl-C or SIGTERM.

    With --input it is a dry run: each line of the file, {"source": MODULE, "content": TEXT,
    "properties": {…}}, is published as if that module had; those modules are not started. When
    all was received, what became of it is printed; the exit code is 1 if anything was lost.

    \b
    Examples:
      callboard gateway run gateway.toml
      callboard gateway run gateway.toml --watch
      callboard gateway run gateway.toml --input recorded.jsonl --json
    """  # noqa: D301
    from callboard.cli.gateways import run_dry, run_gateway

    if given is not None:
        raise typer.Exit(run_dry(config, given, timeout=timeout, as_json=as_json))
    raise typer.Exit(run_gateway(config, watch=watch, as_json=as_json))


@gateway_app.command()
def check(config: Config, *, as_json: AsJson = False) -> None:
    """Say what is wrong with a configuration; nothing is made or started.

    Every mistake is told, with its path in the file; the exit code is 2 if there are some.

    \b
    Examples:
      callboard gateway check gateway.toml
    """  # noqa: D301
    from callboard.cli.gateways import check_gateway

    raise typer.Exit(check_gateway(config, as_json=as_json))


@gateway_app.command("list")
def list_modules(config: Config, *, as_json: AsJson = False) -> None:
    """List the modules of a configuration and their links.

    \b
    Examples:
      callboard gateway list gateway.toml
      callboard gateway list gateway.toml --json | jq .links
    """  # noqa: D301
    from callboard.cli.gateways import list_gateway

    raise typer.Exit(list_gateway(config, as_json=as_json))
