package main

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	admissionv1 "k8s.io/api/admission/v1"
	core "k8s.io/api/core/v1"
	storage "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

const (
	accept = driver + "/accept-ephemeral-storage"
	denial = "only generic ephemeral volumes are allowed for " + driver + " provisioner"
)

// A validating webhook for claims: an annotation accepts the risk, the class is looked up in the cache, and an owner of kind Pod
// makes a claim ephemeral.
type claims struct {
	known
	total    *prometheus.CounterVec
	duration prometheus.Histogram
}

func newClaims(known known) *claims {
	total := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "pvc_total", Help: "Requests about claims.",
	}, []string{"operation", "allowed"})
	duration := prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "pvc_duration_seconds", Help: "How long they took.",
	})
	metrics.Registry.MustRegister(total, duration)
	return &claims{known: known, total: total, duration: duration}
}

func (c *claims) Handle(ctx context.Context, request admission.Request) admission.Response {
	started := time.Now()
	operation, response := c.decide(ctx, request)
	c.total.WithLabelValues(operation, strconv.FormatBool(response.Allowed)).Inc()
	c.duration.Observe(time.Since(started).Seconds())
	return response
}

func (c *claims) decide(ctx context.Context, request admission.Request) (string, admission.Response) {
	if request.Kind.Kind != "PersistentVolumeClaim" || request.Operation != admissionv1.Create {
		return "unknown", admission.Allowed("not a claim that is created")
	}
	claim := &core.PersistentVolumeClaim{}
	if err := c.decoder.Decode(request, claim); err != nil {
		return "create", admission.Errored(http.StatusBadRequest, err)
	}
	return "create", c.validate(ctx, claim)
}

func (c *claims) validate(ctx context.Context, claim *core.PersistentVolumeClaim) admission.Response {
	if claim.Annotations[accept] == "true" {
		return admission.Allowed("the risk is accepted")
	}
	if claim.Spec.StorageClassName == nil || *claim.Spec.StorageClassName == "" {
		return admission.Allowed("no storage class")
	}
	class := &storage.StorageClass{}
	err := c.get(ctx, "", *claim.Spec.StorageClassName, class)
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
