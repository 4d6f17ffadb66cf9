package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"sigs.k8s.io/kwok/pkg/config"
	kwokcmd "sigs.k8s.io/kwok/pkg/kwok/cmd"
	"sigs.k8s.io/kwok/pkg/log"
	"sigs.k8s.io/kwok/pkg/utils/signals"
)

// kwok does what kwok's own main does. It is here, and not a binary of its own, because only our main holds the lifeline.
func kwok() {
	// The Kubernetes components register a --version of their own in the global set, which every command inherits.
	pflag.CommandLine = pflag.NewFlagSet("kwok", pflag.ContinueOnError)

	flags := pflag.NewFlagSet("global", pflag.ContinueOnError)
	flags.ParseErrorsAllowlist.UnknownFlags = true
	flags.Usage = func() {}

	ctx, _ := log.InitFlags(signals.SetupSignalContext(), flags)
	ctx, err := config.InitFlags(ctx, flags)
	if err == nil {
		command := kwokcmd.NewCommand(ctx)
		command.PreRunE = startEndingPods
		command.PersistentFlags().AddFlagSet(flags)
		err = command.ExecuteContext(ctx)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "kwok:", err)
		os.Exit(1)
	}
}

// startEndingPods does beside kwok what no stage of kwok does safely.
func startEndingPods(command *cobra.Command, _ []string) error {
	kubeconfig, err := command.Flags().GetString("kubeconfig")
	if err != nil {
		return err
	}
	nodes, err := command.Flags().GetString("manage-nodes-with-label-selector")
	if err != nil {
		return err
	}
	return endPods(command.Context(), kubeconfig, nodes)
}
