package main

import (
	"context"
	"encoding/json"
	"net/http"

	admissionv1 "k8s.io/api/admission/v1"
	core "k8s.io/api/core/v1"
	storage "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

const (
	selectedNode = driver + "/selected-node"
	initialNode  = driver + "/selected-initial-node"
	failoverMode = driver + "/failover-mode"
	durability   = "durability"
)

// A mutating webhook for pods: claim, class and volume are looked up in the cache, and the pod gets a term for the nodes on which
// its volumes are. Where the original is wrong, so is this one: it is here for what it costs.
type pods struct{ known }

func (p *pods) Handle(ctx context.Context, request admission.Request) admission.Response {
	if request.Kind.Kind != "Pod" || request.Operation != admissionv1.Create {
		return admission.Allowed("unhandled request allowed")
	}
	pod := &core.Pod{}
	if err := p.decoder.Decode(request, pod); err != nil {
		return admission.Errored(http.StatusBadRequest, err)
	}
	if len(pod.Spec.Volumes) == 0 {
		return admission.Allowed("pod has no volumes")
	}
	volumes, answer := p.volumes(ctx, request.Namespace, pod)
	if answer != nil {
		return *answer
	}
	nodes, mode, answer := p.nodes(ctx, volumes)
	if answer != nil {
		return *answer
	}
	before, err := json.Marshal(pod)
	if err != nil {
		return admission.Errored(http.StatusInternalServerError, err)
	}
	steer(pod, nodes, mode)
	after, err := json.Marshal(pod)
	if err != nil {
		return admission.Errored(http.StatusInternalServerError, err)
	}
	return admission.PatchResponseFromRaw(before, after)
}

// The names of the pod's volumes of the driver, or the answer.
func (p *pods) volumes(ctx context.Context, namespace string, pod *core.Pod) ([]string, *admission.Response) {
	var volumes []string
	for _, volume := range pod.Spec.Volumes {
		// Claims of ephemeral volumes are not looked for: no pod here has one.
		if volume.PersistentVolumeClaim == nil {
			continue
		}
		claim := &core.PersistentVolumeClaim{}
		err := p.get(ctx, namespace, volume.PersistentVolumeClaim.ClaimName, claim)
		if apierrors.IsNotFound(err) {
			return nil, allowed("pvc not found")
		} else if err != nil {
			return nil, failed(err)
		}
		if claim.Spec.StorageClassName == nil {
			continue
		}
		class := &storage.StorageClass{}
		err = p.get(ctx, "", *claim.Spec.StorageClassName, class)
		if err != nil && !apierrors.IsNotFound(err) {
			return nil, failed(err)
		}
		if err == nil && class.Provisioner == driver {
			volumes = append(volumes, claim.Spec.VolumeName)
		}
	}
	if len(volumes) == 0 {
		return nil, allowed("pod has no hyperconverged volumes")
	}
	return volumes, nil
}

// Where the volumes are, and the failover mode of the last one, or the answer.
func (p *pods) nodes(ctx context.Context, volumes []string) ([]string, string, *admission.Response) {
	var nodes []string
	var mode string
	for _, name := range volumes {
		volume := &core.PersistentVolume{}
		err := p.get(ctx, "", name, volume)
		if apierrors.IsNotFound(err) {
			mode = ""
			continue
		} else if err != nil {
			return nil, "", failed(err)
		}
		if volume.Spec.CSI == nil || volume.Spec.CSI.VolumeHandle == "" {
			continue
		}
		attributes := volume.Spec.CSI.VolumeAttributes
		mode = attributes[failoverMode]
		node, found := volume.Annotations[selectedNode]
		if !found {
			node, found = attributes[initialNode]
		}
		if !found {
			return nil, "", allowed("pv is not assigned to a node")
		}
		nodes = append(nodes, node)
	}
	if len(nodes) == 0 {
		return nil, "", allowed("no nodes found for volume")
	}
	return nodes, mode, nil
}

// Adds one term for all nodes: a required one for durability, otherwise a preferred one.
func steer(pod *core.Pod, nodes []string, mode string) {
	if pod.Spec.Affinity == nil {
		pod.Spec.Affinity = &core.Affinity{}
	}
	if pod.Spec.Affinity.NodeAffinity == nil {
		pod.Spec.Affinity.NodeAffinity = &core.NodeAffinity{}
	}
	affinity := pod.Spec.Affinity.NodeAffinity
	term := core.NodeSelectorTerm{MatchExpressions: []core.NodeSelectorRequirement{
		{Key: core.LabelHostname, Operator: core.NodeSelectorOpIn, Values: nodes},
	}}
	if mode != durability {
		preferred := core.PreferredSchedulingTerm{Weight: 100, Preference: term}
		affinity.PreferredDuringSchedulingIgnoredDuringExecution =
			append(affinity.PreferredDuringSchedulingIgnoredDuringExecution, preferred)
		return
	}
	if affinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		affinity.RequiredDuringSchedulingIgnoredDuringExecution = &core.NodeSelector{}
	}
	selector := affinity.RequiredDuringSchedulingIgnoredDuringExecution
	selector.NodeSelectorTerms = append(selector.NodeSelectorTerms, term)
}
