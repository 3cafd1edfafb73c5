package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/redistest"
	"github.com/weir-rl/weir/pkg/pipeline"
)

// The rules of TestHealsAmidLoad.
const (
	smallLimit = 50
	healPolicy = `
domain: fleet
descriptors:
  - key: small
    rate_limit: {unit: year, requests_per_unit: 50, on_store_failure: closed}
  - key: closed
    rate_limit: {unit: year, requests_per_unit: 4000000000, on_store_failure: closed}
  - key: open
    rate_limit: {unit: year, requests_per_unit: 4000000000, on_store_failure: open}
`
)

// TestHealsAmidLoad takes everything away that a store can lose, while callers go on: scripts, data, itself. Every
// call is answered, by the rule's failure mode where need be, and the authority decides again without a restart of
// any sidecar. What a loss of data costs is one budget each time.
func TestHealsAmidLoad(t *testing.T) {
	long(t)
	redis, policy := redistest.Start(t), writePolicy(t, healPolicy)
	_, nodes := threeInstances(t, redis, policy)
	rules := []string{"small", "closed", "open"}
	l := (&load{
		nodes: nodes, callers: 24, calls: 100_000, // They end long before.
		make: func(_, call int) (string, *pipeline.Request) {
			rule := rules[call%len(rules)]
			return rule, request(rule + "=one")
		},
	}).start(t)
	// decides waits until each sidecar has given that many more answers of the authority.
	decides := func(answers int, after string) {
		t.Helper()
		before := l.sofar()
		l.until(t, "after "+after+" the authority does not decide", func(now outcome) bool {
			for i := range nodes {
				from := fmt.Sprintf("authority %d", i)
				if now.sources[from] < before.sources[from]+answers {
					return false
				}
			}
			return true
		})
	}
	decides(60, "the start")
	for range 20 {
		redis.MustDo(t, "SCRIPT", "FLUSH")
		decides(5, "a loss of the script")
	}
	if got := l.sofar(); got.source("fallback") != 0 {
		t.Errorf("a lost script was noticed: %v, %v", got.sources, errorClasses(t, nodes))
	}
	for range 1000 {
		redis.MustDo(t, "SCRIPT", "FLUSH")
	}
	decides(60, "a storm of script losses")
	losses := 0
	for _, loss := range []struct {
		what string
		do   func()
	}{
		{"FLUSHALL", func() { redis.MustDo(t, "FLUSHALL") }},
		{"a restart", func() { redis.Stop(t); redis.Restart(t) }},
		{"a crash", func() {
			redis.Kill(t)
			before := l.sofar().source("fallback")
			l.until(t, "no answers without the store", func(now outcome) bool { return now.source("fallback") > before+50 })
			redis.Restart(t)
		}},
		{"FLUSHALL and SCRIPT FLUSH at once", func() { redis.MustDo(t, "EVAL", "redis.call('FLUSHALL')", "0"); redis.MustDo(t, "SCRIPT", "FLUSH") }},
	} {
		loss.do()
		losses++
		decides(60, loss.what)
	}
	got := l.end()

	if n := got.source("authority") + got.source("fallback"); n != got.answers {
		t.Errorf("of %d answers %d are the authority's or a failure mode's: %v", got.answers, n, got.sources)
	}
	fallback, classes := float64(got.source("fallback")), errorClasses(t, nodes)
	if n := sumOver(t, nodes, "weir_pipeline_decisions_total", `source="fallback"`); n != fallback {
		t.Errorf("the sidecars count %v answers by failure modes, the callers %v", n, fallback)
	}
	counted := 0.0
	for class, n := range classes {
		if !strings.Contains("refused connection loading script", class) {
			t.Errorf("%v requests of class %s, which is none that a store that goes or comes gives", n, class)
		}
		counted += n
	}
	if counted != fallback {
		t.Errorf("%v requests by class %v, want the %v that failure modes decided", counted, classes, fallback)
	}
	if got.denied["open"] != 0 || got.admitted["closed"]+got.denied["closed"] == 0 {
		t.Errorf("the open rule denied %d", got.denied["open"])
	}
	if n := got.causes["allowed_by_mode"] + got.causes["unavailable"]; n != got.source("fallback") {
		t.Errorf("causes %v, want allowed_by_mode and unavailable for the %v answers without the store", got.causes, fallback)
	}
	if n := got.admitted["small"]; n < smallLimit || n > smallLimit*(1+losses) {
		t.Errorf("a limit of %d admitted %d over %d losses of data, want one limit more for each at most", smallLimit, n, losses)
	}
	if n := sumOver(t, nodes, "weir_rls_requests_total", `code="error"`); n != 0 {
		t.Errorf("%v calls ended in an error", n)
	}
	t.Logf("%d answers, %v; classes %v; small: %d admitted over %d losses; scripts loaded %v times", got.answers, got.sources,
		classes, got.admitted["small"], losses, sumOver(t, nodes, "weir_authority_script_loads_total"))
}
