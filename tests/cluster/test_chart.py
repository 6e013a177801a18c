"""The chart renders what kubectl applies, works in every namespace, and refuses wrong values."""

import json
import os
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from linkwise.kube.filters.node_affinity import required_nodes
from linkwise.kube.objects import Affinity
from linkwise.topology import names
from tests.cluster.support.api.chart import (
    CHART,
    NEEDED,
    RENDERED,
    HelmError,
    Objects,
    for_kubectl,
    helm,
    kustomize,
    objects,
    template,
    texts,
    values,
    without_registry,
)
from tests.cluster.support.programs import binaries
from tests.manifests import DAEMONSET, OVERLAYS, WEBHOOK, write_overlay
from tests.value_pages import Example, blocks, examples

NO_WEBHOOK = values(webhook__enabled=False)
NO_SCHEDULER = values(scheduler__mode="none")
# The values that make the chart what each overlay is.
SAME = {
    "kubeadm": (*NO_SCHEDULER, *NO_WEBHOOK, *values(extender__service__clusterIP="10.96.0.94")),
    "observe": (*NO_SCHEDULER, *NO_WEBHOOK, *values(plugin__mode="observe")),
    "plugin-only": values(extender__enabled=False),
    "second-scheduler": NO_WEBHOOK,
    "simulated": (*NO_WEBHOOK, *values(plugin__simulatedMachines=True)),
}
WITH_WEBHOOK = values(webhook__enabled=True)
IN_FRONT = values(plugin__mode="in-front")


def test_what_kubectl_applies_is_what_the_chart_renders() -> None:
    texts_ = {path: path.read_text() for path in DAEMONSET.rglob("*.yaml")}
    committed = {path: text for path, text in texts_.items() if text.startswith(RENDERED)}
    assert committed == for_kubectl(), "`make manifests` writes them"


@pytest.mark.parametrize(
    ("name", "components", "more"),
    [
        *((name, (), ()) for name in OVERLAYS),
        *((name, components, WITH_WEBHOOK) for name, components in WEBHOOK.items()),
        *((name, ("in-front",), IN_FRONT) for name in ("kubeadm", "second-scheduler")),
        ("plugin-only", ("in-front",), IN_FRONT),
    ],
)
def test_an_overlay_with_its_components_is_the_chart_with_its_values(
    name: str, components: tuple[str, ...], more: tuple[str, ...], tmp_path: Path
) -> None:
    built = kustomize(write_overlay(tmp_path, name, *components))
    assert objects(built) == objects(template(*SAME[name], *more))


# The kustomization of the canary has no webhook: it would be one for every namespace.
@pytest.mark.parametrize(
    ("step", "more"), [("1. Observe", ()), ("2. Canary", NO_WEBHOOK), ("3. Enforce", ())]
)
def test_a_step_of_adoption_is_the_same_with_kubectl(
    step: str, more: tuple[str, ...], tmp_path: Path
) -> None:
    (given,) = (each for each in examples() if each.section == step)
    (built,) = (each for each in blocks("kustomization") if each.section == step)
    (tmp_path / given.file).write_text(given.text)
    # The page's paths are those of the checkout.
    text = built.text.replace("daemonset/", f"{os.path.relpath(DAEMONSET, tmp_path)}/")
    (tmp_path / built.file).write_text(text)
    rendered = template(f"--values={tmp_path / given.file}", *more)
    assert objects(kustomize(tmp_path)) == objects(rendered)


def selectors(*given: str) -> list[dict[str, Any]]:
    """The namespaces of each of the webhook's rules."""
    return [
        webhook["namespaceSelector"]
        for document in objects(template(*given)).values()
        for webhook in document.get("webhooks", ())
    ]


TEAMS = values(extender__flags__namespace=["team-a", "team-b"])


def test_a_canary_is_one_for_the_webhook_too() -> None:
    """Else all pods with GPUs would get the scheduler's name, of every namespace."""
    team = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["team-a", "team-b"]}
    everywhere = selectors()
    assert len(everywhere) == 3
    canary = selectors(*TEAMS)
    assert canary == [
        {"matchExpressions": [*each["matchExpressions"], team]} for each in everywhere
    ]


def test_the_webhooks_namespaces_may_be_others_and_never_kubernetes_own() -> None:
    by_label = {"matchLabels": {"gpus": "shared"}}
    also = {"key": "tier", "operator": "Exists"}
    everywhere = selectors()
    given = values(webhook__namespaceSelector={**by_label, "matchExpressions": [also]})
    for more in ((), TEAMS):
        assert selectors(*given, *more) == [
            {**by_label, "matchExpressions": [*each["matchExpressions"], also]}
            for each in everywhere
        ]
    only_labels = selectors(*values(webhook__namespaceSelector=by_label), *TEAMS)
    assert only_labels == [by_label | each for each in everywhere]


def test_a_canary_may_place_pods_while_no_extender_answers() -> None:
    for ignorable in (False, True):
        rendered = objects(template(*values(scheduler__ignorable=ignorable)))
        config = rendered["ConfigMap kube-system/linkwise-scheduler-config"]["data"]["config.yaml"]
        assert config["extenders"][0]["ignorable"] is ignorable


@pytest.mark.parametrize("name", OVERLAYS)
def test_in_another_namespace_only_the_namespace_differs(name: str) -> None:
    """What stays in kube-system belongs to Kubernetes: a role there, and namespaces left alone."""
    everything = (*SAME[name], *(WITH_WEBHOOK if name in WEBHOOK else ()))
    usual = objects(template(*everything))
    elsewhere = objects(template(*everything, namespace="gpus", name="team-a"))
    assert moved(usual) == elsewhere
    left = {
        each
        for each, body in elsewhere.items()
        if any("kube-system" in text for text in texts(body))
    }
    assert left == {each for each in left if stays(each)}


def stays(name: str) -> bool:
    return name.endswith(("-authentication", "WebhookConfiguration /linkwise"))


def moved(usual: Objects) -> Objects:
    """Return the objects as they have to be in namespace `gpus`."""
    found = {}
    for name, body in usual.items():
        if name.endswith("-authentication"):
            body["subjects"][0]["namespace"] = "gpus"
        elif name.endswith("WebhookConfiguration /linkwise"):
            for hook in body["webhooks"]:
                hook["clientConfig"]["service"]["namespace"] = "gpus"
        else:
            body = json.loads(json.dumps(body).replace("kube-system", "gpus"))
        namespace = body["metadata"].get("namespace", "")
        found[f"{body['kind']} {namespace}/{body['metadata']['name']}"] = body
    return found


def bare(*given: str) -> str:
    """Rendered with no other values than these."""
    place = ("--namespace=kube-system", f"--kube-version={binaries.NEWEST}")
    return helm("template", "linkwise", str(CHART), *place, *given)


REPLACE = values(plugin__mode="replace")
IMAGE = values(image__registry="registry.example")


@pytest.mark.parametrize(
    "given",
    [
        values(image__registry="registry.example:5000/gpus"),
        values(image__digest="sha256:" + "0" * 64),
        values(image__repository="ghcr.io/you/linkwise"),
        values(image__pullPolicy="Never"),
    ],
)
def test_an_image_of_nobody_is_refused_in_words_and_one_of_yours_is_not(
    given: tuple[str, ...],
) -> None:
    said = "image.registry: missing. Without it, nodes would pull {}:0.1.0 from Docker Hub"
    for name in ("linkwise", "you/linkwise"):
        with pytest.raises(HelmError, match=re.escape(said.format(name))):
            bare(*REPLACE, *values(image__repository=name))
    assert "kind: DaemonSet" in bare(*REPLACE, *given)


def test_what_becomes_of_the_vendors_plugin_has_to_be_said() -> None:
    with pytest.raises(HelmError, match=re.escape("plugin.mode: missing; expected one of: repl")):
        bare(*IMAGE)
    with pytest.raises(HelmError) as refused:
        bare(*IMAGE)
    begin = re.findall(r"--set (\S+)=(\S+)", str(refused.value))
    assert begin[0] == ("plugin.mode", "observe")
    harmless = bare(*IMAGE, *(f"--set={name}={value.rstrip()}" for name, value in begin))
    assert "--observe" in args(objects(harmless), *PARTS[0])
    assert "linkwise-scheduler" not in harmless


def notes(**given: object) -> str:
    """What is on, as helm prints it after an installation."""
    place = ("--namespace=gpus", "--dry-run=client", f"--values={NEEDED}")
    printed = helm("install", "linkwise", str(CHART), *place, *values(**given))
    return printed.partition("NOTES:")[2]


@pytest.mark.parametrize(
    ("given", "lines"),
    [
        (
            {},
            [
                "image registry.example/linkwise:0.1.0",
                "device plugin Linkwise's; no vendor's plugin may serve the same resource",
                "extender on",
                "second scheduler linkwise-scheduler",
                "webhook for the pods with GPUs of all namespaces, except kube-system,",
                "alerts off",
            ],
        ),
        (
            {"plugin__mode": "in-front", "extender__flags__namespace": ["a", "b"]},
            ["device plugin the vendor's, behind Linkwise's", "webhook for the namespaces a, b"],
        ),
        (
            {"webhook__namespaceSelector": {"matchLabels": {"a": "b"}}},
            ["webhook for the namespaces of webhook.namespaceSelector"],
        ),
        (
            {"extender__enabled": False, "prometheusRule__enabled": True},
            ["extender off: no gangs are planned", "second scheduler off", "webhook off", "alerts"],
        ),
    ],
)
def test_the_notes_say_what_is_on(given: dict[str, object], lines: list[str]) -> None:
    printed = [" ".join(line.split()) for line in notes(**given).splitlines()]
    for wanted in lines:
        assert [line for line in printed if line.startswith(wanted)], printed


def test_helm_lint_finds_nothing() -> None:
    given = ("--kube-version", binaries.NEWEST, f"--values={NEEDED}")
    said = helm("lint", "--strict", str(CHART), *given)
    assert "1 chart(s) linted, 0 chart(s) failed" in said
    assert "[ERROR]" not in said
    assert "[WARNING]" not in said


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"scheduler__mode": "third"},
            "at '/scheduler/mode': value must be one of 'second', 'none'",
        ),
        ({"plugin__mode": "front"}, "at '/plugin/mode': value must be one of"),
        ({"plugin__flag": {}}, "at '/plugin': additional properties 'flag' not allowed"),
        (
            {"extender__flags": {"gang-timeuot": "10m"}},
            "at '/extender/flags': additional properties 'gang-timeuot' not allowed",
        ),
        ({"extender__flags": {"gang-timeout": "10 m"}}, "at '/extender/flags/gang-timeout'"),
        ({"extender__flags": {"gang-timeout": 600}}, "at '/extender/flags/gang-timeout'"),
        ({"extender__flags": {"call-timeout": None}}, "missing property 'call-timeout'"),
        ({"extender__flags": {"reserve-share": 1.5}}, "maximum: got 1.5, want 1"),
        ({"extender__flags": {"preempt": "always"}}, "at '/extender/flags/preempt'"),
        ({"extender__replicas": 0}, "at '/extender/replicas': minimum: got 0, want 1"),
        ({"extender__port": 70000}, "at '/extender/port': maximum: got 70,000, want 65,535"),
        ({"image__digest": "sha256:abc"}, "at '/image/digest'"),
        ({"image__registry": "https://registry.example"}, "at '/image/registry'"),
        ({"image__repository": "linkwise:0.1.0"}, "at '/image/repository'"),
        ({"scheduler__image__repository": ""}, "at '/scheduler/image/repository'"),
        ({"podMonitors__interval": "1 minute"}, "at '/podMonitors/interval'"),
        ({"prometheusRule__clusterLabel": "k8s.cluster"}, "at '/prometheusRule/clusterLabel'"),
        ({"prometheusRule__runbookPrefix": "git.example"}, "at '/prometheusRule/runbookPrefix'"),
        ({"prometheusRule__label": {}}, "additional properties 'label' not allowed"),
        ({"dashboard__namespace": "Monitoring"}, "at '/dashboard/namespace'"),
        ({"nameOverride": "gpus"}, "additional properties 'nameOverride' not allowed"),
        ({"resourceName": "gpu"}, "at '/resourceName'"),
        ({"resourceName": []}, "at '/resourceName': minItems"),
        ({"resourceName": ["a.b/gpu"]}, "at '/resourceName/0': value must be one of"),
        ({"resourceName": ["amd.com/gpu"] * 2}, "at '/resourceName': items at 0 and 1 are equal"),
        (
            {"resourceName": ["nvidia.com/gpu", "amd.com/gpu"]},
            "plugin.mode: AMD's device plugin has to give out amd.com/gpu; expected in-front",
        ),
        (
            {
                "resourceName": ["nvidia.com/gpu", "amd.com/gpu"],
                "plugin__mode": "observe",
                "scheduler__mode": "none",
                "webhook__enabled": False,
                "plugin__simulatedMachines": True,
            },
            "resourceName: for a list, the chart selects the nodes of each vendor's plugin",
        ),
        ({"sharedResources": ["a.b/c", "a.b/c"]}, "at '/sharedResources': items at 0 and 1 are"),
        (
            {"sharedResources": ["nvidia.com/gpu-shared"]},
            "sharedResources: nvidia.com/gpu-shared is not planned: expected nvidia.com/gpu.shared",
        ),
        (
            {"resourceName": "a.b/gpu", "sharedResources": ["nvidia.com/mig-1g.10gb"]},
            "expected a.b/gpu.shared, or a name that begins with a.b/mig-",
        ),
        ({"sharedResources": ["nvidia.com/gpu"]}, "nvidia.com/gpu is not planned"),
        (
            {"resourceName": "amd.com/gpu", "sharedResources": ["amd.com/mig-1g"]},
            "expected amd.com/gpu.shared, or a name that begins with amd.com/cpx_nps, or dpx",
        ),
        (
            {"resourceName": "amd.com/gpu"},
            "plugin.mode: AMD's device plugin has to give out amd.com/gpu; expected in-front",
        ),
        ({"enabled": False}, "enabled: false has no meaning here"),
        ({"plugin__cdiDirectories__static": "etc/cdi"}, "at '/plugin/cdiDirectories/static'"),
        ({"plugin__cdiDirectories__more": "/etc/cdi"}, "additional properties 'more' not allowed"),
        (
            {"webhook__hostNetwork": True, "webhook__port": 10250},
            "webhook.port: 10250 is the kubelet's on the network of its node",
        ),
        (
            {"webhook__hostNetwork": True, "openshift": True},
            "webhook.hostNetwork: OpenShift's control plane reaches pods",
        ),
        ({"scheduler__ignorable": "yes"}, "at '/scheduler/ignorable': got string, want boolean"),
        (
            {"webhook__namespaceSelector": {"kubernetes.io/metadata.name": "team-a"}},
            "at '/webhook/namespaceSelector': additional properties",
        ),
        ({"plugin__kubeletDirectory": "var/lib/kubelet"}, "at '/plugin/kubeletDirectory'"),
        ({"plugin__tolerations": {"operator": "Exists"}}, "at '/plugin/tolerations'"),
        ({"plugin__mode": "observe"}, "so scheduler.mode must be none, but it is second"),
        (
            {"plugin__mode": "observe", "scheduler__mode": "none"},
            "so webhook.enabled must be false, but it is true",
        ),
        (
            {"extender__flags__caller": ["me"]},
            "the only caller is linkwise-scheduler; leave it out",
        ),
        ({"webhook__flags__scheduler-name": "me"}, "it is linkwise-scheduler; leave it out"),
        ({"webhook__closedDriver": "GPUs"}, "at '/webhook/closedDriver'"),
        (
            {"webhook__closedDriver": "gpu.nvidia.com"},
            "set webhook.gpusFromClaims to true, and webhook.enabled",
        ),
        (
            {"webhook__closedDriver": "a.b", "webhook__gpusFromClaims": True}
            | {"webhook__enabled": False},
            "set webhook.gpusFromClaims to true, and webhook.enabled",
        ),
        ({"extender__statusPort": 9402}, "extender.statusPort: 9402 is extender.port too"),
    ],
)
def test_a_wrong_value_is_refused_and_named(given: dict[str, object], said: str) -> None:
    with pytest.raises(HelmError, match=re.escape(said)):
        template(*values(**given))


def test_where_drivers_give_the_gpus_no_scheduler_is_needed() -> None:
    """As docs/operating/claims.md installs it."""
    given = {"plugin__mode": "observe", "scheduler__mode": "none", "webhook__gpusFromClaims": True}
    rendered = objects(template(*values(**given)))
    for program in ("extender", "webhook"):
        rules = rendered[f"ClusterRole /linkwise-{program}"]["rules"]
        assert any("resourceclaimtemplates" in rule["resources"] for rule in rules)
    assert "Deployment kube-system/linkwise-scheduler" not in rendered


def test_a_closed_driver_brings_the_taint_and_who_may_tolerate_it() -> None:
    claims = values(webhook__gpusFromClaims=True)
    usual = objects(template(*claims))
    closed = objects(template(*claims, *values(webhook__closedDriver="gpu.example")))
    assert closed.keys() - usual.keys() == {
        "DeviceTaintRule /linkwise",
        "ValidatingAdmissionPolicy /linkwise-closed-devices",
        "ValidatingAdmissionPolicyBinding /linkwise-closed-devices",
    }
    assert {name: closed[name] for name in usual} == usual
    rule = closed["DeviceTaintRule /linkwise"]["spec"]
    assert rule == {
        "deviceSelector": {"driver": "gpu.example"},
        "taint": {"key": names.CLOSED, "effect": "NoSchedule"},
    }


@pytest.mark.parametrize(
    ("given", "first", "last"),
    [
        ({"webhook__gpusFromClaims": True}, "v1.34.0", "v1.33.9"),
        (
            {"webhook__gpusFromClaims": True, "webhook__closedDriver": "gpu.example"},
            "v1.37.0",
            "v1.36.9",
        ),
    ],
)
def test_what_stands_on_claims_is_refused_where_the_api_server_lacks_them(
    given: dict[str, object], first: str, last: str
) -> None:
    template(*values(**given), kube_version=f"{first}-gke.1")
    with pytest.raises(HelmError, match=f"Kubernetes has from {first[1:5]} on; this is {last}"):
        template(*values(**given), kube_version=last)


def test_an_older_api_server_is_refused() -> None:
    with pytest.raises(HelmError, match=r"requires kubeVersion: >=1\.31\.0-0 .* v1\.30\.9"):
        template(kube_version="v1.30.9")


@pytest.mark.parametrize(
    ("version", "tag"),
    [
        ("v1.34.1", "v1.34.1"),
        ("v1.34.1-gke.1829001", "v1.34.1"),
        ("v1.33.5-eks-3025e55", "v1.33.5"),
        ("v1.35.0+k3s1", "v1.35.0"),
    ],
)
def test_the_second_scheduler_is_of_the_api_servers_version(version: str, tag: str) -> None:
    rendered = objects(template(kube_version=version))
    assert image(rendered, "Deployment", "scheduler") == f"registry.k8s.io/kube-scheduler:{tag}"


def test_images_come_from_the_registry_of_the_values() -> None:
    digest = "sha256:" + "0" * 64
    rendered = objects(
        template(
            *values(
                image__registry="registry.example:5000",
                image__digest=digest,
                imagePullSecrets=["mine"],
                scheduler__image__registry="mirror.example/k8s",
                scheduler__image__tag="v1.36.2",
            )
        )
    )
    ours = f"registry.example:5000/linkwise@{digest}"
    assert image(rendered, "DaemonSet", "plugin") == ours
    assert image(rendered, "Deployment", "extender") == ours
    assert image(rendered, "Deployment", "webhook") == ours
    mirrored = "mirror.example/k8s/kube-scheduler:v1.36.2"
    assert image(rendered, "Deployment", "scheduler") == mirrored
    for kind, part in PARTS:
        assert pod_of(rendered, kind, part)["imagePullSecrets"] == [{"name": "mine"}]


PARTS = [
    ("DaemonSet", "plugin"),
    *(("Deployment", part) for part in ("extender", "scheduler", "webhook")),
]


@pytest.mark.parametrize(("kind", "part"), PARTS)
def test_every_pod_goes_where_its_values_say(kind: str, part: str) -> None:
    said = {
        "nodeSelector": {"pool": "system"},
        "tolerations": [{"key": "dedicated", "operator": "Exists"}],
        "resources": {"requests": {"cpu": "7m"}},
        "priorityClassName": "mine",
        "podLabels": {"team": "a"},
        "podAnnotations": {"note": "b"},
        "affinity": {"nodeAffinity": {}},
    }
    rendered = objects(template(*values(**{f"{part}__{key}": said[key] for key in said})))
    pod = pod_of(rendered, kind, part)
    for key in ("nodeSelector", "tolerations", "priorityClassName", "affinity"):
        assert pod[key] == said[key]
    assert pod["containers"][0]["resources"]["requests"]["cpu"] == "7m"
    metadata = rendered[f"{kind} kube-system/linkwise-{part}"]["spec"]["template"]["metadata"]
    assert metadata["labels"]["team"] == "a"
    assert metadata["annotations"]["note"] == "b"


def test_flags_reach_their_programs() -> None:
    rendered = objects(
        template(
            *values(
                **{
                    "extender__flags__namespace": ["team-a", "team-b"],
                    "extender__flags__indexed-jobs": "none",
                    "extender__flags__device-class": "gpu.example",
                    "extender__flags__call-timeout": "17s",
                    "extender__flags__retry-period": None,
                    "plugin__flags__pass-device-specs": False,
                    "plugin__flags__health-seconds": 2.5,
                    "webhook__flags__gate": "all",
                    "scheduler__flags__v": 2,
                }
            )
        )
    )
    extender = args(rendered, "Deployment", "extender")
    assert {"--namespace=team-a", "--namespace=team-b", "--call-timeout=17s"} <= extender
    assert not [flag for flag in extender if flag.startswith("--retry-period")]
    assert {"--no-pass-device-specs", "--health-seconds=2.5"} <= args(rendered, *PARTS[0])
    # The extender and the webhook have to agree about these.
    webhook = args(rendered, "Deployment", "webhook")
    both = {"--indexed-jobs=none", "--device-class=gpu.example"}
    assert {"--gate=all", *both} <= webhook
    assert both <= extender
    assert "--v=2" in args(rendered, "Deployment", "scheduler")
    config = rendered["ConfigMap kube-system/linkwise-scheduler-config"]["data"]["config.yaml"]
    assert config["extenders"][0]["httpTimeout"] == "17s"


def test_gpus_from_claims_bring_the_flag_the_right_the_calls_and_the_policy() -> None:
    usual, claims = (objects(template(*values(webhook__gpusFromClaims=on))) for on in (False, True))
    different = {name for name in claims if claims[name] != usual[name]}
    role, hooks = "ClusterRole /linkwise-webhook", "MutatingWebhookConfiguration /linkwise"
    policy = "ValidatingAdmissionPolicy /linkwise-extender-decides"
    assert usual.keys() == claims.keys()
    extender, webhook = "ClusterRole /linkwise-extender", "Deployment kube-system/linkwise-webhook"
    assert different == {role, extender, hooks, policy, webhook}
    more = args(claims, "Deployment", "webhook") - args(usual, "Deployment", "webhook")
    assert more == {"--gpus-from-claims"}
    assert claims[role]["rules"][:-1] == usual[role]["rules"]
    assert claims[role]["rules"][-1] == {
        "apiGroups": ["resource.k8s.io"],
        "resources": ["resourceclaimtemplates"],
        "verbs": ["get"],
    }
    (hook,) = claims[hooks]["webhooks"]
    assert "c.?resourceClaimTemplateName.hasValue()" in hook["matchConditions"][0]["expression"]
    (condition,) = claims[policy]["spec"]["matchConditions"]
    assert condition["expression"].count("'linkwise.dev/claims'") == 1  # for all but the extender


def test_a_large_number_of_a_values_file_is_written_as_the_program_reads_it(
    tmp_path: Path,
) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(
        "extender: {flags: {max-refusals: 12000000, reserve-share: 0.25}}\n"
        "plugin: {flags: {idle-seconds: 1000000}}\n"
    )
    rendered = objects(template(f"--values={file}"))
    extender = args(rendered, "Deployment", "extender")
    assert {"--max-refusals=12000000", "--reserve-share=0.25"} <= extender
    assert "--idle-seconds=1000000" in args(rendered, *PARTS[0])


@pytest.mark.parametrize(("kind", "part"), PARTS)
def test_an_annotation_may_differ_from_the_charts_and_a_label_of_selectors_may_not(
    kind: str, part: str
) -> None:
    given = {
        "podAnnotations": {"prometheus.io/scrape": "false"},
        "podLabels": {"app.kubernetes.io/name": "mine"},
    }
    rendered = template(*values(**{f"{part}__{key}": given[key] for key in given}))
    body = objects(rendered)[f"{kind} kube-system/linkwise-{part}"]["spec"]
    assert body["template"]["metadata"]["annotations"]["prometheus.io/scrape"] == "false"
    name = body["template"]["metadata"]["labels"]["app.kubernetes.io/name"]
    assert name == body["selector"]["matchLabels"]["app.kubernetes.io/name"]
    assert "mine" not in rendered


def test_a_long_name_of_a_release_with_dots_is_a_label() -> None:
    name = "gpus.team-a.cluster-1.europe.example-of-a-long-name-1"
    assert len(name) == 53
    rendered = yaml.safe_load_all(template(name=name))
    labels = {each["metadata"]["labels"]["app.kubernetes.io/instance"] for each in rendered if each}
    assert labels == {name}


def test_a_resource_of_another_name_is_the_same_everywhere() -> None:
    given = values(resourceName="example.com/gpu", sharedResources=["example.com/gpu.shared"])
    rendered = objects(template(*given))
    config = rendered["ConfigMap kube-system/linkwise-scheduler-config"]["data"]["config.yaml"]
    managed = [each["name"] for each in config["extenders"][0]["managedResources"]]
    assert managed == ["example.com/gpu", "example.com/gpu.shared"]
    for kind, part in PARTS:
        if part != "scheduler":
            assert "--resource-name=example.com/gpu" in args(rendered, kind, part)
    (hook,) = rendered["MutatingWebhookConfiguration /linkwise"]["webhooks"]
    assert "'example.com/gpu' in" in hook["matchConditions"][0]["expression"]
    usual = re.compile(r"\bnvidia\.com/gpu(?![.\w])")
    assert not [name for name, body in rendered.items() if any(map(usual.search, texts(body)))]


def test_shared_resources_reach_the_scheduler_the_webhook_and_its_calls() -> None:
    shared = ["nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb"]
    usual, rendered = objects(template()), objects(template(*values(sharedResources=shared)))
    config = rendered["ConfigMap kube-system/linkwise-scheduler-config"]["data"]["config.yaml"]
    managed = [each["name"] for each in config["extenders"][0]["managedResources"]]
    assert managed == ["nvidia.com/gpu", *shared]
    more = args(rendered, "Deployment", "webhook") - args(usual, "Deployment", "webhook")
    assert more == {f"--shared-resource={name}" for name in shared}
    (hook,) = rendered["MutatingWebhookConfiguration /linkwise"]["webhooks"]
    asked = re.findall(r"'([^']+)' in", hook["matchConditions"][0]["expression"])
    assert asked == managed


def test_for_amds_gpus_the_plugin_runs_on_their_nodes_without_nvidias_runtime() -> None:
    given = {"resourceName": "amd.com/gpu", "plugin__mode": "in-front"}
    rendered = objects(template(*values(**given, sharedResources=["amd.com/cpx_nps4"])))
    spec = rendered["DaemonSet kube-system/linkwise-plugin"]["spec"]["template"]["spec"]
    assert "runtimeClassName" not in spec
    selected = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    keys = [term["matchExpressions"][0]["key"] for term in selected["nodeSelectorTerms"]]
    assert keys == ["feature.node.kubernetes.io/amd-gpu", "linkwise.dev/gpu-node"]
    assert "--shared-resource=amd.com/cpx_nps4" in args(rendered, "Deployment", "webhook")


BOTH = ["nvidia.com/gpu", "amd.com/gpu"]


def test_for_two_vendors_each_has_its_plugin_and_all_else_knows_both() -> None:
    shared = ["amd.com/cpx_nps4", "nvidia.com/mig-1g.10gb"]
    given = values(resourceName=BOTH, sharedResources=shared, plugin__mode="in-front")
    rendered = objects(template(*given))
    plugins = {
        body["metadata"]["name"]: body["spec"]
        for body in rendered.values()
        if body["kind"] == "DaemonSet"
    }
    assert [*plugins] == ["linkwise-plugin", "linkwise-plugin-amd"]
    for (name, spec), resource, vendor in zip(
        plugins.items(), BOTH, ("nvidia", "amd"), strict=True
    ):
        pod = spec["template"]
        (container,) = pod["spec"]["containers"]
        assert f"--resource-name={resource}" in container["args"]
        assert f"--daemonset=kube-system/{name}" in container["args"]
        assert ("runtimeClassName" in pod["spec"]) is (vendor == "nvidia")
        assert spec["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
        affinity = pod["spec"]["affinity"]["nodeAffinity"]
        required = affinity["requiredDuringSchedulingIgnoredDuringExecution"]
        terms = [term["matchExpressions"] for term in required["nodeSelectorTerms"]]
        assert terms[-1] == [{"key": "linkwise.dev/gpu-node", "operator": "In", "values": [vendor]}]
    selectors = [plugins[name]["selector"]["matchLabels"] for name in plugins]
    assert selectors[1].items() - selectors[0].items() == {("linkwise.dev/vendor", "amd")}
    assert "linkwise.dev/vendor" not in plugins["linkwise-plugin"]["template"]["metadata"]["labels"]
    role = rendered["Role kube-system/linkwise-plugin"]
    assert role["rules"][0]["resourceNames"] == [*plugins]

    config = rendered["ConfigMap kube-system/linkwise-scheduler-config"]["data"]["config.yaml"]
    managed = [each["name"] for each in config["extenders"][0]["managedResources"]]
    assert managed == [*BOTH, *shared]
    (hook,) = rendered["MutatingWebhookConfiguration /linkwise"]["webhooks"]
    asked = re.findall(r"'([^']+)' in", hook["matchConditions"][0]["expression"])
    assert asked == managed
    for part in ("extender", "webhook"):
        told = args(rendered, "Deployment", part)
        assert {f"--resource-name={each}" for each in BOTH} <= told


@pytest.mark.parametrize("one", ["nvidia.com/gpu", "amd.com/gpu"])
def test_a_list_of_one_resource_differs_only_in_the_mark_of_its_nodes(one: str) -> None:
    mode = values(plugin__mode="in-front")
    name = template(*mode, *values(resourceName=one))
    listed = template(*mode, *values(resourceName=[one]))
    vendor = one.partition(".")[0]
    mark = "- key: linkwise.dev/gpu-node\n                    operator: In\n"
    mark += '                    values: ["{}"]'
    assert name.count(mark.format("true")) == 1
    assert listed == name.replace(mark.format("true"), mark.format(vendor))


def test_an_umbrella_chart_switches_it_on_and_off(tmp_path: Path) -> None:
    """Helm hands the key of the condition, and `global`, to the chart on which another depends."""
    dependency = {"name": "linkwise", "version": "0.1.0", "condition": "linkwise.enabled"}
    chart = {"apiVersion": "v2", "name": "stack", "version": "1.0.0", "dependencies": [dependency]}
    (tmp_path / "Chart.yaml").write_text(yaml.safe_dump(chart))
    (tmp_path / "charts").mkdir()
    (tmp_path / "charts" / "linkwise").symlink_to(CHART)
    place = ("--namespace=kube-system", f"--kube-version={binaries.NEWEST}")
    needed = yaml.safe_load(NEEDED.read_text()) | {"enabled": True}
    given = values(global__team="a", linkwise=needed)
    rendered = without_registry(helm("template", "stack", str(tmp_path), *place, *given))
    assert objects(rendered) == objects(template())
    off = values(linkwise__enabled=False)
    assert not objects(helm("template", "stack", str(tmp_path), *place, *off))


def test_directories_of_cdi_specs_are_moved_or_left_out() -> None:
    def found(**given: object) -> dict[str, tuple[str, str]]:
        pod = pod_of(objects(template(*values(**given))), *PARTS[0])
        inside = {each["name"]: each["mountPath"] for each in pod["containers"][0]["volumeMounts"]}
        return {
            each["name"]: (each["hostPath"]["path"], inside[each["name"]])
            for each in pod["volumes"]
            if each["name"].startswith("cdi-")
        }

    dynamic = {"cdi-dynamic": ("/var/run/cdi", "/var/run/cdi")}
    assert found() == {"cdi-static": ("/etc/cdi", "/etc/cdi"), **dynamic}
    assert found(plugin__cdiDirectories__static="") == dynamic
    assert found(plugin__cdiDirectories__static=None) == dynamic
    moved = {"static": "/var/cdi/static", "dynamic": ""}
    # The plugin reads where it always does.
    assert found(plugin__cdiDirectories=moved) == {"cdi-static": ("/var/cdi/static", "/etc/cdi")}


def test_the_webhook_on_the_network_of_its_node_needs_no_more_nodes_for_an_update() -> None:
    rendered = objects(template(*values(webhook__hostNetwork=True)))
    pod = pod_of(rendered, "Deployment", "webhook")
    assert (pod["hostNetwork"], pod["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    update = rendered["Deployment kube-system/linkwise-webhook"]["spec"]["strategy"]
    assert update["rollingUpdate"] == {"maxUnavailable": 1, "maxSurge": 0}
    assert "hostNetwork" not in pod_of(objects(template()), "Deployment", "webhook")


def test_every_container_requests_cpu_and_memory_and_has_a_limit_of_memory() -> None:
    """As policies demand that refuse other pods. The hook of a removal needs a cluster, so
    `helm template` leaves it out; its resources are in its own text."""
    specs = [
        body["spec"]["template"]["spec"]
        for body in objects(template()).values()
        if body["kind"] in ("DaemonSet", "Deployment", "Job", "StatefulSet")
    ]
    assert len(specs) == len(PARTS)
    removal = (CHART / "templates" / "plugin" / "removal.yaml").read_text()
    found = re.search(r"^ {10}resources:\n(?: {12}.*\n)+", removal, re.M)
    assert found is not None
    specs.append({"containers": [yaml.safe_load(found.group())]})
    for spec in specs:
        for container in (*spec.get("initContainers", ()), *spec["containers"]):
            resources = container["resources"]
            assert {"cpu", "memory"} <= resources["requests"].keys()
            assert "memory" in resources["limits"]


@pytest.mark.parametrize("pci", ["10de", "0302_10de", "0300_10de"])
def test_nodes_that_node_feature_discovery_labels_get_a_plugin(pci: str) -> None:
    """A card with an output for a display is of PCI class 0300, one without of class 0302."""
    affinity = pod_of(objects(template()), *PARTS[0])["affinity"]["nodeAffinity"]
    labels = {f"feature.node.kubernetes.io/pci-{pci}.present": "true"}
    required = required_nodes({}, msgspec.convert({"nodeAffinity": affinity}, Affinity))
    assert required.match("n1", labels)
    assert not required.match("n1", {"feature.node.kubernetes.io/pci-0300_102b.present": "true"})


def test_ports_are_the_same_everywhere() -> None:
    ports = {"extender__port": 8402, "extender__statusPort": 8404, "webhook__port": 8443}
    rendered = template(*values(**ports, plugin__port=8401, podMonitors__enabled=True))
    assert not re.search(r"\b940[1-4]\b", rendered)
    assert "https://linkwise-extender.kube-system.svc:8402" in rendered


@pytest.mark.parametrize("example", examples(), ids=str)
def test_the_values_of_each_page_render(example: Example, tmp_path: Path) -> None:
    (tmp_path / example.file).write_text(yaml.safe_dump(example.values))
    rendered = objects(template("--values", str(tmp_path / example.file), namespace="linkwise"))
    assert "DaemonSet linkwise/linkwise-plugin" in rendered


def test_the_kubelets_directory_does_not_move_where_device_plugins_register() -> None:
    """The kubelet has that path compiled in, whatever its --root-dir is."""
    rendered = objects(template(*values(plugin__kubeletDirectory="/var/lib/k0s/kubelet")))
    volumes = {each["name"]: each for each in pod_of(rendered, *PARTS[0])["volumes"]}
    assert volumes["device-plugins"]["hostPath"]["path"] == "/var/lib/kubelet/device-plugins"
    assert volumes["pod-resources"]["hostPath"]["path"] == "/var/lib/k0s/kubelet/pod-resources"


def test_a_privileged_plugin_is_one_that_the_api_server_takes() -> None:
    """It refuses `privileged` beside `allowPrivilegeEscalation: false`."""
    context, env = of_plugin(template())
    assert "privileged" not in context
    assert context["allowPrivilegeEscalation"] is False
    given = [{"name": "LD_LIBRARY_PATH", "value": "/usr/local/nvidia/lib64"}]
    privileged, more = of_plugin(template(*values(plugin__privileged=True, plugin__extraEnv=given)))
    del context["allowPrivilegeEscalation"]
    assert privileged == context | {"privileged": True}
    assert more == env + given


def of_plugin(rendered: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    (container,) = pod_of(objects(rendered), *PARTS[0])["containers"]
    return container["securityContext"], container["env"]


def test_openshift_lets_every_account_use_what_its_pods_need() -> None:
    usual = objects(template(namespace="gpus"))
    rendered = objects(template(*values(openshift=True), namespace="gpus"))
    added = {name: body for name, body in rendered.items() if name not in usual}
    assert {name: body for name, body in rendered.items() if name in usual} == usual
    may: dict[str, set[str]] = {}
    for name, body in added.items():
        if name.startswith("RoleBinding "):
            role = added[f"Role gpus/{body['roleRef']['name']}"]
            rights = {
                f"{verb} {named or resource}"
                for rule in role["rules"]
                for verb in rule["verbs"]
                for resource in rule["resources"]
                for named in rule.get("resourceNames", [""])
            }
            for subject in body["subjects"]:
                assert subject["namespace"] == "gpus"
                may.setdefault(subject["name"], set()).update(rights)
    nonroot = {"use nonroot-v2"}
    assert may == {
        "linkwise-plugin": {"use privileged"},
        "linkwise-extender": {
            *nonroot,
            "create endpoints/restricted",
            "create endpointslices/restricted",
        },
        "linkwise-removal": nonroot,
        "linkwise-scheduler": nonroot,
        "linkwise-webhook": nonroot,
    }


def test_one_replica_has_no_budget_that_would_block_a_drain() -> None:
    rendered = objects(template(*values(extender__replicas=1, webhook__replicas=1)))
    assert not [name for name in rendered if name.startswith("PodDisruptionBudget")]


@pytest.mark.parametrize("part", ["extender", "scheduler", "webhook"])
def test_several_replicas_have_a_budget_of_their_pods(part: str) -> None:
    rendered = objects(template(*values(**{f"{part}__replicas": 3})))
    budget = rendered[f"PodDisruptionBudget kube-system/linkwise-{part}"]["spec"]
    selector = rendered[f"Deployment kube-system/linkwise-{part}"]["spec"]["selector"]
    assert budget["selector"] == selector
    assert budget["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


def test_prometheus_operator_is_told_of_the_pods_of_each_program() -> None:
    assert not [name for name in objects(template()) if name.startswith("PodMonitor")]
    given = values(podMonitors__enabled=True, podMonitors__labels={"release": "prometheus"})
    rendered = objects(template(*given))
    for kind, part in PARTS:
        if part == "scheduler":
            continue
        monitor = rendered[f"PodMonitor kube-system/linkwise-{part}"]
        template_of = rendered[f"{kind} kube-system/linkwise-{part}"]["spec"]["template"]
        labels = template_of["metadata"]["labels"]
        assert monitor["metadata"]["labels"]["release"] == "prometheus"
        assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        assert endpoint["honorLabels"] is True
        ports = {
            port["name"]: port for port in pod_of(rendered, kind, part)["containers"][0]["ports"]
        }
        annotated = template_of["metadata"]["annotations"]["prometheus.io/port"]
        assert str(ports[endpoint["port"]]["containerPort"]) == annotated


def rule_of(**given: object) -> dict[str, Any]:
    """The PrometheusRule, if it is asked for."""
    asked = values(prometheusRule__enabled=True, **given)
    (rule,) = (each for each in documents_of(*asked) if each["kind"] == "PrometheusRule")
    return rule


ALERTS = (CHART / "monitoring" / "alerts.yaml").read_text()


def test_the_alerts_are_a_prometheus_rule_if_asked_for() -> None:
    assert not [name for name in objects(template()) if name.startswith("PrometheusRule")]
    rule = rule_of(prometheusRule__labels={"release": "prometheus"})
    assert rule["spec"] == yaml.safe_load(ALERTS)
    assert rule["metadata"]["labels"]["release"] == "prometheus"


@pytest.mark.parametrize(
    ("given", "left_out"),
    [
        ({"webhook__enabled": False}, {"webhook"}),
        ({"extender__enabled": False}, {"extender", "calls", "webhook"}),
    ],
)
def test_only_what_is_installed_has_alerts(given: dict[str, object], left_out: set[str]) -> None:
    everything = yaml.safe_load(ALERTS)["groups"]
    without = {f"linkwise-{part}" for part in left_out}
    assert without < {group["name"] for group in everything}
    groups = rule_of(**given)["spec"]["groups"]
    assert groups == [group for group in everything if group["name"] not in without]
    if "extender" in left_out:
        assert not re.search(r"linkwise_(extender|webhook)_|linkwise-extender", str(groups))


def test_clusters_have_another_label_and_the_runbooks_an_address() -> None:
    rule = rule_of(prometheusRule__clusterLabel="k8s", prometheusRule__runbookPrefix="https://a.b/")
    expected = re.sub(r"(\b(?:by|on) \()cluster\b", r"\1k8s", ALERTS)
    expected = re.sub(r"(runbook_url: )", r"\1https://a.b/", expected)
    assert expected.count("k8s") >= 12
    assert rule["spec"] == yaml.safe_load(expected)


def test_the_dashboard_is_a_config_map_that_grafanas_sidecar_loads_if_asked_for() -> None:
    assert "ConfigMap kube-system/linkwise-dashboard" not in objects(template())
    given = values(
        dashboard__enabled=True,
        dashboard__namespace="monitoring",
        dashboard__annotations={"grafana_folder": "GPUs"},
    )
    (made,) = (each for each in documents_of(*given) if "dashboard" in each["metadata"]["name"])
    assert made["metadata"]["namespace"] == "monitoring"
    assert made["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert made["metadata"]["annotations"] == {"grafana_folder": "GPUs"}
    shown = (CHART / "monitoring" / "dashboard.json").read_text()
    assert json.loads(made["data"]["linkwise.json"]) == json.loads(shown)


def test_the_package_contains_the_rules_and_the_dashboard(tmp_path: Path) -> None:
    helm("package", str(CHART), f"--destination={tmp_path}")
    (package,) = tmp_path.glob("linkwise-*.tgz")
    given = values(prometheusRule__enabled=True, dashboard__enabled=True)
    place = (
        "--namespace=kube-system",
        f"--kube-version={binaries.NEWEST}",
        f"--values={NEEDED}",
    )
    packed = helm("template", "linkwise", str(package), *place, *given)
    assert objects(without_registry(packed)) == objects(template(*given))


def documents_of(*given: str) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all(template(*given)) if each]


def pod_of(rendered: Objects, kind: str, part: str) -> dict[str, Any]:
    pod: dict[str, Any] = rendered[f"{kind} kube-system/linkwise-{part}"]["spec"]["template"][
        "spec"
    ]
    return pod


def image(rendered: Objects, kind: str, part: str) -> str:
    return str(pod_of(rendered, kind, part)["containers"][0]["image"])


def args(rendered: Objects, kind: str, part: str) -> set[str]:
    return set(pod_of(rendered, kind, part)["containers"][0]["args"])
