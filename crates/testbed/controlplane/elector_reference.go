package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// electorReference contends for a Lease with client-go's own elector, so that another implementation can be tested against it:
//
//	controlplane elector-reference KUBECONFIG NAMESPACE NAME IDENTITY
//
// It has the settings of dynamic-pvc-provisioner: 60, 15 and 5 seconds, and the lease is released at the end. While it leads it
// asks for a claim again and again, as a dry run: the audit log then shows when it believed to be the leader.
func electorReference() {
	if len(os.Args) != 5 {
		fmt.Fprintln(os.Stderr, "usage: controlplane elector-reference KUBECONFIG NAMESPACE NAME IDENTITY")
		os.Exit(2)
	}
	exitWith("elector-reference", contend(os.Args[1], os.Args[2], os.Args[3], os.Args[4]))
}

func contend(kubeconfig, namespace, name, identity string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: namespace, Name: name},
			Client:     client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: identity},
		},
		LeaseDuration:   60 * time.Second,
		RenewDeadline:   15 * time.Second,
		RetryPeriod:     5 * time.Second,
		ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(term context.Context) { act(term, client, namespace, identity) },
			OnStoppedLeading: func() {},
			OnNewLeader:      func(leader string) { fmt.Println("the leader is", leader) },
		},
	})
	if err != nil {
		return err
	}
	stop, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer cancel()
	elector.Run(stop)
	return nil
}

// act asks for a claim every half second, which leaves the client, that makes five requests a second, time for the lease.
func act(term context.Context, client kubernetes.Interface, namespace, identity string) {
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: identity},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			},
		},
	}
	wait.UntilWithContext(term, func(term context.Context) {
		dryRun := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
		_, err := client.CoreV1().PersistentVolumeClaims(namespace).Create(term, claim, dryRun)
		if err != nil && term.Err() == nil {
			fmt.Println("no claim:", err)
		}
	}, 500*time.Millisecond)
}
