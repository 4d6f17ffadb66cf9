// A client with the limits of dynamic-pvc-provisioner and reclaimable-pv-releaser: client-go as it is out of the box, that is 5
// requests a second after a burst of 10, two workers, and for everything that is done one request that does it and one that
// writes its event.
//
// It leaves out what would only cost it more: the election of a leader, and most checks of what it is asked for.
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

type worker struct {
	client kubernetes.Interface
	events record.EventRecorder
}

func main() {
	config, err := clientcmd.BuildConfigFromFlags("", os.Args[2])
	if err != nil {
		log.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		log.Fatal(err)
	}
	broadcaster := record.NewBroadcaster()
	broadcaster.StartRecordingToSink(&typed.EventSinkImpl{Interface: client.CoreV1().Events("")})
	w := worker{client, broadcaster.NewRecorder(scheme.Scheme, core.EventSource{Component: os.Args[1]})}
	factory := informers.NewSharedInformerFactory(client, 0)
	switch os.Args[1] {
	case "provisioner":
		work(factory.Core().V1().Pods().Informer(), w.provision)
	case "releaser":
		work(factory.Core().V1().PersistentVolumes().Informer(), w.release)
	default:
		log.Fatalf("unknown: %s", os.Args[1])
	}
	factory.Start(context.Background().Done())
	select {}
}

func work[T any](informer cache.SharedIndexInformer, handle func(*T) error) {
	queue := workqueue.NewTyped[*T]()
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(object any) { queue.Add(object.(*T)) },
	}); err != nil {
		log.Fatal(err)
	}
	for range workers {
		go func() {
			for {
				object, _ := queue.Get()
				if err := handle(object); err != nil {
					log.Print(err)
				}
				queue.Done(object)
			}
		}()
	}
}

func (w worker) provision(pod *core.Pod) error {
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
		claims := w.client.CoreV1().PersistentVolumeClaims(pod.Namespace)
		if _, err := claims.Create(context.Background(), &claim, meta.CreateOptions{}); err != nil {
			return err
		}
		w.events.Event(pod, core.EventTypeNormal, "PVCProvisioned", "the claim was created")
	}
	return nil
}

func (w worker) release(volume *core.PersistentVolume) error {
	if volume.Status.Phase != core.VolumeReleased || volume.Spec.ClaimRef == nil {
		return nil
	}
	released := volume.DeepCopy()
	released.Spec.ClaimRef = nil
	if _, err := w.client.CoreV1().PersistentVolumes().Update(context.Background(), released, meta.UpdateOptions{}); err != nil {
		return err
	}
	w.events.Event(volume, core.EventTypeNormal, "Released", "the volume was released")
	return nil
}
