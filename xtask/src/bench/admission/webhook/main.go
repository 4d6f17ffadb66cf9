// A validating webhook for claims, made with controller-runtime at its defaults, that decides as local-csi-driver's does: an
// annotation accepts the risk, the class is looked up in the cache, and an owner of kind Pod makes a claim ephemeral.
//
// It leaves out what would only cost it more: logging every request, and the rotation of certificates.
package main

import (
	"context"
	"log"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	admissionv1 "k8s.io/api/admission/v1"
	core "k8s.io/api/core/v1"
	storage "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/retry"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

const (
	driver = "localdisk.csi.acstor.io"
	accept = driver + "/accept-ephemeral-storage"
	denial = "only generic ephemeral volumes are allowed for " + driver + " provisioner"
)

var (
	total = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "pvc_total", Help: "Requests about claims.",
	}, []string{"operation", "allowed"})
	duration = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "pvc_duration_seconds", Help: "How long they took.",
	})
)

// Arguments: the kubeconfig, the port, and the directory with tls.crt and tls.key. It prints "ready" when its caches are full.
func main() {
	ctrl.SetLogger(logr.Discard())
	config, err := clientcmd.BuildConfigFromFlags("", os.Args[1])
	check(err)
	port, err := strconv.Atoi(os.Args[2])
	check(err)
	metrics.Registry.MustRegister(total, duration)
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:                 scheme.Scheme,
		Metrics:                server.Options{BindAddress: "0"},
		HealthProbeBindAddress: "0",
		WebhookServer:          webhook.NewServer(webhook.Options{Host: "127.0.0.1", Port: port, CertDir: os.Args[3]}),
	})
	check(err)
	ctx := ctrl.SetupSignalHandler()
	for _, kind := range []client.Object{&core.PersistentVolumeClaim{}, &storage.StorageClass{}} {
		_, err := mgr.GetCache().GetInformer(ctx, kind)
		check(err)
	}
	handler := &handler{classes: mgr.GetClient(), decoder: admission.NewDecoder(scheme.Scheme)}
	mgr.GetWebhookServer().Register("/validate-pvc", &webhook.Admission{Handler: handler})
	// What is added like this starts when the caches are full.
	check(mgr.Add(manager.RunnableFunc(func(ctx context.Context) error {
		log.Print("ready")
		<-ctx.Done()
		return nil
	})))
	check(mgr.Start(ctx))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

type handler struct {
	classes client.Client
	decoder admission.Decoder
}

func (h *handler) Handle(ctx context.Context, request admission.Request) admission.Response {
	started := time.Now()
	operation, response := h.decide(ctx, request)
	total.WithLabelValues(operation, strconv.FormatBool(response.Allowed)).Inc()
	duration.Observe(time.Since(started).Seconds())
	return response
}

func (h *handler) decide(ctx context.Context, request admission.Request) (string, admission.Response) {
	if request.Kind.Kind != "PersistentVolumeClaim" || request.Operation != admissionv1.Create {
		return "unknown", admission.Allowed("not a claim that is created")
	}
	claim := &core.PersistentVolumeClaim{}
	if err := h.decoder.Decode(request, claim); err != nil {
		return "create", admission.Errored(http.StatusBadRequest, err)
	}
	return "create", h.validate(ctx, claim)
}

func (h *handler) validate(ctx context.Context, claim *core.PersistentVolumeClaim) admission.Response {
	if claim.Annotations[accept] == "true" {
		return admission.Allowed("the risk is accepted")
	}
	if claim.Spec.StorageClassName == nil || *claim.Spec.StorageClassName == "" {
		return admission.Allowed("no storage class")
	}
	class := &storage.StorageClass{}
	passing := func(err error) bool { return !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err) }
	err := retry.OnError(retry.DefaultRetry, passing, func() error {
		return h.classes.Get(ctx, client.ObjectKey{Name: *claim.Spec.StorageClassName}, class)
	})
	switch {
	case apierrors.IsNotFound(err):
		return admission.Allowed("storage class not found")
	case err != nil:
		return admission.Errored(http.StatusBadRequest, err)
	case class.Provisioner != driver:
		return admission.Allowed("a class of another driver")
	}
	for _, owner := range claim.OwnerReferences {
		if owner.Kind == "Pod" {
			return admission.Allowed("volume is ephemeral")
		}
	}
	return admission.Denied(denial)
}
