package main

import (
	"context"
	"fmt"
	"reflect"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/api/validation/path"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/names"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// objects serves a resource.
type objects struct {
	*registry.Store
	short []string
}

// ShortNames are kubectl's.
func (o objects) ShortNames() []string { return o.short }

// statuses serves the status subresource: the same objects, with another strategy.
type statuses struct{ store *registry.Store }

func (s statuses) New() runtime.Object { return s.store.New() }
func (s statuses) Destroy()            {} // the store is destroyed as objects
func (s statuses) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return s.store.GetResetFields()
}

func (s statuses) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	return s.store.Get(ctx, name, options)
}

func (s statuses) ConvertToTable(ctx context.Context, object, options runtime.Object) (*metav1.Table, error) {
	return s.store.ConvertToTable(ctx, object, options)
}

// Update never creates: an apply to the status of what does not exist is 404.
func (s statuses) Update(ctx context.Context, name string, object rest.UpdatedObjectInfo, create rest.ValidateObjectFunc,
	update rest.ValidateObjectUpdateFunc, _ bool, options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	return s.store.Update(ctx, name, object, create, update, false, options)
}

// storageFor gives what serves each resource of the group, and their status.
func storageFor(scheme *runtime.Scheme, group group, getter generic.RESTOptionsGetter) (
	map[string]rest.Storage, error) {
	served := map[string]rest.Storage{}
	for _, resource := range group.resources {
		common := strategy{ObjectTyper: scheme, NameGenerator: names.SimpleNameGenerator, group: group, resource: resource}
		spec := specStrategy{common}
		makes := func(kind string) func() runtime.Object {
			return func() runtime.Object {
				object, err := scheme.New(group.version.WithKind(kind))
				if err != nil {
					panic(err)
				}
				return object
			}
		}
		qualified := group.version.WithResource(resource.plural).GroupResource()
		store := &registry.Store{
			NewFunc:                   makes(resource.kind),
			NewListFunc:               makes(resource.kind + "List"),
			DefaultQualifiedResource:  qualified,
			SingularQualifiedResource: group.version.WithResource(resource.singular).GroupResource(),
			PredicateFunc: func(label labels.Selector, field fields.Selector) storage.SelectionPredicate {
				return storage.SelectionPredicate{Label: label, Field: field, GetAttrs: resource.attributes}
			},
			CreateStrategy:      spec,
			UpdateStrategy:      spec,
			DeleteStrategy:      spec,
			ResetFieldsStrategy: spec,
			TableConvertor:      rest.NewDefaultTableConvertor(qualified),
		}
		if resource.seconds != 0 {
			store.TTLFunc = func(runtime.Object, uint64, bool) (uint64, error) { return resource.seconds, nil }
		}
		completion := &generic.StoreOptions{RESTOptions: getter, AttrFunc: resource.attributes}
		if err := store.CompleteWithOptions(completion); err != nil {
			return nil, fmt.Errorf("%s: %w", resource.plural, err)
		}
		var short []string
		if resource.short != "" {
			short = []string{resource.short}
		}
		served[resource.plural] = objects{store, short}
		if resource.status {
			copied := *store
			copied.UpdateStrategy, copied.ResetFieldsStrategy = statusStrategy{common}, statusStrategy{common}
			served[resource.plural+"/status"] = statuses{&copied}
		}
	}
	return served, nil
}

// attributes are what selectors see of an object.
func (r resource) attributes(object runtime.Object) (labels.Set, fields.Set, error) {
	accessor, err := meta.Accessor(object)
	if err != nil {
		return nil, nil, err
	}
	set := fields.Set{"metadata.name": accessor.GetName()}
	if !r.clusterScoped {
		set["metadata.namespace"] = accessor.GetNamespace()
	}
	if r.fields != nil {
		for name, value := range r.fields(object) {
			set[name] = value
		}
	}
	return accessor.GetLabels(), set, nil
}

// strategy has the rules that are the same for each resource, and for its status.
type strategy struct {
	runtime.ObjectTyper
	names.NameGenerator
	group    group
	resource resource
}

func (s strategy) NamespaceScoped() bool                                   { return !s.resource.clusterScoped }
func (strategy) AllowCreateOnUpdate(context.Context) bool                  { return false }
func (strategy) AllowUnconditionalUpdate(context.Context) bool             { return true }
func (strategy) WarningsOnCreate(context.Context, runtime.Object) []string { return nil }
func (strategy) WarningsOnUpdate(context.Context, runtime.Object, runtime.Object) []string {
	return nil
}
func (strategy) Canonicalize(runtime.Object) {}

func (s strategy) Validate(_ context.Context, object runtime.Object) field.ErrorList {
	nameRule := validation.NameIsDNSSubdomain
	if s.group.version == rbacv1.SchemeGroupVersion {
		nameRule = path.ValidatePathSegmentName // system:discovery
	}
	errors := validation.ValidateObjectMetaAccessor(accessor(object), s.NamespaceScoped(), nameRule,
		field.NewPath("metadata"))
	if s.resource.validate != nil {
		errors = append(errors, s.resource.validate(object)...)
	}
	return errors
}

func (s strategy) ValidateUpdate(ctx context.Context, object, _ runtime.Object) field.ErrorList {
	return s.Validate(ctx, object) // what must not change of the metadata, the library checks itself
}

// resets names what a request to this endpoint cannot change, so that its manager does not come to own it.
func (s strategy) resets(paths ...fieldpath.Path) map[fieldpath.APIVersion]*fieldpath.Set {
	return map[fieldpath.APIVersion]*fieldpath.Set{
		fieldpath.APIVersion(s.group.version.String()): fieldpath.NewSet(paths...)}
}

// specStrategy is for the objects themselves: all but their status can be written.
type specStrategy struct{ strategy }

func (s specStrategy) PrepareForCreate(_ context.Context, object runtime.Object) {
	if status := part(object, "Status"); s.resource.status {
		status.SetZero()
	}
	if part(object, "Spec").IsValid() {
		accessor(object).SetGeneration(1)
	}
	switch object := object.(type) {
	case *corev1.Pod:
		object.Status.Phase = corev1.PodPending
	case *corev1.Namespace:
		object.Status.Phase = corev1.NamespaceActive
	}
}

func (s specStrategy) PrepareForUpdate(_ context.Context, object, old runtime.Object) {
	if s.resource.status {
		part(object, "Status").Set(part(old, "Status"))
	}
	spec := part(object, "Spec")
	if spec.IsValid() && !equality.Semantic.DeepEqual(spec.Interface(), part(old, "Spec").Interface()) {
		accessor(object).SetGeneration(accessor(old).GetGeneration() + 1)
	}
}

func (s specStrategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	if !s.resource.status {
		return nil
	}
	return s.resets(fieldpath.MakePathOrDie("status"))
}

// CheckGracefulDelete lets a pod on a node end first: it is removed by a second deletion, without a grace period, as the
// kubelet's (kubernetes pkg/registry/core/pod/strategy.go).
func (s specStrategy) CheckGracefulDelete(_ context.Context, object runtime.Object, options *metav1.DeleteOptions) bool {
	pod, isPod := object.(*corev1.Pod)
	if !isPod {
		return false
	}
	period := ptr.Deref(options.GracePeriodSeconds, ptr.Deref(pod.Spec.TerminationGracePeriodSeconds, 0))
	if pod.Spec.NodeName == "" || pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded {
		period = 0
	}
	options.GracePeriodSeconds = &period
	return true
}

// statusStrategy is for the status subresource: all but the spec can be written, metadata too.
type statusStrategy struct{ strategy }

func (s statusStrategy) PrepareForUpdate(_ context.Context, object, old runtime.Object) {
	if spec := part(object, "Spec"); spec.IsValid() {
		spec.Set(part(old, "Spec"))
	}
	if _, isPod := object.(*corev1.Pod); isPod {
		accessor(object).SetDeletionTimestamp(nil)
		accessor(object).SetOwnerReferences(accessor(old).GetOwnerReferences())
	}
}

func (s statusStrategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	if s.resource.kind == "Pod" {
		return s.resets(fieldpath.MakePathOrDie("spec"), fieldpath.MakePathOrDie("metadata", "deletionTimestamp"),
			fieldpath.MakePathOrDie("metadata", "ownerReferences"))
	}
	return s.resets(fieldpath.MakePathOrDie("spec"))
}

// part is a field of the object's struct; it is not valid when there is none.
func part(object runtime.Object, name string) reflect.Value {
	return reflect.ValueOf(object).Elem().FieldByName(name)
}

func accessor(object runtime.Object) metav1.Object {
	found, err := meta.Accessor(object)
	if err != nil {
		panic(err) // each has ObjectMeta
	}
	return found
}
