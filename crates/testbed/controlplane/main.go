// Command controlplane is a Kubernetes control plane in one file: etcd, kube-apiserver, kube-controller-manager,
// kube-scheduler, kwok and kubectl, chosen by the first argument.
//
// One binary instead of five because they share almost all of their code: it links once and takes a fifth of the disk.
package main

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"          // the components offer --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // client and work queue metrics, as upstream's binaries serve them
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

var components = map[string]func(){
	"elector-reference":       electorReference,
	"enter":                   enter,
	"etcd":                    func() { etcdmain.Main(os.Args) },
	"keeper":                  keeper,
	"kube-apiserver":          func() { run(apiserver.NewAPIServerCommand()) },
	"kube-controller-manager": func() { run(controllermanager.NewControllerManagerCommand()) },
	"kube-scheduler":          func() { run(scheduler.NewSchedulerCommand()) },
	"kubectl":                 func() { run(kubectl.NewDefaultKubectlCommand()) },
	"kwok":                    kwok,
	"leash":                   leash,
	"powercut":                powercut,
	"user-certificate":        userCertificate,
	"workqueue-reference":     workqueueReference,
}

func main() {
	if len(os.Args) < 2 || components[os.Args[1]] == nil {
		names := make([]string, 0, len(components))
		for name := range components {
			names = append(names, name)
		}
		slices.Sort(names)
		fmt.Fprintf(os.Stderr, "usage: controlplane %s [flags]\n", strings.Join(names, "|"))
		os.Exit(2)
	}
	// The components read os.Args themselves and expect their own name in front.
	component := components[os.Args[1]]
	os.Args = os.Args[1:]
	// These two stand for processes in other namespaces, and have to see to them first.
	if os.Args[0] != "enter" && os.Args[0] != "keeper" {
		holdLifeline()
	}
	component()
}

func run(command *cobra.Command) {
	os.Exit(cli.Run(command))
}
