"""What an author says with `linkwise.dev/` goes first, and is refused where it cannot come true."""

from linkwise.pods.podgrouper.workloads.answer import Recognised, Refused
from tests.pods.podgrouper.pods import Object, gang, owner, pod, template, told

INDEX = "batch.kubernetes.io/job-completion-index"


def said(size: int | str, name: str = "train", **more: str) -> dict[str, str]:
    ours = {f"linkwise.dev/{key}": text for key, text in more.items()}
    return {"linkwise.dev/gang": name, "linkwise.dev/gang-size": str(size), **ours}


def job(pods: int, size: int | str = 4, **spec: object) -> Object:
    made = template(annotations=said(size))
    return owner("batch/v1 Job", "lm", {"parallelism": pods, "template": made, **spec})


def refusal(made: Object, *objects: Object) -> str:
    answer = told(made, objects).answer
    assert isinstance(answer, Refused), answer
    return answer.because


def test_a_gang_may_be_named_on_any_pod() -> None:
    answer = gang(pod("w", annotations=said(4, rank="3")))
    assert str(answer.gang) == "ml/linkwise.dev/train"
    assert (answer.size, answer.minimum, answer.gpu_minimum) == (4, 4, 4)
    assert (answer.rule, answer.member.rank) == ("linkwise.dev", 3)


def test_fewer_may_be_enough_for_it() -> None:
    answer = gang(pod("w", annotations=said(4, **{"gang-min": "3"})))
    assert (answer.size, answer.minimum, answer.gpu_size, answer.gpu_minimum) == (4, 3, 4, 3)


def test_pods_of_several_owners_may_be_one_gang() -> None:
    leader, workers = job(1), job(3)
    workers["metadata"]["name"] = "workers"
    gangs = {gang(pod("x", by, annotations=said(4)), by).gang for by in (leader, workers)}
    assert len(gangs) == 1


def test_a_job_that_runs_more_pods_than_its_gang_has_members_is_refused_with_both() -> None:
    eight = job(8)
    assert refusal(pod("lm-x7k2p", eight, annotations=said(4)), eight) == (
        "linkwise.dev/gang 'train': linkwise.dev/gang-size is 4, "
        "but Job.batch ml/lm runs 8 pods of it (8 worker)"
    )


def test_pods_that_have_ended_well_count_among_those_of_a_job() -> None:
    four = job(4, size=2, completions=4, completionMode="Indexed")
    four["status"] = {"succeeded": 2}
    text = refusal(pod("lm-2-x7k2p", four, {INDEX: "2"}, said(2)), four)
    assert "runs 4 pods of it (2 worker, 2 have ended)" in text


def test_pods_of_other_templates_and_other_gangs_do_not_count() -> None:
    """A webhook may cut a Job of 8 in two gangs of 4; then its template names none of them."""
    eight = job(8)
    other = pod("lm-x7k2p", eight, annotations=said(4, name="half-1"))
    assert isinstance(told(other, [eight]).answer, Recognised)


def test_only_the_roles_whose_template_names_the_gang_are_counted() -> None:
    named = template(annotations=said(4))
    spec = {
        "tfReplicaSpecs": {
            "PS": {"replicas": 2, "template": template(gpus=0)},
            "Worker": {"replicas": 4, "template": named},
        }
    }
    tf_job = owner("kubeflow.org/v1 TFJob", "mnist", spec)
    worker = pod("mnist-worker-2", tf_job, annotations=said(4))
    answer = gang(worker, tf_job)
    assert (answer.size, answer.member.role, answer.member.rank) == (4, "worker", 2)
    spec["tfReplicaSpecs"]["Worker"]["replicas"] = 5
    assert "TFJob.kubeflow.org ml/mnist runs 5 pods of it (5 worker)" in refusal(worker, tf_job)


def test_a_stateful_set_may_run_as_many_pods_of_a_gang_as_it_has_members() -> None:
    spec = {"replicas": 4, "template": template(annotations=said(4))}
    set_ = owner("apps/v1 StatefulSet", "web", spec)
    first = pod("web-0", set_, annotations=said(4))
    assert gang(first, set_).waves == (1, 3)
    set_["spec"]["replicas"] = 1  # something else creates the other members
    assert gang(first, set_).waves == (4,)
    set_["spec"]["replicas"] = 4
    set_["spec"]["podManagementPolicy"] = "Parallel"
    assert gang(first, set_).size == 4
    set_["spec"]["replicas"] = 5
    assert "StatefulSet.apps ml/web runs 5 pods of it" in refusal(first, set_)


def test_members_that_are_made_only_after_others_run_are_to_come() -> None:
    named = template(annotations=said(6))
    spec = {
        "startupPolicy": "LeaderReady",
        "leaderWorkerTemplate": {"leaderTemplate": named, "workerTemplate": named},
    }
    lws = owner("leaderworkerset.x-k8s.io/v1 LeaderWorkerSet", "vllm", spec)
    labels = {
        "leaderworkerset.sigs.k8s.io/name": "vllm",
        "leaderworkerset.sigs.k8s.io/group-index": "0",
        "leaderworkerset.sigs.k8s.io/worker-index": "0",
    }
    size = {"leaderworkerset.sigs.k8s.io/size": "3"}
    leader = pod("vllm-0", owner("apps/v1 StatefulSet", "vllm"), labels, {**size, **said(6)})
    # Three members have another owner.
    assert gang(leader, lws).waves == (4, 2)


def test_another_groups_count_has_to_agree() -> None:
    kueue = {"kueue.x-k8s.io/pod-group-name": "g"}
    total = "kueue.x-k8s.io/pod-group-total-count"
    agrees = pod("w", labels=kueue, annotations={total: "4", **said(4)})
    assert gang(agrees).rule == "linkwise.dev"
    differs = pod("w", labels=kueue, annotations={total: "8", **said(4)})
    assert refusal(differs) == (
        f"linkwise.dev/gang 'train': linkwise.dev/gang-size is 4, but {total}: 8"
    )


def test_a_group_that_needs_more_than_the_gang_has_is_refused() -> None:
    group = owner("scheduling.x-k8s.io/v1alpha1 PodGroup", "g", {"minMember": 5})
    made = pod("w", labels={"scheduling.x-k8s.io/pod-group": "g"}, annotations=said(4))
    assert refusal(made, group) == (
        "linkwise.dev/gang 'train': linkwise.dev/gang-size is 4, "
        "but PodGroup.scheduling.x-k8s.io ml/g: 5 at once"
    )
    group["spec"]["minMember"] = 3
    assert gang(made, group).size == 4


def test_a_group_that_is_not_there_yet_is_not_waited_for_where_the_author_said_it_all() -> None:
    made = pod("w", labels={"scheduling.x-k8s.io/pod-group": "g"}, annotations=said(4))
    assert gang(made).size == 4


def test_an_owner_that_is_gone_does_not_take_the_authors_word_away() -> None:
    assert gang(pod("lm-x7k2p", job(8), annotations=said(4))).size == 4


def test_a_rank_alone_goes_before_what_the_owner_says() -> None:
    spec = {"parallelism": 4, "completions": 4, "completionMode": "Indexed", "template": template()}
    indexed = owner("batch/v1 Job", "lm", spec)
    made = pod("lm-3-x7k2p", indexed, {INDEX: "3"}, {"linkwise.dev/rank": "0"})
    answer = gang(made, indexed)
    assert (answer.member.index, answer.member.rank) == (3, 0)


def test_the_rank_of_a_named_gang_is_the_owners_where_the_author_gives_none() -> None:
    indexed = job(4, completions=4, completionMode="Indexed")
    answer = gang(pod("lm-3-x7k2p", indexed, {INDEX: "3"}, said(4)), indexed)
    assert (answer.rule, answer.member.rank) == ("linkwise.dev", 3)


def test_an_annotation_that_cannot_be_read_is_refused_with_key_value_and_what_is_allowed() -> None:
    assert refusal(pod("w", annotations=said("four"))) == (
        "linkwise.dev/gang-size: 'four': expected a whole number from 1 to 4096"
    )
