// A vendor's device plugin, made of Kubernetes' own stub of one. The file in its first argument has
// the device ids of each resource as JSON. It serves one socket per resource and registers at
// KUBELET_SOCKET. As NVIDIA's plugin does, it starts over when that socket is created, and it does
// not start while the directory of the socket is missing.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"sort"
	"strings"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"
	"k8s.io/klog/v2"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	stub "k8s.io/kubernetes/pkg/kubelet/cm/devicemanager/plugin/v1beta1"
)

const retry = time.Second

func main() {
	ctx := context.Background()
	logger := klog.FromContext(ctx)
	where := os.Getenv("KUBELET_SOCKET")
	var offers map[string][]string
	content, err := os.ReadFile(os.Args[1])
	if err == nil {
		err = json.Unmarshal(content, &offers)
	}
	watcher, failed := fsnotify.NewWatcher()
	if err == nil {
		err = failed
	}
	if err == nil {
		err = watcher.Add(filepath.Dir(where))
	}
	if err != nil {
		logger.Error(err, "cannot start")
		os.Exit(1)
	}
	ends := make(chan os.Signal, 1)
	signal.Notify(ends, syscall.SIGTERM, syscall.SIGINT)
	for {
		plugins, err := begin(ctx, offers, where)
		again := make(<-chan time.Time)
		if err != nil {
			logger.Error(err, "registration failed")
			again = time.After(retry)
		}
		end := !startsOver(watcher, where, ends, again)
		for _, plugin := range plugins {
			if err := plugin.Stop(logger); err != nil {
				logger.Error(err, "stop failed")
			}
		}
		if end {
			return
		}
	}
}

// begin serves and registers every resource, up to the first that fails.
func begin(ctx context.Context, offers map[string][]string, where string) ([]*stub.Stub, error) {
	var plugins []*stub.Stub
	for resource, ids := range offers {
		_, name, _ := strings.Cut(resource, "/")
		socket := filepath.Join(api.DevicePluginPath, "nvidia-"+name+".sock")
		var devices []*api.Device
		for _, id := range ids {
			devices = append(devices, &api.Device{ID: id, Health: api.Healthy})
		}
		plugin := stub.NewDevicePluginStub(klog.FromContext(ctx), devices, socket, resource, true, true)
		plugin.SetAllocFunc(allocate)
		plugin.SetGetPreferredAllocFunc(prefer)
		if err := plugin.Start(ctx); err != nil {
			return plugins, err
		}
		plugins = append(plugins, plugin)
		if err := plugin.Register(ctx, where, resource, ""); err != nil {
			return plugins, err
		}
	}
	return plugins, nil
}

// startsOver waits for a reason to start over, and returns true, or to end.
func startsOver(watcher *fsnotify.Watcher, where string, ends <-chan os.Signal, again <-chan time.Time) bool {
	for {
		select {
		case event := <-watcher.Events:
			if event.Name == where && event.Has(fsnotify.Create) {
				return true
			}
		case <-again:
			return true
		case <-ends:
			return false
		}
	}
}

// allocate names each GPU once, however many of its replicas are asked for.
func allocate(request *api.AllocateRequest, devices map[string]*api.Device) (*api.AllocateResponse, error) {
	response := &api.AllocateResponse{}
	for _, asked := range request.ContainerRequests {
		var gpus []string
		for _, id := range sorted(asked.DevicesIds) {
			if devices[id] == nil {
				return nil, fmt.Errorf("no such device: %s", id)
			}
			gpu, _, _ := strings.Cut(id, "::")
			if len(gpus) == 0 || gpus[len(gpus)-1] != gpu {
				gpus = append(gpus, gpu)
			}
		}
		response.ContainerResponses = append(response.ContainerResponses, &api.ContainerAllocateResponse{
			Envs: map[string]string{"NVIDIA_VISIBLE_DEVICES": strings.Join(gpus, ",")},
		})
	}
	return response, nil
}

// prefer wants the last ids by name: a choice that neither the kubelet nor Linkwise would make.
func prefer(request *api.PreferredAllocationRequest, _ map[string]*api.Device) (*api.PreferredAllocationResponse, error) {
	response := &api.PreferredAllocationResponse{}
	for _, asked := range request.ContainerRequests {
		ids := sorted(asked.AvailableDeviceIDs)
		response.ContainerResponses = append(response.ContainerResponses, &api.ContainerPreferredAllocationResponse{
			DeviceIDs: ids[len(ids)-int(asked.AllocationSize):],
		})
	}
	return response, nil
}

func sorted(ids []string) []string {
	ids = append([]string(nil), ids...)
	sort.Strings(ids)
	return ids
}
