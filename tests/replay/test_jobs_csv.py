"""What a trace of jobs may contain. A refusal names file, line, what was found and what was
expected."""

from dataclasses import replace
from pathlib import Path

import pytest

from bench.replay.errors import TraceError
from bench.replay.traces.jobs_csv import Reading, read_jobs
from tests.replay.made_up import fleet

HEAD = "job_id,submit_s,duration_s,num_gpus,vc"
TWO_NODES = Reading(fleet(2), gpus_per_pod=8)


def written(folder: Path, *lines: str, head: str = HEAD) -> Path:
    file = folder / "trace.csv"
    file.write_text("\n".join([head, *lines]) + "\n")
    return file


def test_jobs_come_by_time_of_submission_and_equal_ones_in_the_order_of_the_file(
    tmp_path: Path,
) -> None:
    file = written(tmp_path, "late,9,5,1,a", "first,2,5,16,b", "second,2,0,1,")
    jobs = read_jobs(file, TWO_NODES)
    assert [job.name for job in jobs] == ["first", "second", "late"]
    assert (jobs[0].gpus, jobs[0].pods, jobs[0].namespace) == (16, (8, 8), "b")
    assert (jobs[1].seconds, jobs[1].namespace, jobs[1].expected) == (0.0, "default", None)


def test_what_a_line_says_of_its_pods_and_its_run_time_goes_before_the_options(
    tmp_path: Path,
) -> None:
    head = "job_id,submit_s,duration_s,num_gpus,namespace,gpus_per_pod,expected_s,more"
    file = written(tmp_path, "a,0,50,6,x,4,70,?", "b,0,50,6,x,,,?", head=head)
    with_words, without = read_jobs(file, replace(TWO_NODES, gpus_per_pod=2, durations_known=True))
    assert (with_words.pods, with_words.expected) == ((4, 2), 70.0)
    assert (without.pods, without.expected) == ((2, 2, 2), 50.0)


def test_a_file_as_spreadsheets_write_it(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_bytes(f"{HEAD}\r\na,0,5,1,v\r\n".encode("utf-8-sig"))
    assert [job.name for job in read_jobs(file, TWO_NODES)] == ["a"]


def test_a_window_is_cut_by_submission_and_long_jobs_are_cut_too(tmp_path: Path) -> None:
    file = written(tmp_path, *(f"j{at},{at},500,1,a" for at in range(0, 60, 10)))
    window = replace(TWO_NODES, begin=10.0, end=50.0, first=3, longest=200.0)
    jobs = read_jobs(file, window)
    assert [job.submit for job in jobs] == [10.0, 20.0, 30.0]
    assert {job.seconds for job in jobs} == {200.0}


def test_jitter_submits_later_and_keeps_the_jobs_of_the_window(tmp_path: Path) -> None:
    file = written(tmp_path, *(f"j{at},{at},500,1,a" for at in range(0, 60, 10)))
    window = replace(TWO_NODES, begin=10.0, first=3, jitter=25.0)
    drawn = [read_jobs(file, replace(window, seed=seed)) for seed in range(20)]
    for jobs in drawn:
        assert {job.name for job in jobs} == {"j10", "j20", "j30"}
        assert all(0 <= job.submit - float(job.name[1:]) <= 25.0 for job in jobs)
        assert [job.submit for job in jobs] == sorted(job.submit for job in jobs)
    orders = {tuple(job.name for job in jobs) for jobs in drawn}
    assert len(orders) > 1  # jobs overtake each other
    assert read_jobs(file, replace(window, seed=3)) == drawn[3]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("a,1,-5,1,v", r"trace.csv, line 3: duration_s '-5': expected seconds, 0 or more"),
        ("a,nan,5,1,v", "line 3: submit_s 'nan': expected seconds"),
        ("a,,5,1,v", "line 3: submit_s '': expected seconds"),
        ("a,1,inf,1,v", "line 3: duration_s 'inf': expected seconds"),
        ("a,1,5,0,v", "line 3: num_gpus '0': expected a whole number, 1 or more"),
        ("a,1,5,1.5,v", "line 3: num_gpus '1.5': expected a whole number"),
        ("a,1", "line 3: num_gpus '': expected a whole number"),
        ("a,1,5,17,v", "line 3: num_gpus 17: expected a job that fits 2 nodes of 8 GPUs"),
        (",1,5,1,v", "line 3: job_id '': expected a name"),
        ("ok,1,5,1,v", "line 3: job_id 'ok' stands in line 2 too: expected an id once"),
        ('a,1,5,1,"v', "line 3: unexpected end of data: expected comma-separated values"),
    ],
)
def test_a_wrong_line_is_named_with_what_was_expected(tmp_path: Path, line: str, said: str) -> None:
    with pytest.raises(TraceError, match=said):
        read_jobs(written(tmp_path, "ok,0,5,1,v", line), TWO_NODES)


def test_pods_larger_than_a_node_are_refused(tmp_path: Path) -> None:
    file = written(tmp_path, "a,0,5,16,9", head="job_id,submit_s,duration_s,num_gpus,gpus_per_pod")
    with pytest.raises(TraceError, match="line 2: gpus_per_pod 9: expected at most 8"):
        read_jobs(file, TWO_NODES)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"job_id,submit_s,num_gpus\n", "line 1: no column duration_s in: job_id, submit_s"),
        (b"", "line 1: no column job_id in: nothing: expected the columns job_id, submit_s"),
        (HEAD.encode() + b"\n", "no job in the window: expected at least one"),
        (HEAD.encode() + b"\na,1,\xff,1,v\n", "is not UTF-8: expected a text file"),
    ],
)
def test_a_file_that_is_no_trace_is_named(tmp_path: Path, text: bytes, said: str) -> None:
    file = tmp_path / "trace.csv"
    file.write_bytes(text)
    with pytest.raises(TraceError, match=said):
        read_jobs(file, TWO_NODES)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"none.csv: No such file or directory: expected a read"):
        read_jobs(tmp_path / "none.csv", TWO_NODES)


def test_the_published_file_of_helios_has_times_between_jobs_and_jobs_without_gpus(
    tmp_path: Path,
) -> None:
    head = "u_id,user,gpu_num,cpu_num,node_num,interval,run_time,wall_time,new_status"
    lines = ("0,1,1,1,1,5,84,0,Pass", "1,2,0,4,1,10,87,0,Pass", "2,2,16,1,2,20,83,0,Failed")
    jobs = read_jobs(written(tmp_path, *lines, head=head), TWO_NODES)
    assert [(job.submit, job.seconds, job.pods) for job in jobs] == [
        (5.0, 84.0, (1,)),
        (35.0, 83.0, (8, 8)),
    ]
    assert [job.namespace for job in jobs] == ["user-1", "user-2"]


def test_the_published_file_of_kalos_has_iterations(tmp_path: Path) -> None:
    head = (
        "job_id,arrival_time,num_iteration,iteration_computing_time,iteration_networking_time,"
        "gpu_workers,ps,gpu_per_worker"
    )
    file = written(tmp_path, "7,313.0,156,0.5,0.25,2,0,8.0", head=head)
    (job,) = read_jobs(file, TWO_NODES)
    assert (job.submit, job.seconds, job.pods) == (313.0, 78.0, (8, 8))
    file = written(tmp_path, "7,313.0,156,0.5,0.25,two,0,8.0", head=head)
    with pytest.raises(TraceError, match="line 2: num_gpus 'nan': expected a whole number"):
        read_jobs(file, TWO_NODES)


def test_jobs_of_up_to_four_gpus_consent_by_chance_and_once_they_have_run(tmp_path: Path) -> None:
    lines = [f"job-{gpus}-{n},{n},9000,{gpus},v" for gpus in (1, 4, 8) for n in range(40)]
    reading = replace(TWO_NODES, movable=0.5, movable_after=3600.0)
    jobs = read_jobs(written(tmp_path, *lines), reading)
    consent = [job for job in jobs if job.move_cost is not None]
    assert 20 < len(consent) < 60
    assert {job.gpus for job in consent} == {1, 4}
    assert {job.movable_after for job in consent} == {3600.0}
    assert {job.movable_after for job in jobs if job.move_cost is None} == {0.0}
