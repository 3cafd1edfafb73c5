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

// A sidecar that starts with a lower version than the namespace has seen
// decides by it, and says so until it has a version as high.
func TestVersionBehind(t *testing.T) {
	server := redistest.Start(t)
	start := func(version int) *world {
		return reloading(t, "", oneFile("policy.yaml", versioned(version, 10+version)), func(o *sidecar.Options, _ *sidecar.Sidecar) {
			o.Config.Store.Type, o.Config.Store.URL = sidecar.StoreRedis, server.URL()
		})
	}
	recorded := func(version string) {
		t.Helper()
		eventually(t, "version "+version+" in the store", func() bool {
			return server.MustDo(t, "GET", "weir:1:version:default") == version
		})
	}
	start(5)
	recorded("5")
	w := start(3)
	behind := func(n float64) {
		t.Helper()
		eventually(t, "behind", func() bool { return w.metric("weir_policy_version_behind") == n })
	}
	behind(2)
	w.decides(3, 13)
	w.write("policy.yaml", versioned(4, 14))
	w.decides(4, 14)
	behind(1)
	recorded("5")
	if n := w.log.count("older than what this namespace has seen"); n != 1 {
		t.Errorf("logged %d times, want once", n)
	}
	w.write("policy.yaml", versioned(9, 19))
	w.decides(9, 19)
	behind(0)
	recorded("9")
}

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
