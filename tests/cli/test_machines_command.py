"""`linkwise machines` shows the recorded machines and where they were seen."""

from click.testing import CliRunner

from linkwise.cli.__main__ import main
from linkwise.topology.machine.recorded import machine_names, read_machine_file, recorded_machine


def test_the_list_has_every_machine() -> None:
    answer = CliRunner().invoke(main, ["machines"])
    assert answer.exit_code == 0
    names = [line.split()[0] for line in answer.stdout.splitlines()]
    assert names == ["NAME", *machine_names()]


def test_one_machine_is_shown_with_source_matrix_and_labels() -> None:
    answer = CliRunner().invoke(main, ["machines", "a100-pcie-8-bridged"])
    assert "source  real: NVIDIA/k8s-device-plugin#546\n" in answer.stdout
    assert "GPU0   X    SYS   NV12  SYS   SYS" in answer.stdout
    assert "  linkwise.dev/nvlink: NV12\n" in answer.stdout


def test_what_it_prints_as_json_is_a_machine_file() -> None:
    answer = CliRunner().invoke(main, ["machines", "dgx-a100", "-o", "json"])
    assert read_machine_file(answer.stdout) == recorded_machine("dgx-a100")


def test_an_unknown_name_is_refused_in_one_line() -> None:
    answer = CliRunner().invoke(main, ["machines", "dgx2"])
    assert answer.exit_code == 2
    assert answer.stderr == (
        "linkwise: dgx2: no recorded machine of that name; did you mean dgx2-v100?; "
        "see `linkwise machines`\n"
    )
