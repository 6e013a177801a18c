// The two parts of an older Kubernetes that Linkwise talks to through the API: kube-apiserver and
// kube-scheduler. Everything else in the tests comes from the newest version.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

func main() {
	commands := map[string]func() *cobra.Command{
		"kube-apiserver": apiserver.NewAPIServerCommand,
		"kube-scheduler": func() *cobra.Command { return scheduler.NewSchedulerCommand() },
	}
	name := filepath.Base(os.Args[0])
	command, found := commands[name]
	if !found {
		fmt.Fprintf(os.Stderr, "%s: no part of Kubernetes has this name\n", name)
		os.Exit(2)
	}
	os.Exit(cli.Run(command()))
}
