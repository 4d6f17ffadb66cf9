// Webhooks made with controller-runtime that decide as those of local-csi-driver do: one for claims, one for pods.
//
// They leave out what would only cost them more: logging every request, and the rotation of certificates.
package main

import (
	"context"
	"log"
	"net/http"
	"os"
	"strconv"

	"github.com/go-logr/logr"
	core "k8s.io/api/core/v1"
	storage "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/retry"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

const driver = "localdisk.csi.acstor.io"

// Arguments: the kubeconfig, the port, the directory with tls.crt and tls.key, and what is cached: what is needed to answer
// about "claims", at the library's defaults; about "pods", without managedFields, as in the original; or "everything" that the
// operator watches for both, likewise. It prints "ready" when its caches are full.
func main() {
	ctrl.SetLogger(logr.Discard())
	config, err := clientcmd.BuildConfigFromFlags("", os.Args[1])
	check(err)
	port, err := strconv.Atoi(os.Args[2])
	check(err)
	cached := os.Args[4]
	options := ctrl.Options{
		Scheme:                 scheme.Scheme,
		Metrics:                server.Options{BindAddress: "0"},
		HealthProbeBindAddress: "0",
		WebhookServer:          webhook.NewServer(webhook.Options{Host: "127.0.0.1", Port: port, CertDir: os.Args[3]}),
	}
	if cached != "claims" {
		options.Cache.DefaultTransform = cache.TransformStripManagedFields()
	}
	mgr, err := ctrl.NewManager(config, options)
	check(err)
	ctx := ctrl.SetupSignalHandler()
	for _, kind := range kinds(cached) {
		_, err := mgr.GetCache().GetInformer(ctx, kind)
		check(err)
	}
	known := known{objects: mgr.GetClient(), decoder: admission.NewDecoder(scheme.Scheme)}
	mgr.GetWebhookServer().Register("/validate-pvc", &webhook.Admission{Handler: newClaims(known)})
	mgr.GetWebhookServer().Register("/mutate-pod", &webhook.Admission{Handler: &pods{known}})
	// What is added like this starts when the caches are full.
	check(mgr.Add(manager.RunnableFunc(func(ctx context.Context) error {
		log.Print("ready")
		<-ctx.Done()
		return nil
	})))
	check(mgr.Start(ctx))
}

func kinds(cached string) []client.Object {
	kinds := []client.Object{&core.PersistentVolumeClaim{}, &storage.StorageClass{}}
	switch cached {
	case "claims":
		return kinds
	case "pods":
		return append(kinds, &core.PersistentVolume{})
	case "everything":
		return append(kinds, &core.PersistentVolume{}, &core.Pod{}, &core.Node{}, &core.Namespace{})
	}
	log.Fatalf("nobody knows what %q needs", cached)
	return nil
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// What all webhooks work with.
type known struct {
	objects client.Client
	decoder admission.Decoder
}

// Looks an object up in the cache, and again if that fails in passing, as the original does.
func (k *known) get(ctx context.Context, namespace, name string, object client.Object) error {
	passing := func(err error) bool { return !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err) }
	return retry.OnError(retry.DefaultRetry, passing, func() error {
		return k.objects.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, object)
	})
}

func failed(err error) *admission.Response {
	response := admission.Errored(http.StatusBadRequest, err)
	return &response
}

func allowed(why string) *admission.Response {
	response := admission.Allowed(why)
	return &response
}
