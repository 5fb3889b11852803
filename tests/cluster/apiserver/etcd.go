package main

import (
	"context"
	"fmt"
	"net/url"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/embed"
)

// store is the etcd within this process.
type store struct {
	etcd *embed.Etcd
	url  string
}

// startEtcd opens the data below directory. The page cache outlives a SIGKILL, so nothing is synced.
func startEtcd(directory string) (*store, error) {
	client := url.URL{Scheme: "unix", Path: directory + "/client.sock"}
	peer := url.URL{Scheme: "unix", Path: directory + "/peer.sock"}
	config := embed.NewConfig()
	config.Dir = directory + "/data"
	config.ListenClientUrls, config.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	config.ListenPeerUrls, config.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	config.UnsafeNoFsync = true
	config.LogLevel = "error"
	// A single member is elected as soon as its election timeout is over (ms).
	config.TickMs, config.ElectionMs = 10, 100
	// As kubeadm sets it: so bookmarks of a quiet resource move on, too.
	config.WatchProgressNotifyInterval = 5 * time.Second
	etcd, err := embed.StartEtcd(config)
	if err != nil {
		return nil, fmt.Errorf("etcd in %s: %w", directory, err)
	}
	<-etcd.Server.ReadyNotify()
	return &store{etcd, client.String()}, nil
}

// compact forgets all that was so far, and returns the revision from which on it knows. A watch from an earlier one is
// refused with 410 by a server without a watch cache, or by one that was started since.
func (s *store) compact(ctx context.Context) (int64, error) {
	// A watch from a revision begins with the one after it. So two more: the newest version of any object is too old.
	for range 2 {
		if _, err := s.etcd.Server.Put(ctx, &pb.PutRequest{Key: []byte("/compacted")}); err != nil {
			return 0, err
		}
	}
	revision := s.etcd.Server.KV().Rev()
	_, err := s.etcd.Server.Compact(ctx, &pb.CompactionRequest{Revision: revision, Physical: true})
	return revision, err
}
