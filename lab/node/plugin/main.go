// Copyright: gpuops.nvidia contributors
// GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
// SPDX-License-Identifier: GPL-3.0-or-later

// Stands in for NVIDIA's device plugin, whose source the Go proxy does not give: offers the GPUs that nvidia-smi lists as
// nvidia.com/gpu, and gives a container what CDI says of them. The kubelet that it speaks to is a real one.
package main

import (
	"context"
	"fmt"
	"log"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	resource = "nvidia.com/gpu"
	socket   = api.DevicePluginPath + "nvidia-gpu.sock"
	kind     = "k8s.device-plugin.nvidia.com/gpu"
	interval = 2 * time.Second
)

type plugin struct {
	api.UnimplementedDevicePluginServer
}

// main serves, or with a path and perhaps a body asks the API server, which busybox cannot.
func main() {
	err := error(nil)
	if len(os.Args) > 1 {
		err = ask(os.Args[1], os.Args[2:]...)
	} else {
		err = run()
	}
	if err != nil {
		log.Fatal(err)
	}
}

// run serves and registers until the kubelet has another socket, as it has after a restart of its own.
func run() error {
	found, err := devices()
	if err != nil {
		return fmt.Errorf("failed to initialize NVML: %w", err)
	}
	log.Printf("found %d GPUs", len(found))
	_ = os.Remove(socket)
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	api.RegisterDevicePluginServer(server, &plugin{})
	go func() { log.Print(server.Serve(listener)) }()
	before, err := os.Stat(api.KubeletSocket)
	if err != nil {
		return err
	}
	if err := register(); err != nil {
		return err
	}
	log.Printf("registered %s with the kubelet", resource)
	told := make(chan os.Signal, 1)
	signal.Notify(told, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	for {
		select {
		case <-told:
			server.Stop()
			return nil
		case <-time.After(interval):
			if now, err := os.Stat(api.KubeletSocket); err == nil && !os.SameFile(before, now) {
				return fmt.Errorf("the kubelet has started anew")
			}
		}
	}
}

func register() error {
	connection, err := grpc.NewClient("unix://"+api.KubeletSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_, err = api.NewRegistrationClient(connection).Register(ctx, &api.RegisterRequest{
		Version: api.Version, Endpoint: filepath.Base(socket), ResourceName: resource,
		Options: &api.DevicePluginOptions{},
	})
	return err
}

// devices are the UUIDs of the GPUs that NVML knows.
func devices() ([]string, error) {
	said, err := exec.Command("nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader").CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, strings.TrimSpace(string(said)))
	}
	return strings.Fields(string(said)), nil
}

func (*plugin) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{}, nil
}

func (*plugin) PreStartContainer(context.Context, *api.PreStartContainerRequest) (*api.PreStartContainerResponse, error) {
	return &api.PreStartContainerResponse{}, nil
}

// ListAndWatch tells the GPUs, and again whenever they are others; none where NVML does not answer.
func (*plugin) ListAndWatch(_ *api.Empty, stream api.DevicePlugin_ListAndWatchServer) error {
	told := "nothing yet"
	for stream.Context().Err() == nil {
		found, err := devices()
		if err != nil {
			log.Print(err)
		}
		if now := strings.Join(found, " "); now != told {
			answer := &api.ListAndWatchResponse{}
			for _, uuid := range found {
				answer.Devices = append(answer.Devices, &api.Device{ID: uuid, Health: api.Healthy})
			}
			if err := stream.Send(answer); err != nil {
				return err
			}
			told = now
		}
		time.Sleep(interval)
	}
	return nil
}

// Allocate answers by the strategies that the manifest asks for: names of CDI devices, as annotations and as such.
func (*plugin) Allocate(_ context.Context, asked *api.AllocateRequest) (*api.AllocateResponse, error) {
	answer := &api.AllocateResponse{}
	strategies := os.Getenv("DEVICE_LIST_STRATEGY")
	for _, one := range asked.ContainerRequests {
		var names []string
		for _, uuid := range one.DevicesIds {
			names = append(names, kind+"="+uuid)
		}
		given := &api.ContainerAllocateResponse{}
		if strings.Contains(strategies, "envvar") {
			given.Envs = map[string]string{"NVIDIA_VISIBLE_DEVICES": strings.Join(one.DevicesIds, ",")}
		}
		if strings.Contains(strategies, "cdi-annotations") {
			key := os.Getenv("CDI_ANNOTATION_PREFIX") + "nvidia-device-plugin_" + one.DevicesIds[0][4:12]
			given.Annotations = map[string]string{key: strings.Join(names, ",")}
		}
		if strings.Contains(strategies, "cdi-cri") {
			for _, name := range names {
				given.CdiDevices = append(given.CdiDevices, &api.CDIDevice{Name: name})
			}
		}
		answer.ContainerResponses = append(answer.ContainerResponses, given)
	}
	return answer, nil
}

func (*plugin) GetPreferredAllocation(context.Context, *api.PreferredAllocationRequest) (
	*api.PreferredAllocationResponse, error) {
	return &api.PreferredAllocationResponse{}, nil
}
