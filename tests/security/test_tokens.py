"""Secrets stay where they were put: on no command line but the user's own, in no file that others can read."""

import os
import secrets
import stat

import pytest

from study.errors import TrackingError
from study.mirrors.process import MirrorProcess
from tests.security.watching import files_with
from tests.synthetic import append, make_folder, opened, whole_trial

SECRETS = ("token", "password", "bearer", "credentials")


def secret(run, name: str) -> str:
    return run.watched.token if name == "token" else run.planted[name]


@pytest.mark.minutes
def test_the_private_ray_has_a_token_of_its_own(run):
    assert len(run.watched.token) >= 32
    assert not (run.watched.place / "home" / ".ray").exists(), "Ray's own token file lives longer than the study"


@pytest.mark.minutes
@pytest.mark.parametrize("name", SECRETS)
def test_no_process_that_a_study_starts_has_a_secret_on_its_command_line(run, name):
    lines = run.watched.commands
    assert any("study.mirrors.process" in line for line in lines), "the look at the processes is blind"
    assert any("raylet" in line for line in lines)
    with_secret = [line for line in lines if secret(run, name) in line]
    # The person typed the tracking URI with its password; it is on the driver's own command line, and on no other.
    assert all("run_study.py" in line and name == "password" for line in with_secret), with_secret


@pytest.mark.minutes
@pytest.mark.parametrize("name", SECRETS)
def test_no_file_holds_a_secret_but_the_study_s_identity(run, name):
    seen = run.watched
    assert seen.code == 0, seen.output
    found = files_with(secret(run, name), seen.place)
    allowed = [seen.study / "study.json"] if name == "password" else []  # a resume must find MLflow again
    assert found == allowed
    for file in found:
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.minutes
def test_others_can_look_neither_into_the_study_nor_into_ray_s_folder(run):
    seen = run.watched
    assert stat.S_IMODE(seen.study.stat().st_mode) == 0o700
    assert seen.ray_folder_mode == 0o700
    assert os.listdir(seen.study)  # noqa: PTH208 (there is something to hide)


@pytest.mark.heavy
@pytest.mark.parametrize("scheme", ["http://someone:{}@127.0.0.1:9", "postgresql://someone:{}@127.0.0.1:9/mlflow"])
def test_a_mirror_that_reaches_nothing_tells_no_password(tmp_path, scheme):
    password = f"PLANTED-{secrets.token_hex(8)}"
    uri = scheme.format(password)
    folder = make_folder(tmp_path / "study", uri)
    append(folder, opened(), *whole_trial(0))
    mirror = MirrorProcess(folder)
    with pytest.raises(TrackingError) as refused:
        mirror.wait_ready("mlflow", timeout_s=20)
    report, _ = mirror.finish(timeout_s=1)
    assert report.behind > 0
    assert password not in f"{refused.value} {report.reason}"
    assert folder.mirror_log.stat().st_size > 0
    assert files_with(password, tmp_path) == [folder.identity_file]
