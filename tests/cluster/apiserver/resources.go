package main

import (
	"strconv"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// group is an API group, in its only version here.
type group struct {
	version   schema.GroupVersion
	resources []resource
}

// resource is what differs between one kind of object and another. fields are what a field selector may name beside
// metadata.name and metadata.namespace.
type resource struct {
	plural, singular, kind, short string
	clusterScoped, status         bool
	seconds                       uint64 // how long it is kept; 0: for good
	fields                        func(runtime.Object) fields.Set
	validate                      func(runtime.Object) field.ErrorList
}

var groups = []group{
	{corev1.SchemeGroupVersion, []resource{
		{plural: "pods", singular: "pod", kind: "Pod", short: "po", status: true, fields: podFields},
		{plural: "nodes", singular: "node", kind: "Node", short: "no", clusterScoped: true, status: true, fields: nodeFields},
		{plural: "namespaces", singular: "namespace", kind: "Namespace", short: "ns", clusterScoped: true, status: true},
		{plural: "serviceaccounts", singular: "serviceaccount", kind: "ServiceAccount", short: "sa"},
		{plural: "configmaps", singular: "configmap", kind: "ConfigMap", short: "cm"},
		{plural: "secrets", singular: "secret", kind: "Secret"},
		{plural: "services", singular: "service", kind: "Service", short: "svc", status: true},
		{plural: "events", singular: "event", kind: "Event", short: "ev", seconds: 3600, fields: eventFields,
			validate: validateEvent},
	}},
	{appsv1.SchemeGroupVersion, []resource{
		{plural: "daemonsets", singular: "daemonset", kind: "DaemonSet", short: "ds", status: true},
	}},
	{batchv1.SchemeGroupVersion, []resource{
		{plural: "jobs", singular: "job", kind: "Job", status: true},
	}},
	{coordinationv1.SchemeGroupVersion, []resource{
		{plural: "leases", singular: "lease", kind: "Lease"},
	}},
	{rbacv1.SchemeGroupVersion, []resource{
		{plural: "roles", singular: "role", kind: "Role"},
		{plural: "rolebindings", singular: "rolebinding", kind: "RoleBinding"},
		{plural: "clusterroles", singular: "clusterrole", kind: "ClusterRole", clusterScoped: true},
		{plural: "clusterrolebindings", singular: "clusterrolebinding", kind: "ClusterRoleBinding", clusterScoped: true},
	}},
	{admissionv1.SchemeGroupVersion, []resource{
		{plural: "validatingadmissionpolicies", singular: "validatingadmissionpolicy", kind: "ValidatingAdmissionPolicy",
			clusterScoped: true, status: true},
		{plural: "validatingadmissionpolicybindings", singular: "validatingadmissionpolicybinding",
			kind: "ValidatingAdmissionPolicyBinding", clusterScoped: true},
	}},
	{schedulingv1.SchemeGroupVersion, []resource{
		{plural: "priorityclasses", singular: "priorityclass", kind: "PriorityClass", short: "pc", clusterScoped: true},
	}},
	{nodev1.SchemeGroupVersion, []resource{
		{plural: "runtimeclasses", singular: "runtimeclass", kind: "RuntimeClass", clusterScoped: true},
	}},
}

func podFields(object runtime.Object) fields.Set {
	pod := object.(*corev1.Pod)
	return fields.Set{
		"spec.nodeName":           pod.Spec.NodeName,
		"spec.restartPolicy":      string(pod.Spec.RestartPolicy),
		"spec.schedulerName":      pod.Spec.SchedulerName,
		"spec.serviceAccountName": pod.Spec.ServiceAccountName,
		"spec.hostNetwork":        strconv.FormatBool(pod.Spec.HostNetwork),
		"status.phase":            string(pod.Status.Phase),
		"status.podIP":            pod.Status.PodIP,
	}
}

func nodeFields(object runtime.Object) fields.Set {
	return fields.Set{"spec.unschedulable": strconv.FormatBool(object.(*corev1.Node).Spec.Unschedulable)}
}

func eventFields(object runtime.Object) fields.Set {
	event := object.(*corev1.Event)
	source := event.Source.Component
	if source == "" {
		source = event.ReportingController
	}
	about := event.InvolvedObject
	return fields.Set{
		"involvedObject.kind":            about.Kind,
		"involvedObject.namespace":       about.Namespace,
		"involvedObject.name":            about.Name,
		"involvedObject.uid":             string(about.UID),
		"involvedObject.apiVersion":      about.APIVersion,
		"involvedObject.resourceVersion": about.ResourceVersion,
		"involvedObject.fieldPath":       about.FieldPath,
		"reason":                         event.Reason,
		"reportingComponent":             event.ReportingController,
		"source":                         source,
		"type":                           event.Type,
	}
}

// validateEvent is the rule that writers of Events meet: one about an object of a namespace lies in that namespace, one
// about others in default (kubernetes pkg/apis/core/validation/events.go, legacyValidateEvent).
func validateEvent(object runtime.Object) field.ErrorList {
	event := object.(*corev1.Event)
	about := event.InvolvedObject.Namespace
	if about == event.Namespace || about == "" && (event.Namespace == "default" || event.Namespace == "kube-system") {
		return nil
	}
	return field.ErrorList{
		field.Invalid(field.NewPath("involvedObject", "namespace"), about, "does not match event.namespace")}
}
