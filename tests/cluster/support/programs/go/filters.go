// kube-scheduler's verdict on every node, by its own plugins in their default order. Each line of the
// standard input is a case: nodes, pods that run there, volumes, and the pod that waits, as users
// write them. A line of the output has those objects as an API server stores them, and the plugin
// that refuses each node, or the one that stops the pod before any node is looked at.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/go-logr/logr"
	core "k8s.io/api/core/v1"
	storage "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	internal "k8s.io/kubernetes/pkg/apis/core"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	_ "k8s.io/kubernetes/pkg/apis/storage/install"
	"k8s.io/kubernetes/pkg/registry/core/namespace"
	"k8s.io/kubernetes/pkg/registry/core/node"
	"k8s.io/kubernetes/pkg/registry/core/persistentvolume"
	"k8s.io/kubernetes/pkg/registry/core/persistentvolumeclaim"
	"k8s.io/kubernetes/pkg/registry/core/pod"
	"k8s.io/kubernetes/pkg/registry/storage/csinode"
	"k8s.io/kubernetes/pkg/registry/storage/storageclass"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/profile"
)

const together = 64 // cases at once: most of the time of each is waiting for informers

type world struct {
	Nodes                  []*core.Node                  `json:"nodes"`
	Pods                   []*core.Pod                   `json:"pods"`
	Pod                    *core.Pod                     `json:"pod"`
	Namespaces             []*core.Namespace             `json:"namespaces"`
	PersistentVolumes      []*core.PersistentVolume      `json:"persistentVolumes"`
	PersistentVolumeClaims []*core.PersistentVolumeClaim `json:"persistentVolumeClaims"`
	StorageClasses         []*storage.StorageClass       `json:"storageClasses"`
	CSINodes               []*storage.CSINode            `json:"csiNodes"`
}

// verdict is empty if the pod may run on the node.
type verdict struct {
	Plugin  string   `json:"plugin"`
	Code    string   `json:"code"`
	Reasons []string `json:"reasons"`
}

type answer struct {
	Stored *world             `json:"stored"`
	Nodes  map[string]verdict `json:"nodes"`
	Error  string             `json:"error"`
}

func main() {
	klog.SetLogger(logr.Discard())
	output := bufio.NewWriter(os.Stdout)
	defer output.Flush()
	// Answers are written in the order of their cases.
	waiting := make(chan chan answer, together)
	go func() {
		defer close(waiting)
		input := bufio.NewReader(os.Stdin)
		for {
			line, err := input.ReadBytes('\n')
			if len(line) > 0 {
				answered := make(chan answer, 1)
				waiting <- answered
				go func() { answered <- answerTo(line) }()
			}
			if err != nil {
				return
			}
		}
	}()
	for answered := range waiting {
		line, err := json.Marshal(<-answered)
		if err != nil {
			panic(err)
		}
		output.Write(append(line, '\n'))
		if len(waiting) == 0 {
			output.Flush()
		}
	}
}

func answerTo(line []byte) (answered answer) {
	defer func() {
		if problem := recover(); problem != nil {
			answered = answer{Error: fmt.Sprintf("panic: %v", problem)}
		}
	}()
	var given world
	reader := json.NewDecoder(bytes.NewReader(line))
	reader.DisallowUnknownFields() // a field that nothing reads would test nothing
	err := reader.Decode(&given)
	if err == nil {
		err = given.store()
	}
	if err != nil {
		return answer{Error: err.Error()}
	}
	nodes, err := verdicts(&given)
	if err != nil {
		return answer{Error: err.Error()}
	}
	return answer{Stored: &given, Nodes: nodes}
}

// store makes of each object what an API server makes of it: with defaults, valid, and the labels of
// matchLabelKeys merged into selectors.
func (given *world) store() error {
	if given.Pod == nil {
		return errors.New("pod: missing")
	}
	var failed []error
	for _, each := range given.Nodes {
		failed = append(failed, store(each, node.Strategy))
	}
	for _, each := range append(given.Pods, given.Pod) {
		if each.UID == "" { // kube-scheduler's cache would leave it out
			return fmt.Errorf("pod %s: no uid", each.Name)
		}
		status := each.Status.DeepCopy()
		failed = append(failed, store(each, pod.Strategy))
		each.Status = *status
	}
	for _, each := range given.Namespaces {
		failed = append(failed, store(each, namespace.Strategy))
	}
	for _, each := range given.PersistentVolumes {
		failed = append(failed, store(each, persistentvolume.Strategy))
	}
	for _, each := range given.PersistentVolumeClaims {
		failed = append(failed, store(each, persistentvolumeclaim.Strategy))
	}
	for _, each := range given.StorageClasses {
		failed = append(failed, store(each, storageclass.Strategy))
	}
	for _, each := range given.CSINodes {
		failed = append(failed, store(each, csinode.Strategy))
	}
	return errors.Join(failed...)
}

func store(object runtime.Object, strategy rest.RESTCreateStrategy) error {
	kinds, _, err := legacyscheme.Scheme.ObjectKinds(object)
	if err != nil {
		return err
	}
	ctx := request.WithRequestInfo(context.Background(), &request.RequestInfo{
		APIGroup: kinds[0].Group, APIVersion: kinds[0].Version,
	})
	legacyscheme.Scheme.Default(object)
	stored, err := legacyscheme.Scheme.ConvertToVersion(object, runtime.InternalGroupVersioner)
	if err != nil {
		return err
	}
	if _, is := stored.(*internal.Pod); is { // that of other kinds removes the status
		strategy.PrepareForCreate(ctx, stored)
	}
	if wrong := strategy.Validate(ctx, stored); len(wrong) > 0 {
		return fmt.Errorf("%T: %w", object, wrong.ToAggregate())
	}
	return legacyscheme.Scheme.Convert(stored, object, nil)
}

func (given *world) objects() []runtime.Object {
	var objects []runtime.Object
	for _, each := range given.Nodes {
		objects = append(objects, each)
	}
	for _, each := range given.Pods {
		// kube-scheduler's watch leaves out what has ended; the fake client knows no such selector.
		if each.Status.Phase != core.PodSucceeded && each.Status.Phase != core.PodFailed {
			objects = append(objects, each)
		}
	}
	for _, each := range given.Namespaces {
		objects = append(objects, each)
	}
	for _, each := range given.PersistentVolumes {
		objects = append(objects, each)
	}
	for _, each := range given.PersistentVolumeClaims {
		objects = append(objects, each)
	}
	for _, each := range given.StorageClasses {
		objects = append(objects, each)
	}
	for _, each := range given.CSINodes {
		objects = append(objects, each)
	}
	return objects
}

// verdicts starts a kube-scheduler that schedules nothing, and asks its plugins.
func verdicts(given *world) (map[string]verdict, error) {
	ctx, end := context.WithCancel(context.Background())
	defer end()
	client := fake.NewSimpleClientset(given.objects()...)
	informers := scheduler.NewInformerFactory(client, 0, nil)
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: client.EventsV1()})
	started, err := scheduler.New(ctx, client, informers, nil, profile.NewRecorderFactory(broadcaster))
	if err != nil {
		return nil, err
	}
	informers.Start(ctx.Done())
	informers.WaitForCacheSync(ctx.Done())
	if err := started.WaitForHandlersSync(ctx); err != nil {
		return nil, err
	}
	plugins := started.Profiles[core.DefaultSchedulerName]
	snapshot := plugins.SnapshotSharedLister().(*cache.Snapshot)
	if err := started.Cache.UpdateSnapshot(klog.FromContext(ctx), snapshot); err != nil {
		return nil, err
	}
	state := framework.NewCycleState()
	nodes, refused, by := plugins.RunPreFilterPlugins(ctx, state, given.Pod)
	answered := map[string]verdict{}
	for _, each := range given.Nodes {
		switch info, err := snapshot.NodeInfos().Get(each.Name); {
		case err != nil:
			return nil, err
		case !refused.IsSuccess():
			answered[each.Name] = read(refused, by)
		case !nodes.AllNodes() && !nodes.NodeNames.Has(each.Name):
			answered[each.Name] = verdict{
				Plugin: strings.Join(sets.List(by), ","), Code: fwk.UnschedulableAndUnresolvable.String(),
			}
		default:
			answered[each.Name] = read(plugins.RunFilterPlugins(ctx, state, given.Pod, info), nil)
		}
	}
	return answered, nil
}

// read names the plugins *by* if the status itself names none: together they leave no node.
func read(status *fwk.Status, by sets.Set[string]) verdict {
	if status.IsSuccess() {
		return verdict{}
	}
	plugin := status.Plugin()
	if plugin == "" {
		plugin = strings.Join(sets.List(by), ",")
	}
	return verdict{Plugin: plugin, Code: status.Code().String(), Reasons: status.Reasons()}
}
