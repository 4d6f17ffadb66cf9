// Command kubelet is what a real node runs of Kubernetes in one file: kubelet and kube-proxy, chosen by the first argument. Beside the
// kubelet runs a CSI driver of local disks, so that pods can have volumes that are not tied to their node, but lost with it.
//
// It is not a part of the control plane's file, which would make every component of every cluster bigger, those that are
// measured in benchmarks too.
package main

import (
	"context"
	"fmt"
	"os"

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"          // the components offer --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // client and work queue metrics, as upstream's binaries serve them
	_ "k8s.io/component-base/metrics/prometheus/version"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: kubelet kubelet|kube-proxy [flags]")
		os.Exit(2)
	}
	// The components read os.Args themselves and expect their own name in front.
	os.Args = os.Args[1:]
	switch os.Args[0] {
	case "kubelet":
		if err := serveLocaldisk(os.Args); err != nil {
			// Pods without such volumes do not miss it.
			fmt.Fprintln(os.Stderr, "localdisk:", err)
		}
		os.Exit(cli.Run(kubelet.NewKubeletCommand(context.Background())))
	case "kube-proxy":
		os.Exit(cli.Run(proxy.NewProxyCommand()))
	default:
		fmt.Fprintln(os.Stderr, "there is no", os.Args[0])
		os.Exit(2)
	}
}
