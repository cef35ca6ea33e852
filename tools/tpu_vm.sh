#!/usr/bin/env bash
# Cloud TPU VMs from creation to deletion: `tools/tpu_vm.sh --help`.
#
# The functions worker_* run on the TPU VM: `on_workers` sends their source with every call, so that a node needs
# nothing of ours before `setup`, and never has another version of them than the caller. They know ~/memjax (source),
# ~/memjax-venv (environment), ~/memjax-bucket (where --bucket is mounted) and ~/memjax-run (the run: command.sh,
# log.txt, pid, exit, stopped; mount.txt has what mounting said).
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
VERBS="create, setup, run, status, logs, kill, delete, babysit"
TYPES="v2-N, v3-N, v4-N, v5litepod-N, v5p-N, v6e-N"

NAME=${TPU_NAME:-}
ZONE=${TPU_ZONE:-}
PROJECT=${TPU_PROJECT:-}
TYPE=${TPU_TYPE:-}
VERSION=${TPU_VERSION:-}
BUCKET=${TPU_BUCKET:-}
SPOT=${TPU_SPOT:-0}
QUEUED=${TPU_QUEUED:-0}
COMMIT=${TPU_COMMIT:-HEAD}
REPOSITORY=${TPU_REPOSITORY:-}
MAX_RECREATIONS=${TPU_MAX_RECREATIONS:-20}
POLL_SECONDS=${TPU_POLL_SECONDS:-60}
MAX_WAIT_SECONDS=${TPU_MAX_WAIT_SECONDS:-1800}
GRACE_SECONDS=${TPU_GRACE_SECONDS:-120}
VERB='' COMMAND=() WORKER=0 FORCE=0 DRY_RUN=0 YES=0
CREATE=(--quiet) CONNECT=(--quiet) # never empty: bash before 4.4 takes an empty array for an unset variable

print_help() {
  cat <<'HELP'
usage: tools/tpu_vm.sh VERB [options] [-- command]

  create   make the node; --spot for spot capacity, --queued to wait in line for it
             tools/tpu_vm.sh create --name lm --zone us-west4-a --type v5litepod-16 --spot
  setup    on all workers: Python 3.11, the repository at a commit, its lock, jax[tpu] of the version in the lock, and
           the bucket, if one is given
             tools/tpu_vm.sh setup --name lm --zone us-west4-a --bucket gs://BUCKET --commit HEAD
  run      the same command on all workers, in tmux; refused while one is running (--force ends that one first)
             tools/tpu_vm.sh run --name lm --zone us-west4-a --bucket gs://BUCKET \
               -- memjax train --config NAME --workdir '~/memjax-bucket/runs'
  status   the node, and of each worker: idle, running, finished, failed CODE, stopped (by kill), lost (by a signal)
             tools/tpu_vm.sh status --name lm --zone us-west4-a
  logs     follow the log of one worker, or of all with their numbers in front
             tools/tpu_vm.sh logs --name lm --zone us-west4-a --worker all
  kill     end the run: SIGTERM, on which memjax saves, and SIGKILL after TPU_GRACE_SECONDS (120)
             tools/tpu_vm.sh kill --name lm --zone us-west4-a
  delete   delete the node, and with --queued its request; asks first, unless --yes is given
             tools/tpu_vm.sh delete --name lm --zone us-west4-a
  babysit  create, setup and run, again whenever the node is taken away, until the command has finished on all workers.
           It resumes if its checkpoints outlive the node: `memjax train` with a --workdir in the bucket
             tools/tpu_vm.sh babysit --name lm --zone us-west4-a --type v5litepod-16 --spot --bucket gs://BUCKET \
               -- memjax train --config NAME --workdir '~/memjax-bucket/runs'

option, and the environment variable that gives its default
  --name NAME            TPU_NAME             the node, and with --queued its request
  --zone ZONE            TPU_ZONE             such as us-west4-a
  --project PROJECT      TPU_PROJECT          default: the project of gcloud
  --type TYPE            TPU_TYPE             v2-8, v3-32, v4-8, v5litepod-16, v5p-8, v6e-8, ...
  --version VERSION      TPU_VERSION          of the runtime; default: the one for TYPE
  --spot                 TPU_SPOT=1           capacity that may be taken back at any time
  --queued               TPU_QUEUED=1         through queued resources
  --bucket gs://BUCKET   TPU_BUCKET           setup and run mount it on all workers at ~/memjax-bucket, with gcsfuse;
                                              the command has this folder also in MEMJAX_BUCKET
  --commit COMMIT        TPU_COMMIT           default: HEAD; what is not committed stays here
  --repository URL       TPU_REPOSITORY       the workers clone it; default: they get a copy of this checkout
  --max-recreations N    TPU_MAX_RECREATIONS  repairs after which babysit gives up; default: 20
  --worker N             0, 1, ... or all     whose log; default: 0
  --create-flag FLAG     for gcloud's create, such as --create-flag=--network=lab; may be repeated
  --connect-flag FLAG    for gcloud's ssh and scp, such as --connect-flag=--internal-ip; may be repeated
  --force                setup and run although a run is going on
  --yes                  delete without a question
  --dry-run              print every command, ready to paste, and execute none
Babysit looks every TPU_POLL_SECONDS (60), doubled with each repair in a row up to TPU_MAX_WAIT_SECONDS (1800).

Exit codes: 0 done, 1 failed, 2 bad arguments; babysit: the command's own, when it failed on a sound node.
HELP
}

say() {
  printf '%s tpu_vm.sh: %s\n' "$(date -u +%FT%TZ)" "$*" >&2
}

refuse() {
  printf 'tpu_vm.sh: %s\n' "${*//$'\n'/ }" >&2
  exit 2
}

# As `printf %q`, but in single quotes: every POSIX login shell reads it, and in --dry-run a script keeps its lines.
quote() {
  local word line='' escaped="'\\''"
  for word; do
    [[ $word =~ ^[A-Za-z0-9_@%+=:,./-]+$ ]] || word="'${word//"'"/$escaped}'"
    line+=" $word"
  done
  printf '%s\n' "${line# }"
}

# Without stdin: ssh would read what was meant for the caller.
execute() {
  if ((DRY_RUN)); then quote "$@"; else "$@" </dev/null; fi
}

# on_workers WORKER FUNCTION [ARGUMENT...]
on_workers() {
  local script helper
  script="set -euo pipefail
$(declare -f "$2")"
  for helper in worker_gcsfuse worker_apt; do # those that call others first
    [[ $script != *" $helper"* ]] || script+=$'\n'$(declare -f "$helper")
  done
  script+=$'\n'$(printf '%q ' "${@:2}")
  execute gcloud compute tpus tpu-vm ssh "$NAME" "${CONNECT[@]}" --worker="$1" --command="bash -c $(quote "$script")"
}

# ---- on the workers

# worker_apt PACKAGE...
worker_apt() {
  local attempt
  local apt=(sudo env DEBIAN_FRONTEND=noninteractive apt-get --quiet --yes -o DPkg::Lock::Timeout=600)
  # A node that has just started updates itself, and holds a lock for which `apt-get update` does not wait.
  for attempt in {1..30}; do
    if "${apt[@]}" update; then break; fi
    echo "$HOSTNAME: apt-get update failed ($attempt of 30)" >&2
    sleep 10
  done
  "${apt[@]}" install "$@"
}

# worker_setup COMMIT REPOSITORY FORCE
worker_setup() {
  local version stamp
  if [[ $3 == 0 ]] && tmux has-session -t =memjax 2>/dev/null; then
    echo "$HOSTNAME: a run is going on, and setup replaces its source: wait, kill it, or give --force" >&2
    return 1
  fi
  # The lock is for Python 3.11. Ubuntu 22.04 has 3.10 and a release candidate of 3.11; deadsnakes has 3.11.
  if ! python3.11 -c 'import ensurepip, venv' 2>/dev/null || ! type make tmux git >/dev/null 2>&1; then
    command -v python3.11 >/dev/null || sudo add-apt-repository --yes --no-update ppa:deadsnakes/ppa
    worker_apt python3.11 python3.11-venv make tmux git
  fi
  rm -rf ~/memjax.new
  mkdir ~/memjax.new
  if [[ -n $2 ]]; then
    git clone --quiet -- "$2" ~/memjax.new
    git -C ~/memjax.new checkout --quiet --detach "$1"
  else
    tar -xzf ~/"memjax-$1.tar.gz" -C ~/memjax.new
    rm ~/"memjax-$1.tar.gz"
  fi
  rm -rf ~/memjax
  mv ~/memjax.new ~/memjax
  # The Makefile installs what has changed: its stamps have the hash of the lock in their names. It removes all stamps
  # when it installs a lock, also the one below, as it should: the lock has another libtpu than jax[tpu] asks for.
  make --no-print-directory -C ~/memjax install VENV="$HOME/memjax-venv" PYTHON=python3.11
  version=$(sed -n 's/^jax==\([0-9.]*\).*/\1/p' ~/memjax/requirements-py311.txt)
  stamp=~/memjax-venv/.stamp-tpu-$version
  if [[ ! -e $stamp ]]; then
    ~/memjax-venv/bin/python -m pip install --quiet --disable-pip-version-check "jax[tpu]==$version" \
      --find-links https://storage.googleapis.com/jax-releases/libtpu_releases.html
    touch "$stamp"
  fi
  echo "$HOSTNAME: memjax ${1:0:12} with jax[tpu] $version"
}

# The way of https://cloud.google.com/storage/docs/cloud-storage-fuse/install, also where an image has a gcsfuse from
# before the flags of `worker_mount`.
worker_gcsfuse() {
  local address=https://packages.cloud.google.com/apt keyring=/usr/share/keyrings/cloud.google.asc key release
  if [[ $(gcsfuse --help 2>&1) == *--metadata-cache-negative-ttl-secs* ]]; then return; fi
  key=$(curl --fail --silent --show-error --location --retry 5 "$address/doc/apt-key.gpg") \
    && release=$(lsb_release -c -s) \
    && sudo tee "$keyring" <<<"$key" \
    && sudo tee /etc/apt/sources.list.d/gcsfuse.list <<<"deb [signed-by=$keyring] $address gcsfuse-$release main" \
    && worker_apt gcsfuse
}

# worker_mount BUCKET
worker_mount() {
  # shellcheck disable=SC2088  # for people
  local folder=~/memjax-bucket log=~/memjax-run/mount.txt shown='~/memjax-bucket' mounted reason
  # In the place of a device stands the bucket, also when gcsfuse has died; then, however, nothing can be listed.
  mounted=$(findmnt --noheadings --output SOURCE --mountpoint "$folder" || true)
  if [[ $mounted != "$1" ]] || ! ls "$folder" >/dev/null 2>&1; then
    mkdir -p ~/memjax-run
    # What one host writes the others look for at once: no metadata is remembered, neither of files that are there (on
    # TPU VMs that would be for ever) nor of those that are not. There is a file cache with --cache-dir only.
    if ! {
      { [[ -z $mounted ]] || fusermount -u "$folder"; } \
        && mkdir -p "$folder" \
        && { [[ -z $(ls -A "$folder") ]] || ! echo "there are files in the folder itself: move them away"; } \
        && worker_gcsfuse \
        && gcsfuse --implicit-dirs --metadata-cache-ttl-secs=0 --metadata-cache-negative-ttl-secs=0 "$1" "$folder"
    } >"$log" 2>&1; then
      reason=$(grep -i error "$log" | tail -n 1) || reason=$(tail -n 1 "$log")
      echo "$HOSTNAME: gs://$1 was not mounted at $shown: $reason" >&2
      return 1
    fi
  fi
  echo "$HOSTNAME: gs://$1 is mounted at $shown"
}

worker_check() {
  if ! compgen -G "$HOME/memjax-venv/.stamp-tpu-*" >/dev/null; then
    echo "$HOSTNAME: not set up: tools/tpu_vm.sh setup" >&2
    return 1
  elif tmux has-session -t =memjax 2>/dev/null; then
    echo "$HOSTNAME: a run is going on: wait, kill it, or give --force" >&2
    return 1
  fi
}

# worker_start BUCKET WORD...
worker_start() {
  # shellcheck disable=SC2329  # command.sh calls it
  worker_session() {
    local child code=0
    cd ~/memjax || return
    exec >>~/memjax-run/log.txt 2>&1
    export PATH=~/memjax-venv/bin:$PATH PYTHONUNBUFFERED=1
    if [[ -n $1 ]]; then export MEMJAX_BUCKET=~/memjax-bucket; fi
    shift
    echo "== $(date -u +%FT%TZ) $HOSTNAME:$(printf ' %q' "$@")"
    # In a session of its own: signals reach the whole command, and not this shell, which has to note how it ended.
    setsid "$@" &
    child=$!
    echo "$child" >~/memjax-run/pid
    trap 'kill -TERM -- "-$child"' HUP INT TERM
    wait "$child" || code=$?
    while kill -0 "$child" 2>/dev/null; do # a signal ended `wait`, and the command may still be saving
      code=0
      wait "$child" || code=$?
    done
    echo "== $(date -u +%FT%TZ) $HOSTNAME: exit code $code"
    echo "$code" >~/memjax-run/exit.part
    mv ~/memjax-run/exit.part ~/memjax-run/exit
  }
  mkdir -p ~/memjax-run
  rm -f ~/memjax-run/{exit,pid,stopped}
  { declare -f worker_session && printf '%q ' worker_session "$@" && echo; } >~/memjax-run/command.sh
  tmux new-session -d -s memjax 'bash ~/memjax-run/command.sh'
}

worker_report() {
  local code='' state=idle
  if [[ -e ~/memjax-run/exit ]]; then code=$(<~/memjax-run/exit); fi
  if tmux has-session -t =memjax 2>/dev/null; then
    state=running
  elif [[ $code == 0 ]]; then
    state=finished
  elif [[ -e ~/memjax-run/stopped ]]; then
    state=stopped
  elif [[ -n $code ]] && ((code < 128)); then
    state="failed $code"
  elif [[ -e ~/memjax-run/command.sh ]]; then
    state="lost${code:+ $code}" # ended by a signal, as when the machine goes down, or without a word
  fi
  echo "memjax-worker $HOSTNAME $state"
}

# worker_follow WORKER
worker_follow() {
  local prefix=''
  if [[ $1 == all ]]; then prefix="${HOSTNAME##*-w-}: "; fi # TPU VMs are called ...-w-NUMBER
  tail -n 100 -F ~/memjax-run/log.txt | sed -u "s/^/$prefix/"
}

# worker_stop SECONDS MARK
worker_stop() {
  local second pid
  mkdir -p ~/memjax-run
  if [[ $2 == mark ]]; then touch ~/memjax-run/stopped; fi # babysit sees that somebody wanted it
  tmux has-session -t =memjax 2>/dev/null || return 0
  pid=$(cat ~/memjax-run/pid 2>/dev/null || true)
  kill -TERM -- "-$pid" 2>/dev/null || true
  for ((second = 0; second < $1; second++)); do
    tmux has-session -t =memjax 2>/dev/null || return 0
    sleep 1
  done
  kill -KILL -- "-$pid" 2>/dev/null || true
  tmux kill-session -t =memjax 2>/dev/null || true
}

# ---- here. What babysit calls is called after `if`, where bash ignores `set -e`: hence && and `|| return`.

create_node() {
  if ((QUEUED)); then
    execute gcloud compute tpus queued-resources create "$NAME" --node-id="$NAME" "${CREATE[@]}" \
      --accelerator-type="$TYPE" --runtime-version="$VERSION"
  else
    execute gcloud compute tpus tpu-vm create "$NAME" "${CREATE[@]}" --accelerator-type="$TYPE" --version="$VERSION"
  fi
}

delete_node() {
  if ((QUEUED)); then # --force: the node goes with its request
    execute gcloud compute tpus queued-resources delete "$NAME" "${PLACE[@]}" --quiet --force
  else
    execute gcloud compute tpus tpu-vm delete "$NAME" "${PLACE[@]}" --quiet
  fi
}

# No answer, as from a script, is no.
confirm_deletion() {
  local answer=''
  if ((YES || DRY_RUN)); then return; fi
  printf 'tpu_vm.sh: delete %s in %s with everything on its disks? [y/N] ' "$NAME" "$ZONE" >&2
  read -r answer || true
  if [[ ! $answer =~ ^[yY]([eE][sS])?$ ]]; then
    printf '%s\n' "$NAME stays; --yes deletes without a question" >&2
    exit 1
  fi
}

setup_workers() {
  local archive=$ROOT/.cache/memjax-$COMMIT.tar.gz
  if [[ -z $REPOSITORY ]]; then
    execute mkdir -p "$ROOT/.cache" \
      && execute git -C "$ROOT" archive --format=tar.gz --output="$archive" "$COMMIT" \
      && execute gcloud compute tpus tpu-vm scp "$archive" "$NAME:" "${CONNECT[@]}" --worker=all || return
  fi
  on_workers all worker_setup "$COMMIT" "$REPOSITORY" "$FORCE" && mount_bucket
}

mount_bucket() {
  [[ -z $BUCKET ]] || on_workers all worker_mount "${BUCKET#gs://}"
}

# Every worker is asked before any is started: a run on some of them would wait for the others for ever. A mount does
# not outlive a reboot.
start_run() {
  if ((FORCE)); then stop_run -; else on_workers all worker_check; fi && mount_bucket && start_command
}

start_command() {
  on_workers all worker_start "$BUCKET" "${COMMAND[@]}"
}

stop_run() {
  on_workers all worker_stop "$GRACE_SECONDS" "$1"
}

show_status() {
  if ((QUEUED)); then
    execute gcloud compute tpus queued-resources describe "$NAME" "${PLACE[@]}" --format='yaml(name,state)'
  fi
  execute gcloud compute tpus tpu-vm describe "$NAME" "${PLACE[@]}" \
    --format='yaml(name,state,health,acceleratorType,runtimeVersion,schedulingConfig)'
  on_workers all worker_report
}

# describe_state KIND KEY: the state, or MISSING. An answer that did not come proves nothing: unknown.
describe_state() {
  if execute gcloud compute tpus "$1" describe "$NAME" "${PLACE[@]}" --format="value($2)" 2>"$ERRORS"; then
    return
  elif grep -q NOT_FOUND "$ERRORS"; then
    echo MISSING
  else
    cat "$ERRORS" >&2
    echo unknown
  fi
}

node_state() {
  local state=ACTIVE
  if ((QUEUED)); then state=$(describe_state queued-resources state.state); fi
  if [[ $state == ACTIVE ]]; then
    state=$(describe_state tpu-vm state)
    if ((QUEUED)); then state=${state/MISSING/PREEMPTED}; fi # the request is still there, and has to be deleted
  fi
  echo "$state"
}

# One state for all workers. A failure counts before what it did to the other workers: it would only repeat itself.
run_state() {
  local report state
  report=$(on_workers all worker_report 2>"$ERRORS") || { report='' && cat "$ERRORS" >&2; }
  for state in stopped 'failed [0-9]+' lost idle running finished; do
    if [[ $report =~ memjax-worker\ [^\ ]+\ ($state) ]]; then echo "${BASH_REMATCH[1]}" && return; fi
  done
  echo unreachable
}

# What is left of the run on some workers ends before their source is replaced.
repair_run() {
  stop_run - && setup_workers && start_command
}

# repair_node STATE. A queued request is served later; the look that finds the node starts the run.
repair_node() {
  if [[ $1 != MISSING ]]; then delete_node || return; fi
  create_node || return
  ((QUEUED)) || repair_run
}

# Brings node and run to where they should be, whatever it finds: it may itself be interrupted and started again.
babysit() {
  # is_new: to create the node, or to start the run on it, is no repair yet.
  local state before='' wait is_new=1 repairs=0 repairs_in_a_row=0
  while true; do
    state=$(node_state)
    if [[ $state == READY ]]; then state=$(run_state); fi
    [[ $state == "$before" ]] || say "$NAME: $state"
    case $state in
      running) repairs_in_a_row=0 ;;
      finished) return 0 ;;
      stopped) say "$NAME: somebody ended the run; the node stays" && return 1 ;;
      failed*) # or the node is being taken away and does not say so yet: the second look decides
        if [[ $before == failed* ]]; then say "$NAME: see its logs; the node stays" && return "${state#failed }"; fi
        ;;
      idle | lost | MISSING | PREEMPTED | TERMINATED | STOPPED | SUSPENDING | SUSPENDED | FAILED)
        if ! ((is_new)) || [[ $state != idle && $state != MISSING ]]; then repairs=$((repairs + 1)); fi
        if ((repairs > MAX_RECREATIONS)); then say "$NAME: gave up after $MAX_RECREATIONS repairs" && return 1; fi
        is_new=0
        repairs_in_a_row=$((repairs_in_a_row + 1))
        if [[ $state == idle || $state == lost ]]; then
          repair_run || say "$NAME: the run did not start"
        elif repair_node "$state"; then
          is_new=$QUEUED
        else
          say "$NAME: was not created, or its run did not start"
        fi
        ;;
    esac
    before=$state
    wait=$((POLL_SECONDS << (repairs_in_a_row < 16 ? repairs_in_a_row : 16)))
    sleep $((wait < MAX_WAIT_SECONDS ? wait : MAX_WAIT_SECONDS))
  done
}

print_cycle() {
  echo "# every $POLL_SECONDS seconds: the state of the node"
  if ((QUEUED)); then describe_state queued-resources state.state; fi
  describe_state tpu-vm state
  echo "# READY: the state of the run"
  on_workers all worker_report
  echo "# finished, stopped, or failed twice: end. lost or idle: start it"
  repair_run
  echo "# PREEMPTED, TERMINATED, STOPPED, SUSPENDING, SUSPENDED or FAILED: recreate; MISSING: the same without deletion"
  repair_node PREEMPTED
  echo "# any other state: wait"
}

# ---- the command line

parse() {
  local option
  while (($#)); do
    if [[ $1 == --*=* ]]; then set -- "${1%%=*}" "${1#*=}" "${@:2}"; fi
    option=$1
    shift
    case $option in
      -h | --help) print_help && exit ;;
      --spot) SPOT=1 ;;
      --queued) QUEUED=1 ;;
      --force) FORCE=1 ;;
      --yes) YES=1 ;;
      --dry-run) DRY_RUN=1 ;;
      --) COMMAND=("$@") && return ;;
      --create-flag | --connect-flag | --name | --zone | --project | --type | --version | --bucket | --commit | \
        --repository | --max-recreations | --worker)
        (($#)) || refuse "$option: given nothing, allowed: $option VALUE"
        case $option in
          --create-flag) CREATE+=("$1") ;;
          --connect-flag) CONNECT+=("$1") ;;
          *) printf -v "$(tr a-z- A-Z_ <<<"${option#--}")" %s "$1" ;; # --name sets NAME
        esac
        shift
        ;;
      -*) refuse "$option: no such option; see --help" ;;
      *)
        [[ -z $VERB ]] || refuse "'$option' after $VERB, allowed: options, and a command after --"
        VERB=$option
        ;;
    esac
  done
}

# require OPTION VALUE PATTERN ALLOWED
require() {
  local given=nothing
  if [[ -n $2 ]]; then given="'$2'"; fi
  [[ $2 =~ ^($3)$ ]] || refuse "$1: given $given, allowed: $4"
}

validate() {
  local name
  require verb "$VERB" "${VERBS//, /|}" "$VERBS; see --help"
  require "--name or TPU_NAME" "$NAME" '[a-z]([-a-z0-9]{0,61}[a-z0-9])?' "a-z, 0-9 and -, at most 63, a letter first"
  require "--zone or TPU_ZONE" "$ZONE" '[a-z]+-[a-z]+[0-9]+-[a-z0-9]+' "a zone, such as us-west4-a"
  require "--project or TPU_PROJECT" "$PROJECT" '|[a-z0-9][-a-z0-9.:]*' "the id of a project"
  require "--bucket or TPU_BUCKET" "$BUCKET" '|gs://[a-z0-9][-a-z0-9._]{1,220}[a-z0-9]' "gs://NAME, without a path"
  require "--worker" "$WORKER" '[0-9]+|all' "0, 1, ... or all"
  for name in SPOT QUEUED; do require "TPU_$name" "${!name}" '0|1' "0 or 1"; done
  require "--max-recreations or TPU_MAX_RECREATIONS" "$MAX_RECREATIONS" '[0-9]{1,6}' "a whole number"
  for name in POLL_SECONDS MAX_WAIT_SECONDS GRACE_SECONDS; do
    require "TPU_$name" "${!name}" '[0-9]|[1-9][0-9]{1,5}' "whole seconds up to 999999"
  done
  if [[ $VERB == run || $VERB == babysit ]]; then
    ((${#COMMAND[@]})) || refuse "command: given nothing, allowed: words after --, such as -- memjax train"
    # The folder without its bucket would be on the disk of the node.
    [[ -n $BUCKET || ${COMMAND[*]} != *memjax-bucket* && ${COMMAND[*]} != *MEMJAX_BUCKET* ]] \
      || refuse "--bucket or TPU_BUCKET: given nothing, allowed: gs://NAME, as the command uses ~/memjax-bucket"
  else
    ((${#COMMAND[@]} == 0)) || refuse "command: given '${COMMAND[*]}', allowed: nothing after -- with $VERB"
  fi
  if [[ $VERB == create || $VERB == babysit ]]; then choose_version; fi
  if [[ $VERB == setup || $VERB == babysit ]]; then resolve_commit; fi
}

choose_version() {
  local pattern=${TYPES//N/[1-9][0-9]*}
  require "--type or TPU_TYPE" "$TYPE" "${pattern//, /|}" "$TYPES, such as v5litepod-16"
  if [[ -n $VERSION ]]; then return; fi
  case $TYPE in
    v5litepod-*) VERSION=v2-alpha-tpuv5-lite ;;
    v5p-*) VERSION=v2-alpha-tpuv5 ;;
    v6e-*) VERSION=v2-alpha-tpuv6e ;;
    *) VERSION=tpu-ubuntu2204-base ;;
  esac
}

# A name such as HEAD may move while babysit runs, and a clone has other names: the workers get the hash.
resolve_commit() {
  local hash
  if hash=$(git -C "$ROOT" rev-parse --verify --quiet "$COMMIT^{commit}" 2>/dev/null); then
    COMMIT=$hash
  elif [[ -n $REPOSITORY ]]; then
    require "--commit or TPU_COMMIT" "$COMMIT" '[0-9a-f]{7,40}' "a hash, or a commit, branch or tag of $ROOT"
  else
    refuse "--commit or TPU_COMMIT: given '$COMMIT', allowed: a commit, branch or tag of $ROOT"
  fi
  if [[ -z $REPOSITORY && -n $(git -C "$ROOT" status --porcelain) ]]; then
    say "the workers get ${COMMIT:0:12}; what is not committed stays here"
  fi
}

# Whether what the command saves may be there on the next node, as far as its words tell.
outlives_node() {
  local word before='' workdir=''
  for word in "${COMMAND[@]}"; do
    if [[ $before == --workdir ]]; then workdir=$word; fi
    if [[ $word == --workdir=* ]]; then workdir=${word#*=}; fi
    before=$word
  done
  if [[ -z $workdir ]]; then
    [[ -n $BUCKET && ${COMMAND[0]} != memjax ]] # a script may know MEMJAX_BUCKET
  else
    # shellcheck disable=SC2088  # memjax expands it
    [[ $workdir == /* || $workdir/ == '~/memjax-bucket/'* ]]
  fi
}

main() {
  parse "$@"
  validate
  PLACE=(--zone="$ZONE")
  if [[ -n $PROJECT ]]; then PLACE+=(--project="$PROJECT"); fi
  CREATE=("${PLACE[@]}" "${CREATE[@]}")
  CONNECT=("${PLACE[@]}" "${CONNECT[@]}")
  if ((SPOT)); then CREATE+=(--spot); fi
  if ! ((DRY_RUN)) && ! command -v gcloud >/dev/null; then
    echo "tpu_vm.sh: gcloud was not found: https://cloud.google.com/sdk/docs/install, or --dry-run" >&2
    exit 1
  fi
  ERRORS=$(mktemp)
  trap 'rm -f "$ERRORS"' EXIT
  case $VERB in
    create) create_node ;;
    setup) setup_workers ;;
    run) start_run ;;
    status) show_status ;;
    logs) on_workers "$WORKER" worker_follow "$WORKER" ;;
    kill) stop_run mark ;;
    delete) confirm_deletion && delete_node ;;
    babysit)
      outlives_node || say "checkpoints must outlive the node: --bucket gs://NAME, and --workdir '~/memjax-bucket/runs'"
      if ((DRY_RUN)); then print_cycle; else babysit; fi
      ;;
  esac
}

main "$@"
