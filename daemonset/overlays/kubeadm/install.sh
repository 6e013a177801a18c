#!/bin/sh
# Configures the kube-scheduler of this control plane node to call Linkwise, or not to call it any more.
#
#   install.sh install      create the files that kube-scheduler needs, then give its static pod the
#                           flag that names them; run again: renew the files
#   install.sh check        say what is missing; exit status 1 if anything is
#   install.sh uninstall    remove the flag, then the files
#
#   --etc DIR               instead of /etc/kubernetes
#   --kubeconfig FILE       of an administrator, instead of DIR/admin.conf
#
# It needs kubectl, and nothing else that a control plane node may lack. A single rename replaces the
# manifest of the static pod, once all files that it names exist: if this script is killed at any
# moment, kube-scheduler still starts. Each command can be run again at any time.
set -eu

usage() { sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; }

say() { printf 'linkwise: %s\n' "$*"; }
fail() {
  printf 'linkwise: %s\n' "$*" >&2
  exit 1
}

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
etc=/etc/kubernetes
admin=
task=
while [ $# -gt 0 ]; do
  case $1 in
    install | check | uninstall) task=$1 ;;
    --etc) etc=${2:?--etc DIR} && shift ;;
    --kubeconfig) admin=${2:?--kubeconfig FILE} && shift ;;
    -h | --help) usage && exit 0 ;;
    *) usage >&2 && fail "$1: not understood" ;;
  esac
  shift
done
[ -n "$task" ] || { usage >&2 && fail "install, check or uninstall?"; }

admin=${admin:-$etc/admin.conf}
manifest=$etc/manifests/kube-scheduler.yaml
conf=$etc/scheduler.conf
ours=$etc/linkwise
before=$ours/before.yaml
files=/etc/kubernetes/linkwise # in the pod, and on this node unless --etc names another directory
flag=--config=$files/scheduler-config.yaml
note=linkwise.dev/files
# The kubelet ignores names that begin with a dot. One directory for each run, as two may run at a time.
next=$etc/manifests/.linkwise-next
umask 077

cluster() { KUBECONFIG=$admin kubectl "$@"; }
# A part of a manifest, without any API server.
field() { kubectl patch --local --type=merge --patch '{}' -f "$1" -o "jsonpath=$2"; }
# A line for each of them.
words() { field "$1" '{range .spec.containers[0].command[*]}{@}{"\n"}{end}'; }
mounts() { field "$1" '{range .spec.containers[0].volumeMounts[*]}{.mountPath}{"\n"}{end}'; }
volumes() { field "$1" '{range .spec.volumes[*]}{.hostPath.path}{"\n"}{end}'; }
has_flag() { words "$1" | grep -qxF -e "$flag"; }

# The last step of every change of a file, which is atomic. A new file gets the owner and the mode of
# the file LIKE.
put() { # NEW TARGET LIKE
  cp -p "$3" "$2.next"
  cat "$1" >"$2.next"
  sync
  mv -f "$2.next" "$2"
}

# All decisions use a copy; another program, such as an upgrade, may change the manifest meanwhile.
read_manifest() {
  [ -s "$manifest" ] && cp "$manifest" "$work/was" && is_sound "$work/was" ||
    fail "$manifest cannot be read as the Pod kube-scheduler: nothing is changed"
}

replace_manifest() { # NEW
  cp -p "$manifest" "$next.$$"
  cat "$1" >"$next.$$"
  sync
  cmp -s "$work/was" "$manifest" ||
    fail "$manifest was changed meanwhile, and is left as it is: run this again"
  mv -f "$next.$$" "$manifest"
}

# The conditions for a manifest to replace the present one.
is_sound() { # FILE
  [ -s "$1" ] && [ "$(field "$1" '{.kind}/{.metadata.name}')" = Pod/kube-scheduler ]
}

is_complete() { # FILE
  is_sound "$1" &&
    [ "$(words "$1" | grep -cxF -e "$flag")" = 1 ] &&
    mounts "$1" | grep -qxF "$files" &&
    volumes "$1" | grep -qxF "$files"
}

# Write the files into a directory of this run.
make_files() { # DIRECTORY
  cluster -n kube-system get configmap linkwise-extender -o 'jsonpath={.data.ca\.crt}' >"$1/ca.crt" ||
    fail "the cluster cannot be asked with $admin, or the overlay is not applied yet"
  grep -q 'BEGIN CERTIFICATE' "$1/ca.crt" ||
    fail "no extender has published its authority yet (kube-system/linkwise-extender): is one ready?"
  # kube-scheduler's own client certificate: both parts in one file, so that one rename renews it.
  for part in client-certificate-data client-key-data; do
    KUBECONFIG=$conf kubectl config view --raw --flatten --minify \
      -o "jsonpath={.users[0].user.$part}" | base64 -d
  done >"$1/client.pem"
  grep -q 'BEGIN CERTIFICATE' "$1/client.pem" && grep -q 'PRIVATE KEY' "$1/client.pem" ||
    fail "$conf has no client certificate and key"
  cp "$here/scheduler-config.yaml" "$1/scheduler-config.yaml"
}

# Call the extender as kube-scheduler will, with a call that changes nothing.
is_answered() { # DIRECTORY
  url=$(sed -n 's/^ *-* *urlPrefix: *//p' "$1/scheduler-config.yaml")
  name=$(sed -n 's/^ *serverName: *//p' "$1/scheduler-config.yaml")
  printf '%s' '{"Pod":{"metadata":{"name":"none","namespace":"none","uid":"none"},
    "spec":{"containers":[]}},"NodeNames":[]}' >"$1/question"
  # kubectl's own --request-timeout would become part of the request.
  KUBECONFIG=/dev/null timeout 10 kubectl create --raw /filter -f "$1/question" --server "$url" \
    --tls-server-name "$name" --certificate-authority "$1/ca.crt" \
    --client-certificate "$1/client.pem" --client-key "$1/client.pem" </dev/null >/dev/null
}

# kube-scheduler reads these two only at its start, so the manifest names their versions: new versions
# change the manifest, and the kubelet restarts kube-scheduler.
sum_of() { cat "$1/scheduler-config.yaml" "$1/ca.crt" | cksum | tr ' ' -; }

# The manifest with the flag, from a manifest with or without it.
patched() { # FILE NEW DIRECTORY
  if has_flag "$1"; then
    cat "$1" >"$2.flag"
  else
    kubectl patch --local --type=json -o yaml -f "$1" \
      --patch-file "$here/kube-scheduler0+json.yaml" >"$2.flag"
  fi
  kubectl patch --local --type=strategic -o yaml -f "$2.flag" \
    --patch-file "$here/kube-scheduler1+strategic.yaml" >"$2.all"
  kubectl annotate --local --overwrite -o yaml -f "$2.all" "$note=$(sum_of "$3")" >"$2"
}

# The index, from 0, of the first such line in the input.
place_of() { # LINE
  grep -nxF -e "$1" | sed -n '1s/:.*//p' | { read -r line && echo $((line - 1)); }
}

# The manifest without the changes of this script; all other changes since stay.
unpatched() { # FILE NEW
  word=$(words "$1" | place_of "$flag")
  kubectl patch --local --type=json -o yaml -f "$1" \
    --patch "[{\"op\": \"remove\", \"path\": \"/spec/containers/0/command/$word\"}]" >"$2.rest"
  kubectl patch --local --type=strategic -o yaml -f "$2.rest" --patch '{"spec": {
    "containers": [{"name": "kube-scheduler",
      "env": [{"name": "HTTP2_READ_IDLE_TIMEOUT_SECONDS", "$patch": "delete"},
        {"name": "HTTP2_PING_TIMEOUT_SECONDS", "$patch": "delete"}],
      "volumeMounts": [{"mountPath": "/etc/kubernetes/linkwise", "$patch": "delete"}]}],
    "volumes": [{"name": "linkwise", "$patch": "delete"}]}}' >"$2.without"
  kubectl annotate --local --overwrite -o yaml -f "$2.without" "$note-" >"$2"
}

need() {
  for file in "$conf" "$admin" "$here/scheduler-config.yaml" \
    "$here/kube-scheduler0+json.yaml" "$here/kube-scheduler1+strategic.yaml"; do
    [ -s "$file" ] || fail "$file is not there, or is empty"
  done
  read_manifest
}

install() {
  need
  if ! has_flag "$work/was"; then
    other=$(words "$work/was" | grep -e '^--config' || :)
    [ -z "$other" ] ||
      fail "kube-scheduler has $other already: write what $here/scheduler-config.yaml says into that file"
  fi
  make_files "$work"
  is_answered "$work" || fail "the extender does not answer as kube-scheduler asks it: nothing is changed"
  patched "$work/was" "$work/manifest" "$work"
  is_complete "$work/manifest" || fail "the manifest could not be patched: nothing is changed"

  mkdir -p "$ours"
  chmod 755 "$ours"
  for file in ca.crt client.pem scheduler-config.yaml; do
    cmp -s "$work/$file" "$ours/$file" || put "$work/$file" "$ours/$file" "$conf"
  done
  has_flag "$work/was" || put "$work/was" "$before" "$manifest"
  if cmp -s "$work/manifest" "$work/was"; then
    say "the files are renewed; kube-scheduler runs on"
  else
    replace_manifest "$work/manifest"
    say "kube-scheduler calls Linkwise once the kubelet has restarted it"
  fi
  say "for upgrades: give kubeadm the directory of kube-scheduler0+json.yaml as --patches"
}

uninstall() {
  read_manifest
  if has_flag "$work/was"; then
    # If only this script has changed the manifest, restore the original byte for byte.
    if [ -s "$before" ] && patched "$before" "$work/made" "$ours" && cmp -s "$work/made" "$work/was"; then
      cat "$before" >"$work/manifest"
    else
      unpatched "$work/was" "$work/manifest" || :
    fi
    is_sound "$work/manifest" && ! has_flag "$work/manifest" ||
      fail "the flag could not be taken out of $manifest: nothing is changed"
    replace_manifest "$work/manifest"
  fi
  rm -rf "$ours" "$next".*
  say "kube-scheduler asks Linkwise no longer"
  say_what_waits
}

say_what_waits() {
  step="docs/operating/upgrade-and-uninstall.md#pods-that-wait-for-linkwise"
  gates=$(cluster get pods -A --field-selector spec.nodeName= --request-timeout=10s \
    -o 'jsonpath={range .items[*]}{.spec.schedulingGates[*].name}{"\n"}{end}' 2>/dev/null) || {
    say "pods behind the gate linkwise.dev/plan: unknown, the cluster cannot be asked ($step)"
    return
  }
  count=$(printf '%s\n' "$gates" | grep -cwF linkwise.dev/plan) || :
  [ "$count" = 0 ] ||
    say "pods behind the gate linkwise.dev/plan, which nothing lifts without Linkwise: $count ($step)"
}

check() {
  need
  wrong=0
  miss() { say "$*" && wrong=1; }
  (make_files "$work") || exit 1
  if ! has_flag "$work/was"; then
    miss "$manifest does not name $flag"
  elif ! patched "$work/was" "$work/made" "$work" || ! cmp -s "$work/made" "$work/was"; then
    miss "$manifest is out of date: run install again"
  fi
  for file in ca.crt client.pem scheduler-config.yaml; do
    cmp -s "$work/$file" "$ours/$file" || miss "$ours/$file is out of date: run install again"
  done
  is_answered "$work" || miss "the extender does not answer"
  if [ $wrong = 0 ] && command -v openssl >/dev/null; then
    say "the client certificate ends: $(openssl x509 -noout -enddate -in "$ours/client.pem")"
  fi
  [ $wrong = 0 ] && say "all is in place"
  return $wrong
}

command -v kubectl >/dev/null || fail "kubectl is not there"
work=$(mktemp -d)
trap 'rm -rf "$work" "$next.$$"' EXIT
trap 'exit 1' HUP INT TERM
"$task"
