// The devices that kube-scheduler allocates, by its own allocator with its default features. Each line
// of the standard input has ResourceSlices, nodes and UUIDs. A line of the output has, of each node,
// the UUIDs that a new claim gets there.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/go-logr/logr"
	core "k8s.io/api/core/v1"
	resource "k8s.io/api/resource/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/dynamicresources"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
)

type world struct {
	Slices []*resource.ResourceSlice `json:"slices"`
	Nodes  []string                  `json:"nodes"`
	UUIDs  []string                  `json:"uuids"`
}

type oneClass struct{ *resource.DeviceClass }

func (one oneClass) List() ([]*resource.DeviceClass, error) {
	return []*resource.DeviceClass{one.DeviceClass}, nil
}

func (one oneClass) Get(string) (*resource.DeviceClass, error) { return one.DeviceClass, nil }

func main() {
	klog.SetLogger(logr.Discard())
	features := dynamicresources.AllocatorFeatures(
		feature.NewSchedulerFeaturesFromGates(utilfeature.DefaultFeatureGate))
	cache := cel.NewCache(100, cel.Features{
		EnableConsumableCapacity: features.ConsumableCapacity,
		EnableListTypeAttributes: features.ListTypeAttributes,
	})
	input, output := bufio.NewReader(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		line, err := input.ReadBytes('\n')
		if err != nil {
			return
		}
		var given world
		if err := json.Unmarshal(line, &given); err != nil {
			panic(err)
		}
		allocated, err := given.allocated(context.Background(), features, cache)
		if err != nil {
			panic(err)
		}
		if err := output.Encode(allocated); err != nil {
			panic(err)
		}
	}
}

func (given *world) allocated(
	ctx context.Context, features structured.Features, cache *cel.Cache,
) (map[string][]string, error) {
	found := map[string][]string{}
	for _, name := range given.Nodes {
		node := &core.Node{ObjectMeta: meta.ObjectMeta{Name: name}}
		found[name] = []string{}
		for _, uuid := range given.UUIDs {
			allocator, err := structured.NewAllocator(
				ctx, features, nothing(), oneClass{&resource.DeviceClass{}}, given.Slices, cache)
			if err != nil {
				return nil, err
			}
			results, err := allocator.Allocate(ctx, node, []*resource.ResourceClaim{claim(uuid)})
			if err != nil && !errors.Is(err, structured.ErrFailedAllocationOnNode) {
				return nil, err
			}
			if len(results) > 0 {
				found[name] = append(found[name], uuid)
			}
		}
	}
	return found, nil
}

func nothing() structured.AllocatedState {
	return structured.AllocatedState{
		AllocatedDevices:         sets.New[structured.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
	}
}

// claim requests exactly the device of that UUID, as the extender's claims do.
func claim(uuid string) *resource.ResourceClaim {
	wanted := fmt.Sprintf(`device.attributes[device.driver].uuid == %q`, uuid)
	return &resource.ResourceClaim{
		ObjectMeta: meta.ObjectMeta{Name: "claim", Namespace: "ml"},
		Spec: resource.ResourceClaimSpec{Devices: resource.DeviceClaim{
			Requests: []resource.DeviceRequest{{
				Name: "gpu",
				Exactly: &resource.ExactDeviceRequest{
					DeviceClassName: "gpu",
					AllocationMode:  resource.DeviceAllocationModeExactCount,
					Count:           1,
					Selectors: []resource.DeviceSelector{
						{CEL: &resource.CELDeviceSelector{Expression: wanted}},
					},
				},
			}},
		}},
	}
}
