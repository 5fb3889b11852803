package main

import (
	"context"
	"slices"
	"strconv"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/informers"
	listers "k8s.io/client-go/listers/rbac/v1"
	"k8s.io/component-helpers/auth/rbac/validation"
)

// everyone is what clusters allow any authenticated user (system:discovery).
var everyone = []rbacv1.PolicyRule{{Verbs: []string{"get"}, NonResourceURLs: []string{
	"/api", "/api/*", "/apis", "/apis/*", "/openapi", "/openapi/*", "/version", "/version/", "/healthz", "/livez",
	"/readyz"}}}

// rbac evaluates the roles and bindings that the server has itself.
type rbac struct {
	roles               listers.RoleLister
	roleBindings        listers.RoleBindingLister
	clusterRoles        listers.ClusterRoleLister
	clusterRoleBindings listers.ClusterRoleBindingLister
}

func newRBAC(factory informers.SharedInformerFactory) rbac {
	v1 := factory.Rbac().V1()
	return rbac{v1.Roles().Lister(), v1.RoleBindings().Lister(), v1.ClusterRoles().Lister(),
		v1.ClusterRoleBindings().Lister()}
}

// noted is authorize, with an annotation of the request's line in the audit log for each verb that was decided on: one
// request may take two, as an apply that creates the object.
func (r rbac) noted(ctx context.Context, request authorizer.Attributes) (authorizer.Decision, string, error) {
	decision, reason, err := r.authorize(ctx, request)
	allowed := strconv.FormatBool(decision == authorizer.DecisionAllow)
	audit.AddAuditAnnotation(ctx, "authorized/"+request.GetVerb(), allowed)
	return decision, reason, err
}

func (r rbac) authorize(_ context.Context, request authorizer.Attributes) (authorizer.Decision, string, error) {
	if slices.Contains(request.GetUser().GetGroups(), user.SystemPrivilegedGroup) {
		return authorizer.DecisionAllow, "", nil
	}
	wanted := rbacv1.PolicyRule{Verbs: []string{request.GetVerb()}}
	if request.IsResourceRequest() {
		resource := request.GetResource()
		if sub := request.GetSubresource(); sub != "" {
			resource += "/" + sub
		}
		wanted.APIGroups, wanted.Resources = []string{request.GetAPIGroup()}, []string{resource}
		if name := request.GetName(); name != "" {
			wanted.ResourceNames = []string{name}
		}
	} else {
		wanted.NonResourceURLs = []string{request.GetPath()}
	}
	rules, err := r.rules(request.GetUser(), request.GetNamespace())
	if err != nil {
		return authorizer.DecisionNoOpinion, "", err
	}
	if covered, _ := validation.Covers(append(rules, everyone...), []rbacv1.PolicyRule{wanted}); covered {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

// rules are those of all roles that are bound to the user, in the whole cluster or in the namespace.
func (r rbac) rules(caller user.Info, namespace string) ([]rbacv1.PolicyRule, error) {
	var rules []rbacv1.PolicyRule
	clusterWide, err := r.clusterRoleBindings.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	for _, binding := range clusterWide {
		if bound(binding.Subjects, caller, "") {
			rules = append(rules, r.of(binding.RoleRef, "")...)
		}
	}
	if namespace == "" {
		return rules, nil
	}
	bindings, err := r.roleBindings.RoleBindings(namespace).List(labels.Everything())
	if err != nil {
		return nil, err
	}
	for _, binding := range bindings {
		if bound(binding.Subjects, caller, namespace) {
			rules = append(rules, r.of(binding.RoleRef, namespace)...)
		}
	}
	return rules, nil
}

// of gives a role's rules; one that does not exist has none.
func (r rbac) of(role rbacv1.RoleRef, namespace string) []rbacv1.PolicyRule {
	if role.Kind == "Role" {
		if found, err := r.roles.Roles(namespace).Get(role.Name); err == nil {
			return found.Rules
		}
	} else if found, err := r.clusterRoles.Get(role.Name); err == nil {
		return found.Rules
	}
	return nil
}

// bound is whether one of the subjects is the caller; a ServiceAccount without a namespace is one of the binding's.
func bound(subjects []rbacv1.Subject, caller user.Info, namespace string) bool {
	return slices.ContainsFunc(subjects, func(subject rbacv1.Subject) bool {
		switch subject.Kind {
		case rbacv1.UserKind:
			return subject.Name == caller.GetName()
		case rbacv1.GroupKind:
			return slices.Contains(caller.GetGroups(), subject.Name)
		case rbacv1.ServiceAccountKind:
			if subject.Namespace != "" {
				namespace = subject.Namespace
			}
			return serviceaccount.MatchesUsername(namespace, subject.Name, caller.GetName())
		default:
			return false
		}
	})
}
