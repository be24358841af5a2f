"""OpenMP is told how to wait before torch is loaded, and never over what the user has set."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from vitrail.cli import openmp
from vitrail.cli.openmp import prepare_openmp, waiting_settings, why_threads
from vitrail.cores import Cores, usable_cores

ALL = Cores(8, 8)
OURS = {name: value for name, (value, _) in openmp.WAITING.items()}
SETTINGS = ("GOMP_SPINCOUNT", "KMP_BLOCKTIME", "KMP_LIBRARY", "OMP_WAIT_POLICY", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
# The command line as it is installed; when torch is looked for, what stands in the environment is printed.
PROGRAM = f"""
import os, sys

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            print({{each: os.environ.get(each) for each in {SETTINGS}}}, file=sys.stderr)
            sys.meta_path.remove(self)
            if os.environ.get("ENOUGH"):
                os._exit(0)

sys.meta_path.insert(0, Watch())
sys.argv = ["vitrail", "inspect", "vit-mini8-64"]
from vitrail.cli import main
main()
"""


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openmp, "ours", {})


def prepared(environment: dict[str, str], cores: Cores = ALL) -> dict[str, str]:
    prepare_openmp(environment, cores)
    return environment


def inspected(**given: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in SETTINGS} | given
    command = [sys.executable, "-c", PROGRAM]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600, check=True)


def test_it_is_set_before_torch_loads_and_read_by_its_runtime() -> None:
    ran = inspected(OMP_DISPLAY_ENV="VERBOSE")
    expected = prepared({}, usable_cores())
    assert str({name: expected.get(name) for name in SETTINGS}) in ran.stderr
    if list((Path(torch.__file__).parent / "lib").glob("libgomp*")):
        assert f"GOMP_SPINCOUNT = '{OURS['GOMP_SPINCOUNT']}'" in ran.stderr


def test_what_the_user_has_set_stays() -> None:
    given = {"OMP_WAIT_POLICY": "passive", "MKL_NUM_THREADS": "1"}
    ran = inspected(**given, ENOUGH="1")
    assert str({name: given.get(name) for name in SETTINGS}) in ran.stderr


def test_every_setting_of_the_user_keeps_its_meaning() -> None:
    assert prepared({}) == OURS
    assert prepared({"GOMP_SPINCOUNT": "infinite"}) == OURS | {"GOMP_SPINCOUNT": "infinite"}
    assert prepared({"KMP_BLOCKTIME": "200"}) == OURS | {"KMP_BLOCKTIME": "200"}
    spins = {"GOMP_SPINCOUNT": OURS["GOMP_SPINCOUNT"]}
    assert prepared({"KMP_LIBRARY": "turnaround"}) == {"KMP_LIBRARY": "turnaround"} | spins
    for policy in ("active", "passive", ""):
        assert prepared({"OMP_WAIT_POLICY": policy}) == {"OMP_WAIT_POLICY": policy}


def test_threads_are_set_where_a_limit_leaves_less_than_the_cores_have() -> None:
    assert "OMP_NUM_THREADS" not in prepared({}, Cores(64, 8))  # torch knows what it is bound to
    assert "OMP_NUM_THREADS" not in prepared({}, Cores(8, 8, 7.9))
    limited = Cores(8, 8, 2.5)
    assert prepared({}, limited)["OMP_NUM_THREADS"] == "3"
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        assert prepared({name: "8"}, limited) == OURS | {name: "8"}


def test_the_reasons_are_told() -> None:
    spins = f"GOMP_SPINCOUNT={OURS['GOMP_SPINCOUNT']}"
    assert why_threads(prepared({})) == "one a core"
    assert why_threads(prepared({"OMP_NUM_THREADS": "8"}, Cores(8, 8, 2.5))) == "set by OMP_NUM_THREADS=8"
    assert waiting_settings(prepared({"KMP_LIBRARY": "serial"})) == f"{spins}, KMP_LIBRARY=serial (yours)"
    assert why_threads(prepared({}, Cores(8, 8, 2.5))) == "what the control groups leave"
    assert waiting_settings({}) == "as the runtime does by itself"


def test_what_is_set_is_what_the_page_says() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "environment.md").read_text("utf-8")
    for name, (value, _) in openmp.WAITING.items():
        assert f"| `{name}` | `{value}` " in page
