package main

import (
	"context"
	"fmt"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/workqueue"
)

const (
	podEnders     = 4
	endRetryFirst = 50 * time.Millisecond
	endRetryLast  = 5 * time.Second
)

// podEnder does what a kubelet does last for a pod that is being deleted. A stage of kwok would do the same, but says only
// the pod's name: where a pod of that name has come in between, it would end that one.
type podEnder struct {
	client kubernetes.Interface
	nodes  corelisters.NodeLister
	pods   corelisters.PodLister
	ours   labels.Selector
	queue  workqueue.TypedRateLimitingInterface[cache.ObjectName]
}

// endPods ends the pods of the nodes that the selector names until the context does.
func endPods(ctx context.Context, kubeconfig, nodes string) error {
	ours, err := labels.Parse(nodes)
	if err != nil {
		return fmt.Errorf("%q is no selector of nodes: %w", nodes, err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	config.QPS = -1
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}

	factory := informers.NewSharedInformerFactory(client, 0)
	limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[cache.ObjectName](endRetryFirst, endRetryLast)
	ender := podEnder{
		client: client,
		nodes:  factory.Core().V1().Nodes().Lister(),
		pods:   factory.Core().V1().Pods().Lister(),
		ours:   ours,
		queue:  workqueue.NewTypedRateLimitingQueue(limiter),
	}
	handler := cache.ResourceEventHandlerFuncs{
		AddFunc:    ender.look,
		UpdateFunc: func(_, pod any) { ender.look(pod) },
	}
	if _, err := factory.Core().V1().Pods().Informer().AddEventHandler(handler); err != nil {
		return err
	}
	// A pod that is being deleted may be known before its node is.
	handler = cache.ResourceEventHandlerFuncs{AddFunc: ender.lookAtAll}
	if _, err := factory.Core().V1().Nodes().Informer().AddEventHandler(handler); err != nil {
		return err
	}
	factory.StartWithContext(ctx)
	go func() {
		factory.WaitForCacheSyncWithContext(ctx)
		for range podEnders {
			go ender.work(ctx)
		}
	}()
	return nil
}

func (e *podEnder) look(object any) {
	if pod, ok := object.(*corev1.Pod); ok && pod.DeletionTimestamp != nil {
		e.queue.Add(cache.MetaObjectToName(pod))
	}
}

func (e *podEnder) lookAtAll(any) {
	pods, err := e.pods.List(labels.Everything())
	if err != nil {
		fmt.Fprintf(os.Stderr, "cannot list the pods that are known: %v\n", err)
	}
	for _, pod := range pods {
		e.look(pod)
	}
}

func (e *podEnder) work(ctx context.Context) {
	for ctx.Err() == nil {
		name, _ := e.queue.Get()
		if err := e.end(ctx, name); err != nil {
			fmt.Fprintf(os.Stderr, "cannot end the pod %s: %v\n", name, err)
			e.queue.AddRateLimited(name)
		} else {
			e.queue.Forget(name)
		}
		e.queue.Done(name)
	}
}

func (e *podEnder) end(ctx context.Context, name cache.ObjectName) error {
	pod, err := e.pods.Pods(name.Namespace).Get(name.Name)
	if err != nil || pod.DeletionTimestamp == nil {
		return nil // gone, and perhaps another one is there
	}
	node, err := e.nodes.Get(pod.Spec.NodeName)
	if err != nil || !e.ours.Matches(labels.Set(node.Labels)) {
		return nil // nobody's, or the kubelet's of a real node
	}
	options := metav1.NewDeleteOptions(0)
	options.Preconditions = &metav1.Preconditions{UID: &pod.UID}
	err = e.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, *options)
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}
