package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/redistest"
	"github.com/weir-rl/weir/pkg/pipeline"
)

// The numbers of the rules below, and of the callers: the demand is at least three times what a rule admits.
const (
	weekLimit    = 1000
	bucketBurst  = 500
	bucketRate   = 40 // each second
	tenantLimit  = 600
	userLimit    = 100
	fleetCallers = 64
	fleetCalls   = 50
)

var exactPolicy = fmt.Sprintf(`
domain: fleet
defaults: {on_store_failure: closed}
descriptors:
  - key: week
    rate_limit: {unit: week, requests_per_unit: %d}
  - key: bucket
    rate_limit: {algorithm: token_bucket, unit: second, requests_per_unit: %d, burst: %d}
  - key: tenant
    rate_limit: {unit: week, requests_per_unit: %d}
  - key: user
    rate_limit: {unit: week, requests_per_unit: %d}
`, weekLimit, bucketRate, bucketBurst, tenantLimit, userLimit)

// threeInstances starts three sidecar processes with the same policy on one Redis.
func threeInstances(t *testing.T, redis *redistest.Server, policy string) (instances []*instance, nodes []node) {
	t.Helper()
	for range 3 {
		i := startInstance(t, fleetArgs(redis, policy)...)
		instances, nodes = append(instances, i), append(nodes, i.node)
	}
	return instances, nodes
}

// TestFleetIsExact runs three processes and 64 callers against one Redis (failures F02, F03).
func TestFleetIsExact(t *testing.T) {
	long(t)
	f := fleet{redis: redistest.Start(t, redistest.WithClock()), policy: writePolicy(t, exactPolicy)}
	midweek(f.redis)
	_, f.nodes = threeInstances(t, f.redis, f.policy)
	t.Run("fixed window", f.fixedWindow)
	t.Run("bucket", f.bucket)
	t.Run("all or nothing", f.allOrNothing)
}

// fleet is what its tests share.
type fleet struct {
	redis  *redistest.Server
	policy string
	nodes  []node
}

// fixedWindow: however many sidecars and callers there are, a window admits its limit, to the request.
func (f fleet) fixedWindow(t *testing.T) {
	const descriptor = "week=one"
	got := (&load{nodes: f.nodes, callers: fleetCallers, calls: fleetCalls, make: func(int, int) (string, *pipeline.Request) {
		return "", request(descriptor)
	}}).start(t).wait()
	const demand = fleetCallers * fleetCalls
	if got.answers != demand || got.source("authority") != demand {
		t.Errorf("%d of %d calls were answered, %d of them by the authority", got.answers, demand, got.source("authority"))
	}
	if got.admitted[""] != weekLimit {
		t.Errorf("admitted %d of %d, want %d exactly", got.admitted[""], demand, weekLimit)
	}
	if state := stored(t, f.redis, storeKeys(t, f.policy, descriptor)[0]); state.Used != weekLimit {
		t.Errorf("the store has counted %d, want %d", state.Used, weekLimit)
	}
	var answered [3]float64
	for i, n := range f.nodes {
		answered[i] = n.sum(t, "weir_rls_requests_total")
		if answered[i] < demand/5 {
			t.Errorf("process %d has answered %v of %d calls, want at least a fifth", i, answered[i], demand)
		}
	}
	if counted := sumOver(t, f.nodes, "weir_pipeline_decisions_total", `rule="week"`, `cause="allowed"`); counted != weekLimit {
		t.Errorf("the processes count %v admissions, want %d", counted, weekLimit)
	}
	t.Logf("admitted %d of %d; the processes answered %v", got.admitted[""], demand, answered)
}

// bucket: over the whole run, by the store's clock, a bucket admits at least what it holds, and at most that and what
// flowed in.
func (f fleet) bucket(t *testing.T) {
	begin := f.redis.Time(t)
	got := (&load{nodes: f.nodes, callers: fleetCallers, calls: fleetCalls, make: func(int, int) (string, *pipeline.Request) {
		return "", request("bucket=one")
	}}).start(t).wait()
	span := f.redis.Time(t).Sub(begin)
	most := bucketBurst + int(bucketRate*span/time.Second) + 1
	if got.source("authority") != fleetCallers*fleetCalls {
		t.Errorf("the authority decided %d of %d calls: %v", got.source("authority"), fleetCallers*fleetCalls, got.sources)
	}
	if got.admitted[""] < bucketBurst || got.admitted[""] > most {
		t.Errorf("admitted %d in %v, want at least %d and at most %d", got.admitted[""], span, bucketBurst, most)
	}
	t.Logf("admitted %d of %d in %v, bound %d", got.admitted[""], fleetCallers*fleetCalls, span, most)
}

// allOrNothing makes every request meet two rules. What one of them denies takes nothing from the other, over all
// processes: the tenant's count is the sum of its users'.
func (f fleet) allOrNothing(t *testing.T) {
	const users = 8 // Together they may do, and ask for, more than their tenant may.
	const tenant = "tenant=one"
	user := func(n int) string { return fmt.Sprintf("user=%d", n) }
	got := (&load{nodes: f.nodes, callers: fleetCallers, calls: fleetCalls, make: func(caller, call int) (string, *pipeline.Request) {
		// A few users ask most of the time, so that both rules deny.
		n := (caller + call) % users
		if n >= users/2 && call%5 != 0 {
			n = 0
		}
		return user(n), request(tenant, user(n))
	}}).start(t).wait()
	descriptors := []string{tenant}
	for n := range users {
		descriptors = append(descriptors, user(n))
	}
	keys, sum := storeKeys(t, f.policy, descriptors...), int64(0)
	for n := range users {
		used := stored(t, f.redis, keys[n+1]).Used
		if used != int64(got.admitted[user(n)]) || used > userLimit {
			t.Errorf("%s: stored %d, admitted %d, limit %d", user(n), used, got.admitted[user(n)], userLimit)
		}
		sum += used
	}
	if used := stored(t, f.redis, keys[0]).Used; used != sum || used != tenantLimit {
		t.Errorf("the tenant's count is %d and that of its users %d, want %d", used, sum, tenantLimit)
	}
	denials := [2]float64{}
	for i, rule := range []string{"tenant", "user"} {
		denials[i] = sumOver(t, f.nodes, "weir_pipeline_decisions_total", `rule="`+rule+`"`, `cause="limit"`)
	}
	if denials[0] == 0 || denials[1] == 0 {
		t.Errorf("denials by tenant and by user: %v, want both, or nothing was shown", denials)
	}
	t.Logf("admitted %d of %d; denials by tenant and by user %v", sum, got.answers, denials)
}
