"""Try a rqsched that is installed here with `all`, and nothing of the repository: `CLEAN/bin/python -I installed.py`.

The release workflow and `tests/system/acceptance/test_release.py` run it in clean venvs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from contextlib import closing
from importlib.metadata import version
from pathlib import Path

import django
from django.conf import settings
from django.core.management import call_command

import rqsched
from rqsched import Every, Scheduler, workflow
from rqsched.embedded import stop
from rqsched.http import create_app
from rqsched.testing import run_schedule


@workflow("double")
def double(number: int) -> int:
    return 2 * number


def main() -> None:
    folder = Path.cwd()
    assert Path(rqsched.__file__).is_relative_to(sys.prefix), f"{rqsched.__file__} is not the one that was installed"

    with closing(Scheduler(data_dir=folder)) as scheduler:
        scheduler.create("double", double, Every("1h"), args=[21])
        assert run_schedule(scheduler, "double").result == 42
        assert "/schedules" in create_app(scheduler).openapi()["paths"].__str__()

    command = Path(sys.executable).with_name("rqsched")
    told = subprocess.run([command, "list"], check=True, capture_output=True, text=True).stdout
    assert "double" in told

    settings.configure(
        BASE_DIR=folder,
        INSTALLED_APPS=["rqsched.contrib.django"],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": folder / "project.db"}},
    )
    django.setup()
    call_command("migrate", verbosity=0)
    call_command("rqsched", "list")
    print(f"rqsched {version('rqsched')} works on Python {sys.version.split()[0]} with Django {django.__version__}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        os.environ["RQSCHED_DATA_DIR"] = folder
        try:
            main()
        finally:
            stop(Path(folder))
