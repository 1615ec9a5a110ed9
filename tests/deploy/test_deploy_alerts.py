"""deploy/prometheus/alerts.yaml over time: which alerts fire for which series, and when.

The program of Prometheus evaluates the rules. Each case is a number of series with one sample each
minute, in its notation: `0+2x60` rises by 2 for 60 minutes, `1x30` stays 1 for 30 minutes.
"""

import shutil
import subprocess
from pathlib import Path

import pytest

FILE = Path(__file__).parents[2] / "deploy" / "prometheus" / "alerts.yaml"
TARGET = 'job="chunkflow", instance="a:9090"'
INFER = f'{TARGET}, stage="infer"'
INFO = (f'chunkflow_worker_info{{{TARGET}, run="r"}}', "1x300")
BEGUN = f"chunkflow_process_tasks{{{TARGET}}}"
DONE = f'chunkflow_tasks_total{{{INFER}, outcome="done"}}'
GIVEN_UP = f'chunkflow_tasks_total{{{INFER}, outcome="given up"}}'
FAILURES = f"chunkflow_failures_total{{{INFER}}}"
NETWORK, PROCESS = (f"chunkflow_{name}_seconds_total{{{INFER}}}" for name in ("network", "process"))
LOST = f"chunkflow_leases_lost_total{{{TARGET}}}"
PROCESSES, HELD = (f"chunkflow_{name}{{{TARGET}}}" for name in ("processes", "leases_held"))
REFUSED = f'chunkflow_parts_refused_total{{{INFER}, reason="checksum"}}'


def cause(name):
    """Return the series of failures with a cause."""
    return f'chunkflow_failure_causes_total{{{INFER}, cause="{name}"}}'


# series, minutes at which nothing fires, minutes at which the alert fires, and the alert
CASES = [
    ([(f"up{{{TARGET}}}", "1x9 0x30")], [9, 14], [16, 30], "ChunkflowWorkerDown"),
    ([('up{job="other", instance="b"}', "0x60")], [30], [], None),
    (
        [INFO, (BEGUN, "3x300"), (DONE, "0+1x60 60x200")],
        [30, 110], [130, 200], "ChunkflowNoTaskRecorded",
    ),
    # Tasks that take half an hour, and a worker that has no tasks.
    ([INFO, (BEGUN, "3x300"), (DONE, "0x29 1x29 2x29 3x29 4x29 5x29")], [90, 150], [], None),
    ([INFO, (BEGUN, "0x300"), (DONE, "5x300")], [130, 250], [], None),
    ([(GIVEN_UP, "0x30 1x60")], [30, 60], [33, 40], "ChunkflowTasksGivenUp"),
    ([(FAILURES, "0+1x90"), (DONE, "0+10x90")], [8], [45], "ChunkflowManyFailures"),
    ([(FAILURES, "0+1x90"), (DONE, "0+50x90")], [45, 80], [], None),
    ([(cause("hang"), "0x10 1x120")], [10, 100], [12, 60], "ChunkflowTasksHang"),
    ([(cause("host-memory"), "0x10 1x120")], [10], [12], "ChunkflowOutOfMemory"),
    ([(cause("gpu-memory"), "0x10 1x120")], [10], [12], "ChunkflowOutOfMemory"),
    ([(cause("faulty-device"), "0x10 1x120")], [10], [12], "ChunkflowFaultyDevice"),
    ([(cause("preempted"), "0+5x120")], [60], [], None),
    ([(LOST, "0+1x60")], [2], [31], "ChunkflowLeasesLost"),
    ([(LOST, "0x20 2x60")], [30], [], None),
    ([(NETWORK, "0+20x120"), (PROCESS, "0+60x120")], [25], [70], "ChunkflowNetworkIdle"),
    ([(NETWORK, "0+50x120"), (PROCESS, "0+60x120")], [70], [], None),
    ([(NETWORK, "0x120"), (PROCESS, "0+60x120")], [70], [], None),  # a step without a network
    ([(PROCESSES, "0x60"), (HELD, "2x60")], [14], [16], "ChunkflowNoProcess"),
    ([(PROCESSES, "0x60"), (HELD, "0x60")], [30], [], None),
    ([(REFUSED, "0+1x90")], [5], [60], "ChunkflowDamagedParts"),
    ([(REFUSED, "0x9 5x90")], [30], [], None),
]  # fmt: skip


def evaluate(tmp_path, rules, cases):
    """Let Prometheus evaluate rules for such cases; return what it prints, and its exit code."""
    import yaml

    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed; apt-get install prometheus")
    tests = []
    for series, quiet, firing, alert in cases:
        moments = [(minute, None) for minute in quiet] + [(minute, alert) for minute in firing]
        tests.append({
            "interval": "1m",
            "input_series": [{"series": name, "values": values} for name, values in series],
            "promql_expr_test": [
                {
                    "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                    "eval_time": f"{minute}m",
                    "exp_samples": [
                        {"labels": f'{{alertname="{name}"}}', "value": 1} for name in [name] if name
                    ],
                }
                for minute, name in moments
            ],
        })  # fmt: skip
    content = {"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": tests}
    path = tmp_path / "alerts_test.yaml"
    path.write_text(yaml.safe_dump(content))
    done = subprocess.run(
        [promtool, "test", "rules", path], capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr, done.returncode


def test_every_rule_has_a_case_in_which_it_fires():
    """No rule is left out."""
    import yaml

    (group,) = yaml.safe_load(FILE.read_text())["groups"]
    assert {alert for *_, firing, alert in CASES if firing} == {r["alert"] for r in group["rules"]}


@pytest.mark.parametrize("case", CASES, ids=[f"{n}-{case[3]}" for n, case in enumerate(CASES)])
def test_alerts_fire_when_they_should(case, tmp_path):
    """Only this alert, only in the minutes in which it should."""
    said, code = evaluate(tmp_path, FILE, [case])
    assert code == 0, said


def test_a_wrong_limit_is_noticed(tmp_path):
    """The same cases fail if a rule fires too late."""
    rules = tmp_path / "rules.yaml"
    rules.write_text(FILE.read_text().replace("for: 5m", "for: 50m", 1))
    said, code = evaluate(tmp_path, rules, CASES[:1])
    assert code != 0
    assert "ChunkflowWorkerDown" in said
