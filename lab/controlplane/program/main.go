// Copyright: gpuops.nvidia contributors
// GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
// SPDX-License-Identifier: GPL-3.0-or-later

// One program that is every part of a Kubernetes control plane: each part's own command, chosen by the name that the
// program is called by, or by its first argument. One program shares most of its code: it is built once, and it is a
// quarter of the parts' size.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
	"sigs.k8s.io/kwok/kustomize/crd"
	nodefast "sigs.k8s.io/kwok/kustomize/stage/node/fast"
	nodeheartbeat "sigs.k8s.io/kwok/kustomize/stage/node/heartbeat-with-lease"
	podfast "sigs.k8s.io/kwok/kustomize/stage/pod/fast"
	kwokconfig "sigs.k8s.io/kwok/pkg/config"
	kwok "sigs.k8s.io/kwok/pkg/kwok/cmd"
	kwoklog "sigs.k8s.io/kwok/pkg/log"
	"sigs.k8s.io/kwok/pkg/utils/signals"
)

var parts = map[string]func(){
	"etcd":                    func() { etcdmain.Main(os.Args) },
	"kube-apiserver":          func() { run(apiserver.NewAPIServerCommand()) },
	"kube-controller-manager": func() { run(controllers.NewControllerManagerCommand()) },
	"kube-scheduler":          func() { run(scheduler.NewSchedulerCommand()) },
	"kubelet":                 func() { run(kubelet.NewKubeletCommand(context.Background())) },
	"kubectl":                 func() { run(kubectl.NewDefaultKubectlCommand()) },
	"kwok":                    runKwok,
	// What kwok carries, printed, so that no copies of it need be kept.
	"kwok-crds": func() { printAll(string(crd.Stage)) },
	"kwok-stages": func() {
		printAll(nodefast.DefaultNodeInit, nodeheartbeat.DefaultNodeHeartbeatWithLease, podfast.DefaultPodReady,
			podfast.DefaultPodComplete, podfast.DefaultPodDelete)
	},
}

func main() {
	part, known := parts[filepath.Base(os.Args[0])]
	if !known && len(os.Args) > 1 {
		os.Args = os.Args[1:]
		part, known = parts[os.Args[0]]
	}
	if !known {
		names := make([]string, 0, len(parts))
		for name := range parts {
			names = append(names, name)
		}
		sort.Strings(names)
		fmt.Fprintln(os.Stderr, "the first argument must be one of:", strings.Join(names, ", "))
		os.Exit(2)
	}
	part()
}

func run(command *cobra.Command) {
	os.Exit(cli.Run(command))
}

func runKwok() {
	// The other parts' packages have put flags into the common set that kwok's command refuses.
	pflag.CommandLine = pflag.NewFlagSet("kwok", pflag.ContinueOnError)
	flags := pflag.NewFlagSet("global", pflag.ContinueOnError)
	flags.ParseErrorsAllowlist.UnknownFlags = true
	flags.Usage = func() {}
	ctx, _ := kwoklog.InitFlags(signals.SetupSignalContext(), flags)
	ctx, err := kwokconfig.InitFlags(ctx, flags)
	if err == nil {
		err = executeKwok(ctx, flags)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "kwok:", err)
		os.Exit(1)
	}
}

func executeKwok(ctx context.Context, flags *pflag.FlagSet) error {
	command := kwok.NewCommand(ctx)
	command.PersistentFlags().AddFlagSet(flags)
	return command.ExecuteContext(ctx)
}

func printAll(documents ...string) {
	for _, document := range documents {
		fmt.Printf("---\n%s\n", document)
	}
}
