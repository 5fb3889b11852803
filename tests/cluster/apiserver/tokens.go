package main

import (
	"context"
	"encoding/json"
	"os"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
)

// bearer is what tokens.json has for a token. A ServiceAccount's token that is bound to a pod also has the node's name
// in extra, as authentication.kubernetes.io/node-name.
type bearer struct {
	Name    string              `json:"name"`
	UID     string              `json:"uid"`
	Groups  []string            `json:"groups"`
	Extra   map[string][]string `json:"extra"`
	Expires *time.Time          `json:"expires"`
}

// tokens reads the file at every request: a token can be added, changed or revoked at any time.
func tokens(path string) authenticator.TokenFunc {
	return func(_ context.Context, token string) (*authenticator.Response, bool, error) {
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, false, err
		}
		var known map[string]bearer
		if err := json.Unmarshal(data, &known); err != nil {
			return nil, false, err
		}
		found, ok := known[token]
		if !ok || found.Expires != nil && time.Now().After(*found.Expires) {
			return nil, false, nil
		}
		return &authenticator.Response{User: &user.DefaultInfo{
			Name: found.Name, UID: found.UID, Groups: found.Groups, Extra: found.Extra}}, true, nil
	}
}
