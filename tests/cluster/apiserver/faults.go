package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// fault is an answer that faults.json gives instead of the server's. Empty fields match everything.
type fault struct {
	Code       int32    `json:"code"`
	Reason     string   `json:"reason"`
	RetryAfter int32    `json:"retryAfter"` // seconds
	Users      []string `json:"users"`
	Verbs      []string `json:"verbs"`
	Resources  []string `json:"resources"` // pods, pods/status
}

func (f fault) hits(r *http.Request) bool {
	info, _ := request.RequestInfoFrom(r.Context())
	caller, _ := request.UserFrom(r.Context())
	if info == nil || caller == nil || strings.HasPrefix(caller.GetName(), "system:apiserver") {
		return false
	}
	resource := info.Resource
	if info.Subresource != "" {
		resource += "/" + info.Subresource
	}
	return contains(f.Users, caller.GetName()) && contains(f.Verbs, info.Verb) && contains(f.Resources, resource)
}

func contains(wanted []string, value string) bool {
	return len(wanted) == 0 || slices.Contains(wanted, value)
}

// withFaults answers as the file says, which is read at every request; without the file it does nothing.
func withFaults(handler http.Handler, path string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var faults []fault
		if data, err := os.ReadFile(path); err == nil {
			if err := json.Unmarshal(data, &faults); err != nil {
				panic(err)
			}
		}
		for _, fault := range faults {
			if !fault.hits(r) {
				continue
			}
			status := metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure,
				Code: fault.Code, Reason: metav1.StatusReason(fault.Reason), Message: "as faults.json says",
				Details: &metav1.StatusDetails{RetryAfterSeconds: fault.RetryAfter}}
			if fault.RetryAfter != 0 {
				w.Header().Set("Retry-After", fmt.Sprint(fault.RetryAfter))
			}
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(int(fault.Code))
			_ = json.NewEncoder(w).Encode(status)
			return
		}
		handler.ServeHTTP(w, r)
	})
}

// compaction answers POST /compact with the revision that etcd was compacted at.
func compaction(etcd *store) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			http.Error(w, "only POST", http.StatusMethodNotAllowed)
			return
		}
		revision, err := etcd.compact(r.Context())
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		fmt.Fprintln(w, revision)
	}
}
