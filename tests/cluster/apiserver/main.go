// An API server for tests, made of Kubernetes' own libraries: what a node's programs and kubectl meet of a cluster.
//
// It has the protocol and the permissions: storage in etcd, watches, server-side apply, validating admission policies,
// custom resources, RBAC. It has no controllers (no pod is made for a DaemonSet, nothing is garbage collected, no
// namespace is emptied), no webhooks, no node authorizer, no tokens of its own (TokenRequest), no SubjectAccessReview,
// and of the core types neither the validation of their specs nor most defaults: these live in k8s.io/kubernetes, which
// is no library.
package main

import (
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"k8s.io/klog/v2"
)

// settings are the command line's.
type settings struct {
	state      string
	port       int
	watchCache bool
}

func (s settings) path(name string) string { return filepath.Join(s.state, name) }

func main() {
	var s settings
	flag.StringVar(&s.state, "state", "",
		"directory of etcd's data, the certificate, tokens.json, faults.json, audit.json (the audit policy) and audit.log")
	flag.IntVar(&s.port, "port", 0, "of 127.0.0.1; may be bound by another socket with SO_REUSEPORT that does not listen")
	flag.BoolVar(&s.watchCache, "watch-cache", true, "serve lists and watches from memory, as clusters do")
	klog.InitFlags(nil)
	flag.Parse()
	if err := serve(s); err != nil {
		fmt.Fprintln(os.Stderr, "apiserver:", err)
		os.Exit(1)
	}
}

// loopback is the only address that anything listens on.
var loopback = net.IPv4(127, 0, 0, 1)
