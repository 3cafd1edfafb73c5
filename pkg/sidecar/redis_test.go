package sidecar_test

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-rl/weir/internal/redistest"
	"github.com/weir-rl/weir/pkg/limit"
	"github.com/weir-rl/weir/pkg/pipeline"
	"github.com/weir-rl/weir/pkg/sidecar"
)

const fiveAYear = `
domain: api
descriptors:
  - key: user
    rate_limit: {unit: year, requests_per_unit: 5}
`

// Two sidecars on one Redis share a limit, answer by the failure mode while it
// is down, and go on by themselves when it is back.
func TestSidecarsShareOneRedis(t *testing.T) {
	server := redistest.Start(t)
	registry := prometheus.NewRegistry()
	var both []*running
	for i := range 2 {
		c := config(t, fiveAYear)
		c.Store.Type, c.Store.URL = sidecar.StoreRedis, server.URL()
		c.Store.KeyPrefix = "team:"
		c.PolicyDefaults.OnStoreFailure = limit.ModeClosed
		opts := sidecar.Options{Config: c}
		if i == 0 {
			opts.Registry = registry
		}
		both = append(both, run(t, opts))
	}
	admitted := 0
	for i := range 12 {
		if call(t, both[i%2].Addrs().TCP, "ann").Code() == pipeline.OK {
			admitted++
		}
	}
	if admitted != 5 {
		t.Errorf("admitted %d, want 5", admitted)
	}
	keys, _ := server.MustDo(t, "KEYS", "*").([]any)
	if len(keys) != 1 || !strings.HasPrefix(keys[0].(string), "team:weir:1:{") {
		t.Errorf("keys %v, want one of the key scheme with the prefix", keys)
	}
	lint(t, registry)

	server.Kill(t)
	a := call(t, both[0].Addrs().TCP, "bob")
	if a.Code() != pipeline.OverLimit || !strings.Contains(a.Text(), `deny_as: "unavailable"`) {
		t.Errorf("while Redis is down:\n%s", a.Text())
	}
	server.Restart(t)
	for deadline := time.Now().Add(patience); ; {
		if call(t, both[0].Addrs().TCP, "bob").Code() == pipeline.OK {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("still unavailable after the restart")
		}
	}
	for _, r := range both {
		if err := r.end(t); err != nil {
			t.Errorf("Run() = %v", err)
		}
	}
}
