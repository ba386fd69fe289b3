"""The options of `penstock pipeline run`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_SPARK = "Spark"

File = Annotated[
    Path,
    typer.Argument(metavar="FILE", exists=True, dir_okay=False, help="Defines pipeline()"),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A parameter of pipeline(); repeatable"),
]
Name = Annotated[
    str | None, typer.Option("--name", help="Of the job and its queries [default: the file's]")
]
Checkpoint = Annotated[
    str | None,
    typer.Option(
        "--checkpoint",
        metavar="DIR",
        help="Where progress is kept, so that it goes on there; without it, it is forgotten",
    ),
]
From = Annotated[
    str,
    typer.Option("--from", metavar="PLACE", help="Where a new query begins: earliest, latest"),
]
Group = Annotated[str, typer.Option("--group", "-g", help="Consumer group")]
Trigger = Annotated[
    str | None,
    typer.Option("--trigger", metavar="TIME", help="Between two batches [default: 1s]"),
]
AvailableNow = Annotated[
    bool, typer.Option("--available-now", help="Process what is there, then end")
]
Restart = Annotated[
    str,
    typer.Option("--restart", metavar="TIMES", help="After a failure: a number, or always"),
]
StopTimeout = Annotated[
    str, typer.Option("--stop-timeout", metavar="TIME", help="For the batch to end, at a stop")
]
Master = Annotated[
    str | None,
    typer.Option(
        "--master",
        metavar="URL",
        help="local[*] (default), spark://, yarn, k8s://",
        rich_help_panel=_SPARK,
    ),
]
Remote = Annotated[
    str | None,
    typer.Option(
        "--remote",
        metavar="URL",
        help="A Spark Connect server: sc://HOST:PORT",
        rich_help_panel=_SPARK,
    ),
]
Conf = Annotated[
    list[str] | None,
    typer.Option(
        "--conf",
        metavar="spark.NAME=VALUE",
        help="A setting of Spark's; repeatable",
        rich_help_panel=_SPARK,
    ),
]
SparkLog = Annotated[
    str | None,
    typer.Option(
        "--spark-log",
        metavar="FILE|-",
        help="What Spark itself says; -: onto stderr",
        rich_help_panel=_SPARK,
    ),
]
Every = Annotated[
    str, typer.Option("--every", metavar="TIME", help="Between two lines, without a terminal")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Rows and errors only")]
