// Copyright: gpuops.nvidia contributors
// GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
// SPDX-License-Identifier: GPL-3.0-or-later

// Runs one container as a kubelet does it: over CRI, in a pod of its own with the handler of a RuntimeClass.
//
//	cri [-socket PATH] [-handler NAME] [-cgroup PARENT] IMAGE COMMAND...
//
// The pod has the host's network, so no CNI is needed. Prints what the container wrote, removes the pod, and ends with
// the container's exit status, or with 125 and the runtime's error.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	patience = 30 * time.Second
	failed   = 125
)

func main() {
	socket := flag.String("socket", "/run/containerd/containerd.sock", "of the container runtime")
	handler := flag.String("handler", "", "of the RuntimeClass; empty for the default runtime")
	parent := flag.String("cgroup", "", "of the pod; a slice where the runtime leaves cgroups to systemd")
	flag.Parse()
	if flag.NArg() < 2 {
		flag.Usage()
		os.Exit(2)
	}
	code, err := runPod(*socket, *handler, *parent, flag.Arg(0), flag.Args()[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = failed
	}
	os.Exit(code)
}

func runPod(socket, handler, parent, image string, command []string) (code int, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	connection, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return 0, err
	}
	defer connection.Close()
	logs, err := os.MkdirTemp("", "cri-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(logs)

	name := filepath.Base(logs)
	host := &cri.NamespaceOption{Network: cri.NamespaceMode_NODE}
	pod := &cri.PodSandboxConfig{
		Metadata:     &cri.PodSandboxMetadata{Name: name, Namespace: "default", Uid: name},
		LogDirectory: logs,
		Linux: &cri.LinuxPodSandboxConfig{
			CgroupParent:    parent,
			SecurityContext: &cri.LinuxSandboxSecurityContext{NamespaceOptions: host},
		},
	}
	runtime := cri.NewRuntimeServiceClient(connection)
	made, err := runtime.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: pod, RuntimeHandler: handler})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, remove(runtime, made.PodSandboxId)) }()
	return runContainer(ctx, runtime, made.PodSandboxId, pod, image, command)
}

func runContainer(ctx context.Context, runtime cri.RuntimeServiceClient, id string, pod *cri.PodSandboxConfig,
	image string, command []string) (int, error) {
	made, err := runtime.CreateContainer(ctx, &cri.CreateContainerRequest{
		PodSandboxId:  id,
		SandboxConfig: pod,
		Config: &cri.ContainerConfig{
			Metadata: &cri.ContainerMetadata{Name: "only"},
			Image:    &cri.ImageSpec{Image: image},
			Command:  command,
			LogPath:  "log",
			Linux: &cri.LinuxContainerConfig{SecurityContext: &cri.LinuxContainerSecurityContext{
				NamespaceOptions: pod.Linux.SecurityContext.NamespaceOptions,
			}},
		},
	})
	if err != nil {
		return 0, err
	}
	if _, err = runtime.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: made.ContainerId}); err != nil {
		return 0, err
	}
	for {
		seen, err := runtime.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: made.ContainerId})
		if err != nil {
			return 0, err
		}
		if seen.Status.State == cri.ContainerState_CONTAINER_EXITED {
			return int(seen.Status.ExitCode), show(filepath.Join(pod.LogDirectory, "log"))
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// show prints a log of CRI, whose lines are: time, stream, F or P, text.
func show(path string) error {
	text, err := os.ReadFile(path)
	for line := range strings.Lines(string(text)) {
		if words := strings.SplitN(line, " ", 4); len(words) == 4 {
			fmt.Print(words[3])
		}
	}
	return err
}

// remove has time of its own: what went wrong before may have used up the other.
func remove(runtime cri.RuntimeServiceClient, id string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if _, err := runtime.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: id}); err != nil {
		return err
	}
	_, err := runtime.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: id})
	return err
}
