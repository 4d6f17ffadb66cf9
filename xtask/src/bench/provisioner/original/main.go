// A client with the limits of dynamic-pvc-provisioner: client-go as it is out of the box, that is 5 requests a second after
// a burst of 10, two workers, and for every claim one request that creates it and one that writes its event.
//
// It leaves out what would only cost it more: the election of a leader, and every check of what it is asked for.
package main

import (
	"context"
	"log"
	"os"
	"strings"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typed "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/yaml"
)

const (
	prefix  = "dynamic-pvc-provisioner.kubernetes.io/"
	workers = 2
)

type provisioner struct {
	client kubernetes.Interface
	events record.EventRecorder
}

func main() {
	config, err := clientcmd.BuildConfigFromFlags("", os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		log.Fatal(err)
	}
	broadcaster := record.NewBroadcaster()
	broadcaster.StartRecordingToSink(&typed.EventSinkImpl{Interface: client.CoreV1().Events("")})
	recorder := broadcaster.NewRecorder(scheme.Scheme, core.EventSource{Component: "dynamic-pvc-provisioner"})
	p := provisioner{client, recorder}

	queue := workqueue.NewTyped[*core.Pod]()
	factory := informers.NewSharedInformerFactory(client, 0)
	pods := factory.Core().V1().Pods().Informer()
	if _, err := pods.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(object any) { queue.Add(object.(*core.Pod)) },
	}); err != nil {
		log.Fatal(err)
	}
	factory.Start(context.Background().Done())
	for range workers {
		go func() {
			for {
				pod, _ := queue.Get()
				if err := p.provision(pod); err != nil {
					log.Print(err)
				}
				queue.Done(pod)
			}
		}()
	}
	select {}
}

func (p provisioner) provision(pod *core.Pod) error {
	for _, volume := range pod.Spec.Volumes {
		template := pod.Annotations[prefix+volume.Name+".pvc"]
		asked := pod.Annotations[prefix+volume.Name+".enabled"] == "true" && pod.Status.Phase == core.PodPending
		if !asked || volume.PersistentVolumeClaim == nil {
			continue
		}
		var claim core.PersistentVolumeClaim
		if err := yaml.Unmarshal([]byte(strings.TrimSpace(template)), &claim); err != nil {
			return err
		}
		claim.Name = volume.PersistentVolumeClaim.ClaimName
		claim.OwnerReferences = []meta.OwnerReference{*meta.NewControllerRef(pod, core.SchemeGroupVersion.WithKind("Pod"))}
		claims := p.client.CoreV1().PersistentVolumeClaims(pod.Namespace)
		if _, err := claims.Create(context.Background(), &claim, meta.CreateOptions{}); err != nil {
			return err
		}
		p.events.Event(pod, core.EventTypeNormal, "PVCProvisioned", "the claim was created")
	}
	return nil
}
