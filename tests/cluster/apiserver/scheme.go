package main

import (
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"
)

// newScheme registers the v1 types of the groups a second time as their internal versions: so v1 is what everything is
// converted to, and no conversion is needed.
func newScheme(groups []group) *runtime.Scheme {
	scheme := runtime.NewScheme()
	utilruntime.Must(clientscheme.AddToScheme(scheme))
	for _, group := range groups {
		internal := schema.GroupVersion{Group: group.version.Group, Version: runtime.APIVersionInternal}
		for _, resource := range group.resources {
			for _, kind := range []string{resource.kind + "List", resource.kind} {
				object, err := scheme.New(group.version.WithKind(kind))
				utilruntime.Must(err)
				scheme.AddKnownTypeWithName(internal.WithKind(kind), object)
				if kind == resource.kind && resource.fields != nil {
					known := selectable(resource.fields(object))
					utilruntime.Must(scheme.AddFieldLabelConversionFunc(group.version.WithKind(kind), known))
				}
			}
		}
	}
	addDefaults(scheme)
	return scheme
}

// selectable allows the names that a field selector may have.
func selectable(known fields.Set) runtime.FieldLabelConversionFunc {
	return func(label, value string) (string, string, error) {
		if known.Has(label) {
			return label, value, nil
		}
		return runtime.DefaultMetaV1FieldSelectorConversion(label, value)
	}
}

// codecFor stores each group as its v1.
func codecFor(scheme *runtime.Scheme, groups []group) runtime.Codec {
	var versions []schema.GroupVersion
	for _, group := range groups {
		versions = append(versions, group.version)
	}
	return serializer.NewCodecFactory(scheme).LegacyCodec(versions...)
}

// addDefaults are those that the libraries count on (policies without them match nothing), and what a pod's readers do.
func addDefaults(scheme *runtime.Scheme) {
	scheme.AddTypeDefaultingFunc(&admissionv1.ValidatingAdmissionPolicy{}, func(object any) {
		policy := object.(*admissionv1.ValidatingAdmissionPolicy)
		setDefault(&policy.Spec.FailurePolicy, admissionv1.Fail)
		if policy.Spec.MatchConstraints != nil {
			matchDefaults(policy.Spec.MatchConstraints)
		}
	})
	scheme.AddTypeDefaultingFunc(&admissionv1.ValidatingAdmissionPolicyBinding{}, func(object any) {
		binding := object.(*admissionv1.ValidatingAdmissionPolicyBinding)
		if binding.Spec.MatchResources != nil {
			matchDefaults(binding.Spec.MatchResources)
		}
	})
	scheme.AddTypeDefaultingFunc(&corev1.Pod{}, func(object any) {
		spec := &object.(*corev1.Pod).Spec
		setDefault(&spec.TerminationGracePeriodSeconds, corev1.DefaultTerminationGracePeriodSeconds)
		setDefault(&spec.EnableServiceLinks, corev1.DefaultEnableServiceLinks)
		if spec.RestartPolicy == "" {
			spec.RestartPolicy = corev1.RestartPolicyAlways
		}
	})
	scheme.AddTypeDefaultingFunc(&rbacv1.RoleBinding{}, func(object any) {
		binding := object.(*rbacv1.RoleBinding)
		subjectDefaults(binding.Subjects)
	})
	scheme.AddTypeDefaultingFunc(&rbacv1.ClusterRoleBinding{}, func(object any) {
		binding := object.(*rbacv1.ClusterRoleBinding)
		subjectDefaults(binding.Subjects)
	})
}

func matchDefaults(match *admissionv1.MatchResources) {
	setDefault(&match.MatchPolicy, admissionv1.Equivalent)
	setDefault(&match.NamespaceSelector, metav1.LabelSelector{})
	setDefault(&match.ObjectSelector, metav1.LabelSelector{})
	for _, rules := range [][]admissionv1.NamedRuleWithOperations{match.ResourceRules, match.ExcludeResourceRules} {
		for i := range rules {
			setDefault(&rules[i].Scope, admissionv1.AllScopes)
		}
	}
}

func subjectDefaults(subjects []rbacv1.Subject) {
	for i := range subjects {
		if subjects[i].APIGroup == "" && subjects[i].Kind != rbacv1.ServiceAccountKind {
			subjects[i].APIGroup = rbacv1.GroupName
		}
	}
}

func setDefault[T any](field **T, value T) {
	if *field == nil {
		*field = ptr.To(value)
	}
}
