"""Reads published traces of jobs as the rows that `jobs_csv` reads.

- Helios, of SenseTime (Hu et al., SC 2021): Helios/training_data/helios_data_training.csv of
  github.com/DIR-LAB/Gen-Parallel-Workloads. 10,796 of its 15,000 jobs have GPUs.
- Kalos, of Shanghai AI Lab (Hu et al., NSDI 2024): data/converted_trace/
  converted_kalos_trace.csv of github.com/hyunnnchoi/AcmeTrace. The completed jobs that train.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

Row = Mapping[str, str | None]
Rows = Iterator[Row | None]
"""Each line as `jobs_csv` would have it; None: no job that uses GPUs."""


def reader_of(columns: Sequence[str]) -> Callable[[Iterator[Row]], Rows] | None:
    """The reader of the published trace that has these columns; None: it is none."""
    return next((read for needed, read in _READERS if needed <= {*columns}), None)


def _helios(rows: Iterator[Row]) -> Rows:
    """`interval` is the time since the job before, also where that one had no GPUs."""
    submit = 0.0
    for number, row in enumerate(rows):
        submit += _number(row, "interval")
        gpus, nodes = _number(row, "gpu_num"), _number(row, "node_num")
        yield (
            None
            if gpus < 1
            else {
                "job_id": f"helios-{number}",
                "submit_s": f"{submit:.0f}",
                "duration_s": row["run_time"],
                "num_gpus": f"{gpus:.0f}",
                "gpus_per_pod": f"{gpus / max(nodes, 1):.0f}",
                "vc": f"user-{row['user']}",
            }
        )


def _kalos(rows: Iterator[Row]) -> Rows:
    for row in rows:
        pods, per_pod = _number(row, "gpu_workers"), _number(row, "gpu_per_worker")
        seconds = _number(row, "num_iteration") * _number(row, "iteration_computing_time")
        yield {
            "job_id": f"kalos-{row['job_id']}",
            "submit_s": row["arrival_time"],
            "duration_s": f"{seconds}",
            "num_gpus": f"{pods * per_pod:.0f}",
            "gpus_per_pod": f"{per_pod:.0f}",
        }


def _number(row: Row, column: str) -> float:
    """What is no number is refused as what is made of it is."""
    try:
        return float(row[column] or "nan")
    except ValueError:
        return float("nan")


_READERS: tuple[tuple[set[str], Callable[[Iterator[Row]], Rows]], ...] = (
    ({"user", "gpu_num", "node_num", "interval", "run_time"}, _helios),
    (
        {
            "job_id",
            "arrival_time",
            "num_iteration",
            "iteration_computing_time",
            "gpu_workers",
            "gpu_per_worker",
        },
        _kalos,
    ),
)
