"""Every figure that README and docs may cite: its key in docs/figures.json, and what it means.

A document shows a figure by `<!-- figure: KEY -->VALUE<!-- /figure -->`, or with a format of its
own: `KEY|FORMAT`. FORMAT is a format specification of Python (`,.0f`, `.0%`), `rate` (1.32 M,
482 k), `ratio` (5.3x) or `short` (three digits). The unit is written by the document.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.report.chart import format_rate, format_ratio

NOT_MEASURED = "not measured yet"


@dataclass(frozen=True)
class Figure:
    meaning: str
    format: str = "short"


# By part; each part is measured by itself. Keys begin with the part's name.
_PARTS: dict[str, dict[str, Figure]] = {
    "start": {
        "empty_s": Figure("`penstock serve --no-portal`, new data directory, until ready; seconds"),
        "portal_s": Figure("`penstock serve` until the portal answers; seconds"),
        "broker_mb": Figure("resident memory of the broker after the start; MB", ",.0f"),
        "portal_mb": Figure("resident memory of the portal's process after the start; MB", ",.0f"),
    },
    "memory": {
        "connection_kb": Figure("broker's memory per idle connection with a token and a link; KB"),
        "per_1000_connections_mb": Figure("the same for 1,000 connections; MB"),
        "partition_kb": Figure("broker's memory per partition that holds an event; KB"),
        "per_1000_partitions_mb": Figure("the same for 1,000 partitions; MB"),
    },
    "disk": {
        "gb_per_million_1kb": Figure("disk space of a million events of 1 KB, batches of 100; GB"),
        "gb_per_million_1kb_singles": Figure("the same, published one by one; GB"),
        "overhead_bytes": Figure("bytes on disk per event of 1 KB beside its body", ",.0f"),
        "partition_kb": Figure("disk space of an open partition that holds one small event; KB"),
        "partition_stopped_kb": Figure("the same after a clean stop; KB"),
    },
    "backup": {
        "data_gb": Figure("size of the data directory that the next figures are about; GB"),
        "backup_s": Figure("`penstock backup` while the service runs; seconds", ".1f"),
        "backup_mb_per_s": Figure("its rate; MB/s", ",.0f"),
        "verify_s": Figure("`penstock log verify` of the copy; seconds", ".1f"),
        "verify_mb_per_s": Figure("its rate; MB/s", ",.0f"),
        "restore_s": Figure("`penstock restore`; seconds", ".1f"),
        "restore_mb_per_s": Figure("its rate; MB/s", ",.0f"),
        "restart_kill_s": Figure(
            "`kill -9` under load, then `penstock serve` until ready; seconds"
        ),
        "restart_kill_max_s": Figure("the longest of those restarts; seconds"),
        "restart_clean_s": Figure("restart after SIGTERM until ready; seconds"),
    },
    "install": {
        "seconds": Figure("`pip install` of the wheel, without pip's cache; seconds", ".0f"),
        "mb": Figure("size of what it installs; MB", ",.0f"),
        "wheel_kb": Figure("size of the wheel; KB", ",.0f"),
        "packages": Figure("number of packages that it installs, Penstock included", ",.0f"),
        "first_event_s": Figure("from `pip install` to the first event read back; seconds", ".0f"),
    },
    "setup": {
        "seconds": Figure("`make serve` in a new clone, until ready; seconds", ".0f"),
        "mb": Figure("size of the environment that it makes; MB", ",.0f"),
        "again_s": Figure("`make serve` once more, until ready; seconds", ".1f"),
    },
    "testing": {
        "first_ms": Figure("`penstock.testing`: first broker of a process, imports; ms", ",.0f"),
        "broker_ms": Figure("`penstock.testing`: each further broker, until ready; ms"),
    },
    "cli": {
        "version_ms": Figure("`penstock --version`; ms", ",.0f"),
        "hub_list_ms": Figure("`penstock hub list`; ms", ",.0f"),
        "send_ms": Figure("`penstock send` of one event; ms", ",.0f"),
        "send_million_s": Figure(
            "`penstock send --lines` of a million short lines; seconds", ".1f"
        ),
        "send_million_cpu_s": Figure("its own CPU time; seconds", ".1f"),
    },
    "https": {
        "requests_per_s": Figure("HTTPS publications of one 1 KB event, 32 connections", "rate"),
        "p50_ms": Figure("median time of such a request; ms"),
        "p99_ms": Figure("its 99th percentile; ms"),
        "batch_events_per_s": Figure("events in JSON batches of 200, 32 connections", "rate"),
    },
    "client": {
        "send_per_s": Figure("`penstock.client` sends 1 KB events in batches", "rate"),
        "receive_per_s": Figure("`penstock.client` reads them as `EventData`", "rate"),
        "receive_columns_per_s": Figure("`penstock.client` reads them as columns", "rate"),
        "official_send_per_s": Figure("azure-eventhub (asyncio) sends them", "rate"),
        "official_receive_per_s": Figure("azure-eventhub (asyncio) reads them", "rate"),
        "send_ratio": Figure("penstock.client to azure-eventhub, sending", "ratio"),
        "receive_ratio": Figure("penstock.client (`EventData`) to azure-eventhub", "ratio"),
        "receive_columns_ratio": Figure("penstock.client (columns) to azure-eventhub", "ratio"),
    },
    "checkpoints": {
        "file_ms": Figure("one checkpoint in the SQLite file; ms"),
        "service_ms": Figure("one checkpoint in the service, over HTTPS; ms"),
        "file_per_s": Figure("checkpoints in the file from eight threads, a second", ",.0f"),
        "service_per_s": Figure("checkpoints in the service from eight threads, a second", ",.0f"),
    },
    "portal": {
        "publish_share": Figure("share of the publish rate that ten open tabs take", ".1%"),
        "broker_cpu": Figure("share of a core that the broker spends on ten open tabs", ".1%"),
    },
    "log": {
        "append_us": Figure("append of a batch of 10.5 KB, CPU on the event loop; µs"),
        "read_gb_per_cpu_s": Figure("read from the page cache, checksums compared; GB per CPU s"),
        "open_clean_ms": Figure("opening a log of 1 GB after a clean stop; ms"),
        "open_crash_ms": Figure("opening the same log without its marks; ms"),
        "four_partitions_per_s": Figure("batches of 10.5 KB to 4 partitions, durable", "rate"),
    },
    "spark": {
        "batch_100b_per_s": Figure("batch read of 100 B events, local[2]", "rate"),
        "batch_1kb_per_s": Figure("batch read of 1 KB events", "rate"),
        "batch_100b_share": Figure("batch read of 100 B against Spark's own transport", ".0%"),
        "batch_1kb_share": Figure("batch read of 1 KB against Spark's own transport", ".0%"),
        "stream_100b_per_s": Figure("streaming read of 100 B events", "rate"),
        "stream_1kb_per_s": Figure("streaming read of 1 KB events", "rate"),
        "stream_100b_share": Figure("streaming read of 100 B against the batch read", ".0%"),
        "stream_1kb_share": Figure("streaming read of 1 KB against the batch read", ".0%"),
        "sink_per_s": Figure("durable writes of 1 KB events by the sink", "rate"),
    },
    "capture": {
        "rate_mb_per_s": Figure("Capture beside this ingress of 1 KB events; MB/s", ",.0f"),
        "seconds": Figure("for how long; seconds", ",.0f"),
        "behind_first_mb": Figure("its average backlog in the first half; MB", ",.0f"),
        "behind_second_mb": Figure("its average backlog in the second half; MB", ",.0f"),
        "behind_max_mb": Figure("its largest backlog; MB", ",.0f"),
        "busy_mb": Figure("memory of the Capture job meanwhile, at most; MB", ",.0f"),
        "drained_s": Figure("from the load's end until everything is in files; seconds", ".1f"),
        "encoder_mb_per_s": Figure("Avro encoder, deflate, on one core; MB/s", ",.0f"),
        "encoder_null_mb_per_s": Figure("Avro encoder without compression; MB/s", ",.0f"),
        "idle_cpu": Figure("share of a core while a captured hub gets nothing", ".1%"),
        "idle_mb": Figure("memory of the Capture job meanwhile, median; MB", ",.0f"),
        "idle_max_mb": Figure("its memory while a window closes; MB", ",.0f"),
    },
}

# What `make bench` measures: `throughput.WORKLOAD.SUBJECT.FIGURE`. The names as its tables have
# them.
WORKLOADS = {
    "publish 100 B batches": "publish_100b_batches",
    "publish 100 B singles": "publish_100b_singles",
    "deliver 100 B": "deliver_100b",
    "publish 1 KB batches": "publish_1kb_batches",
    "publish 1 KB singles": "publish_1kb_singles",
    "deliver 1 KB": "deliver_1kb",
    "publish 100 B batches, one in flight": "one_in_flight",
    "end to end, 1,000/s singles": "end_to_end_1000",
    "end to end, 10,000/s singles": "end_to_end_10000",
    "end to end, 100,000/s batches": "end_to_end_100000",
    **{
        f"{title}, {count} connection{'s' if count > 1 else ''} to 32 partitions": (
            f"{slug}_{count}_connections"
        )
        for count in (1, 8, 64)
        for title, slug in (
            ("publish 100 B singles", "publish_singles"),
            ("publish 100 B batches", "publish_batches"),
            ("deliver 100 B", "deliver"),
        )
    },
    "deliver 100 B to 2 readers": "two_readers",
    "deliver 100 B to 2 readers, beside a slow one": "two_readers_beside_slow",
    "replay 1 KB from cold segments": "replay_cold",
}
SUBJECTS = {
    "Penstock": "penstock",
    "NATS JetStream": "nats",
    "RabbitMQ classic": "rabbitmq_classic",
    "RabbitMQ stream": "rabbitmq_stream",
    "Kafka": "kafka",
}
COMPARED = tuple(WORKLOADS.values())[:6]  # the peers are measured in these
RATES = {
    "events_per_s": Figure("events per second", "rate"),
    "mb_per_s": Figure("MB/s of bodies", ",.0f"),
    "broker_cpu_share": Figure("share of the broker's core", ".0%"),
    "memory_mb": Figure("the broker's resident memory; MB", ",.0f"),
    "ack_p50_ms": Figure("acknowledgement, median; ms"),
    "ack_p99_ms": Figure("acknowledgement, 99th percentile; ms"),
    "ack_p999_ms": Figure("acknowledgement, 99.9th percentile; ms"),
    "e2e_p50_ms": Figure("from sending to reading, median; ms"),
    "e2e_p99_ms": Figure("from sending to reading, 99th percentile; ms"),
    "e2e_p999_ms": Figure("from sending to reading, 99.9th percentile; ms"),
    "penstock_ratio": Figure("how many times this rate Penstock's is", "ratio"),
}
THROUGHPUT = {
    "log_gb": Figure("size of the large log; GB", ",.0f"),
    "log_events": Figure("events in it", ",.0f"),
    "start_s": Figure("start with the large log, page cache dropped; seconds"),
    "disk_read_mb_per_s": Figure("plain reading of its files; MB/s", ",.0f"),
    "fdatasync_4kb_p50_ms": Figure("the disk: append of 4 KB and fdatasync, median; ms"),
    "fdatasync_1024kb_mb_per_s": Figure("the disk: appends of 1 MB, each flushed; MB/s", ",.0f"),
    "loopback_64kb_mb_per_s": Figure("the machine: loopback TCP; MB/s", ",.0f"),
}
_ABOUT = {
    "date": Figure("day of the newest measurement", "s"),
    "load_average": Figure("highest load average before a part was measured", ".2f"),
    "cpu": Figure("processor", "s"),
    "cores": Figure("number of cores", "d"),
    "memory_gb": Figure("memory; GB"),
    "kernel": Figure("Linux kernel", "s"),
    "python": Figure("Python", "s"),
    "commit": Figure("commit of Penstock", "s"),
}
PARTS = ("throughput", *_PARTS)


def figures() -> dict[str, Figure]:
    """All keys, in the order of the parts."""
    found = {f"about.{name}": figure for name, figure in _ABOUT.items()}
    found |= {f"throughput.{name}": figure for name, figure in THROUGHPUT.items()}
    for title, workload in WORKLOADS.items():
        for name, subject in SUBJECTS.items():
            if subject == "penstock" or workload in COMPARED:
                for kind, figure in RATES.items():
                    if subject != "penstock" or kind != "penstock_ratio":
                        meaning = f"{name}, {title}: {figure.meaning}"
                        key = f"throughput.{workload}.{subject}.{kind}"
                        found[key] = Figure(meaning, figure.format)
    for part, entries in _PARTS.items():
        found |= {f"{part}.{name}": figure for name, figure in entries.items()}
    return found


def to_text(value: object, format_name: str) -> str:
    """One figure as a document shows it; raises ValueError for a format that does not fit."""
    if value is None:
        return NOT_MEASURED
    if isinstance(value, str):
        return format(value, format_name if format_name != "short" else "")
    assert isinstance(value, int | float)
    match format_name:
        case "rate":
            return format_rate(value)
        case "ratio":
            return format_ratio(value)
        case "short":
            return f"{value:,.0f}" if abs(value) >= 100 else f"{float(f'{value:.3g}'):g}"
        case _:
            return format(value, format_name)
