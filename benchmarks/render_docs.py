"""Write the tables of docs/*.md from the records in results/.

    python benchmarks/render_docs.py

A table stands between ``<!-- table: NAME -->`` and ``<!-- /table -->``. The names are those of `tikas.paper.render` and
of `tables` below. Where a figure has several records, the last one counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import mean, stdev

from common import RESULTS
from processes import efficiency_table, h200, traffic_table
from tikas.paper.experiments import EXPERIMENTS, select
from tikas.paper.records import Record, Records, read_records
from tikas.paper.render import MISSING, all_tables, fill_pages, markdown_table

PAGES = sorted((RESULTS.parent / "docs").glob("*.md"))

NETWORKS = {
    "small_gamma": "Conv-Small, Γ-model",
    "small_full": "Conv-Small, full ladder",
    "large_gamma": "Conv-Large, Γ-model",
    "conv_fc": "Conv-FC, full ladder",
    "conv_small, Γ": "Conv-Small, Γ-model",
    "conv_small, full": "Conv-Small, full ladder",
    "conv_large, Γ": "Conv-Large, Γ-model",
    "conv_fc, full": "Conv-FC, full ladder",
}
"""Names of networks in results/convolutions.jsonl, and in results/bench.jsonl."""


def last(records: Iterable[Record], **values: object) -> Record | None:
    """Return the last record that has these values."""
    found = [each for each in records if all(each.get(name) == value for name, value in values.items())]
    return found[-1] if found else None


def milliseconds(record: Record | None, places: int = 3) -> str:
    """Return the milliseconds of a record as text."""
    return MISSING if record is None else f"{record['ms']:.{places}f}"


def gpu_table() -> str:
    """Milliseconds per update and seed on a GPU, by the number of seeds and the engine."""
    before, records = read_records(RESULTS / "ensemble-before-layout.jsonl"), read_records(RESULTS / "ensemble.jsonl")
    one_stream = [record for record in records if record["revision"] == "a5259285970e"]
    rows = []
    for members in (1, 4, 10, 40):
        found = [last(each, members=members) for each in (before, one_stream, records)]
        rows.append([str(members), *map(milliseconds, found)])
    header = ["seeds", "compiled, TF32", "fused kernels on one stream", "fused kernels on several streams"]
    return markdown_table(header, rows, text_columns=0)


def cpu_table() -> str:
    """Milliseconds per update on each CPU: plain PyTorch, one seed, and a seed of four."""
    records = [each for each in read_records(RESULTS / "bench.jsonl") if "NVIDIA" not in each["hardware"]]
    rows = []
    for hardware in dict.fromkeys(each["hardware"] for each in records if each["benchmark"] == "engine"):
        own = [each for each in records if each["hardware"] == hardware]
        engine = [each for each in own if each["benchmark"] in ("engine", "ensemble")]
        plain = last(engine, what="plain PyTorch")
        one = last([each for each in engine if each["what"] in ("engine", "1 seed") and each.get("against")])
        four = last(engine, what="4 seeds")
        ratio = f"{one['ratio']:.1f}" if one else MISSING
        rows.append([hardware, milliseconds(plain, 1), milliseconds(one, 1), ratio, milliseconds(four, 1)])
    header = ["", "plain PyTorch", "one seed", "times as fast", "per seed of four"]
    return markdown_table(header, rows)


def convolution_table() -> str:
    """Milliseconds per update and seed of the convolutional networks on a GPU."""
    rows = []
    for record in read_records(RESULTS / "convolutions.jsonl"):
        network = NETWORKS[record["network"]] + (", float32" if record["precision"] == "exact" else "")
        rows.append([network, str(record["members"]), f"{record['ms_per_update_and_seed']:.2f}", record["revision"]])
    for record in read_records(RESULTS / "bench.jsonl"):
        if record["benchmark"] == "convolutions" and "NVIDIA" in record["hardware"]:
            members = str(record.get("members", 1))
            rows.append([NETWORKS[record["what"]], members, milliseconds(record, 2), record["revision"]])
    return markdown_table(["", "seeds", "ms", "revision"], sorted(rows))


def digits_table() -> str:
    """Test errors on the digits with 50 labels."""
    rows = []
    for record in read_records(RESULTS / "digits-50-labels.jsonl"):
        error = f"{mean(record['errors']):.2f} ± {stdev(record['errors']):.2f}"
        rows.append([f"`{record['method']}`", record["setting"], error, f"{record['seconds']:.2f}"])
    return markdown_table(["method", "best setting", "test error, %", "seconds per fit"], rows, text_columns=2)


def evaluation_table() -> str:
    """Seconds of calibration and evaluation, and their share of the training."""
    records = [each for each in read_records(RESULTS / "bench.jsonl") if each["benchmark"] == "evaluation"]
    rows = []
    for what in sorted({each["what"] for each in records if "after" in each["what"]}):
        record = last(records, what=what)
        if record and ("epochs_between" in record or "after training" in what):
            name = what if what.startswith(("digits", "mnist")) else f"mnist, {what}"
            seconds, share = f"{record['seconds']:.2g}", f"{100 * record['share_of_training']:.2f}"
            rows.append([name, record["hardware"], seconds, share])
    return markdown_table(["", "hardware", "seconds", "% of training"], rows, text_columns=2)


def start_table() -> str:
    """Seconds until the end of the first updates, for the first and the second start on a machine."""
    records = [each for each in read_records(RESULTS / "bench.jsonl") if each["benchmark"] == "starts"]
    rows = []
    for shape in dict.fromkeys(each["what"].rpartition(", ")[0] for each in records):
        first, second = (last(records, what=f"{shape}, {which} start") for which in ("first", "second"))
        if first and second:
            seconds = [f"{each['seconds']:.1f}" for each in (first, second)]
            rows.append([shape, *seconds, second["hardware"], second["revision"]])
    return markdown_table(["", "first start", "second start", "hardware", "revision"], rows)


def soak_table() -> str:
    """Kills by SIGKILL that each kind of training survived."""
    records = [each for each in read_records(RESULTS / "soak.jsonl") if not each["quick"]]
    rows = []
    for what in dict.fromkeys(each["what"] for each in records):
        record = last(records, what=what)
        counts = [str(record[name]) for name in ("kills", "while_writing", "survived", "finished")] if record else []
        rows.append([what, *counts])
    return markdown_table(["", "kills", "while writing a file", "survived", "runs compared"], rows)


def processes_table() -> str:
    """Milliseconds per update of one process and of two, and what sharing adds to the processor time."""
    records = read_records(RESULTS / "processes.jsonl")
    rows = []
    for count in sorted({each["rows"] for each in records}):
        one, two = (last(records, what=what, rows=count) for what in ("1 process", "2 processes"))
        if one and two:
            ratios = [f"{two['ratio']:.2f}", f"{two['cpu_ratio']:.2f}", f"{two['load']:.0f}"]
            rows.append([str(count), milliseconds(one, 0), milliseconds(two, 0), *ratios])
    header = [
        "rows of each kind",
        "1 process, ms",
        "2 processes, ms",
        "times as fast",
        "processor time",
        "load average",
    ]
    return markdown_table(header, rows, text_columns=0)


def streaming_table() -> str:
    """What was promised of streamed rows and of memory, and what was measured."""
    records = [each for each in read_records(RESULTS / "streaming.jsonl") if not each["quick"]]
    speed, fit = last(records, what="speed"), last(records, what="fit to a file")
    large, sparse = last(records, what="10,000,000 x 20"), last(records, what="sparse 20,000 x 50,000, 1 %")
    rows = [
        ["speed on a file of 10 GB, in memory = 1", "0.8 or more", f"{speed['ratio']:.2f}" if speed else MISSING],
        ["peak memory of a fit to it", "under 2 GB", f"{fit['peak_mb'] / 1000:.2f} GB" if fit else MISSING],
        [
            "10 million × 20 in memory, times the data",
            "1.5 or less",
            f"{large['times_the_data']:.2f}" if large else MISSING,
        ],
        [
            "peak memory of a fit to a sparse 20,000 × 50,000",
            "under 4 GB",
            f"{sparse['peak_mb'] / 1000:.2f} GB" if sparse else MISSING,
        ],
    ]
    return markdown_table(["", "wanted", "measured"], rows)


def streaming_memory_table() -> str:
    """Peak memory of fits, by what they were given."""
    records = [each for each in read_records(RESULTS / "streaming.jsonl") if not each["quick"]]
    rows = []
    for what in dict.fromkeys(each["what"] for each in records if "peak_mb" in each):
        record = last(records, what=what)
        if record:
            megabytes = [f"{record[name]:.0f}" for name in ("peak_mb", "more_than_before_mb")]
            rows.append([what, f"{record['gigabytes']:.3g}", *megabytes])
    return markdown_table(["rows", "GB as float32", "peak, MB", "above before, MB"], rows)


def streaming_speed_table() -> str:
    """Milliseconds per update on rows in a file and in memory."""
    rows = []
    for record in read_records(RESULTS / "streaming.jsonl"):
        if record["what"] == "speed" and not record["quick"]:
            times = [f"{record['ms']:.2f}", f"{record['ms_in_memory']:.2f}", f"{record['ratio']:.2f}"]
            sizes = [f"{record['gigabytes']:.1f}", f"{record['gigabytes_from_disk']:.1f}"]
            rows.append([record["hardware"], *sizes, *times])
    header = ["hardware", "GB in the file", "read from the disk", "ms, file", "ms, in memory", "speed"]
    return markdown_table(header, rows)


def statistics_table(records: Records) -> str:
    """Test errors with statistics of all training rows and of the labeled rows alone, for the same members."""
    names = ["text/full/50", "table1/full/100", "table1/full/1000", "table2/small-gamma/100", "table3/large-gamma/4000"]
    rows = []
    for experiment in select(EXPERIMENTS, names):
        measurement = records.measurement(experiment.key)
        summaries = [measurement.summary, measurement.labeled] if measurement else [None, None]
        errors = [MISSING if summary is None else summary.text() for summary in summaries]
        rows.append([f"`{experiment.name}`", experiment.data, str(experiment.labels), *errors])
    header = ["experiment", "data", "labels", "all training rows", "labeled rows alone"]
    return markdown_table(header, rows, text_columns=2)


def export_table() -> str:
    """How far exported models are from the estimators, on 1,000 rows that were not trained on."""
    rows = []
    for record in read_records(RESULTS / "export.jsonl"):
        if record["benchmark"] == "export":
            differences = [f"{record[name]:.1e}" for name in ("difference", "torch_export_difference")]
            sizes = [record["onnx_bytes"], record.get("safetensors_bytes")]  # a module of a user cannot be saved
            rows.append(
                [record["what"], *differences, *("" if size is None else f"{size / 1000:,.0f}" for size in sizes)]
            )
    header = ["model", "onnxruntime", "torch.export", "kB of ONNX", "kB of safetensors"]
    return markdown_table(header, rows, text_columns=1)


def latency_table() -> str:
    """Milliseconds to predict one row and 1,000 rows, and the size of the file."""
    found = [record for record in read_records(RESULTS / "export.jsonl") if record["benchmark"] == "latency"]
    rows = []
    for name in ("onnxruntime", "tikas", "MLPClassifier"):
        own = {record["rows"]: record for record in found if record["what"].startswith(name)}
        cells = [f"{own[count]['ms']:.3g} ({own[count]['ratio']:.2f})" for count in (1, 1000)]
        rows.append([name, *cells, f"{own[1]['bytes'] / 1000:,.0f}"])
    return markdown_table(["way", "one row, ms", "1,000 rows, ms", "kB"], rows, text_columns=1)


def tables(records: Records) -> dict[str, str]:
    """Return all tables by name."""
    return all_tables(records) | {
        "gpu-speed": gpu_table(),
        "cpu-speed": cpu_table(),
        "convolution-speed": convolution_table(),
        "digits": digits_table(),
        "evaluation": evaluation_table(),
        "export": export_table(),
        "latency": latency_table(),
        "processes": processes_table(),
        "processes-efficiency": efficiency_table(h200()),
        "processes-traffic": traffic_table(),
        "soak": soak_table(),
        "starts": start_table(),
        "streaming": streaming_table(),
        "streaming-memory": streaming_memory_table(),
        "streaming-speed": streaming_speed_table(),
        "statistics": statistics_table(records),
    }


def main() -> None:
    fill_pages(PAGES, tables(Records.read(RESULTS)))


if __name__ == "__main__":
    main()
