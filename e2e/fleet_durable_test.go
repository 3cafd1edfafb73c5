package e2e

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/weir-rl/weir/internal/parts"
	"github.com/weir-rl/weir/internal/redistest"
	"github.com/weir-rl/weir/pkg/limit"
	"github.com/weir-rl/weir/pkg/pipeline"
)

// manyPolicy has rules of all kinds, with lives from a second to a year.
const manyPolicy = `
domain: fleet
defaults: {on_store_failure: closed}
descriptors:
  - key: second
    rate_limit: {unit: second, requests_per_unit: 3}
  - key: minute
    rate_limit: {unit: minute, requests_per_unit: 5, overdraw: "on"}
  - key: year
    rate_limit: {unit: year, requests_per_unit: 9}
  - key: fast
    rate_limit: {algorithm: token_bucket, unit: second, requests_per_unit: 5, burst: 10}
  - key: slow
    rate_limit: {algorithm: token_bucket, unit: hour, requests_per_unit: 3, burst: 5, overdraw: "on"}
  - key: shadow
    shadow_mode: true
    rate_limit: {unit: hour, requests_per_unit: 2}
  - key: quota
    quota_mode: true
    rate_limit: {unit: hour, requests_per_unit: 2}
  - key: tenant
    rate_limit: {unit: day, requests_per_unit: 50}
    descriptors:
      - key: user
        rate_limit: {unit: hour, requests_per_unit: 4}
`

// randomRequest asks for a few budgets of manyPolicy, at costs from peeks to more than any rule admits.
func randomRequest(r *rand.Rand) *pipeline.Request {
	rules := []string{
		"second=%d", "minute=%d", "year=%d", "fast=%d", "slow=%d", "shadow=%d", "quota=%d", "tenant=%d",
		"tenant=%d,user=%[1]d",
	}
	var descriptors []string
	for range 1 + r.IntN(5) {
		descriptors = append(descriptors, fmt.Sprintf(rules[r.IntN(len(rules))], r.IntN(100)))
	}
	q := request(descriptors...)
	q.HitsAddend = uint32(r.IntN(4))
	for i := range q.Descriptors {
		if r.IntN(3) == 0 {
			q.Descriptors[i].HasHits, q.Descriptors[i].Hits = true, uint64(r.IntN(12))
			q.Descriptors[i].Negative = r.IntN(4) == 0
		}
	}
	return q
}

// TestEveryKeyExpires is failure F04: whatever is asked, no key stays for ever. A window's key lives a second longer
// than the window; how long the script ran before its write comes on top.
func TestEveryKeyExpires(t *testing.T) {
	long(t)
	redis, policy := redistest.Start(t), writePolicy(t, manyPolicy)
	_, nodes := threeInstances(t, redis, policy)
	const callers = 16
	seed := rand.Uint64()
	var random [callers]*rand.Rand
	for i := range random {
		random[i] = rand.New(rand.NewPCG(seed, uint64(i)))
	}
	got := (&load{nodes: nodes, callers: callers, calls: 100, make: func(caller, _ int) (string, *pipeline.Request) {
		return "", randomRequest(random[caller])
	}}).start(t).wait()
	keys, forms := 0, map[limit.Algorithm]int{}
	for _, key := range scan(t, redis) {
		before := redis.Time(t).UnixMilli()
		ttl := redis.MustDo(t, "PTTL", key).(int64)
		after := redis.Time(t).UnixMilli()
		if ttl == -2 {
			continue // It has expired since.
		}
		keys++
		if ttl < 0 {
			t.Errorf("seed %d: key %s has no TTL", seed, key)
			continue
		}
		state := stored(t, redis, key)
		forms[state.Algorithm]++
		if state.Algorithm != limit.FixedWindow {
			continue
		}
		if end := state.End + 1000; ttl < end-after || ttl > end-before+1000 {
			t.Errorf("seed %d: key %s of a window that ends in %d ms lives for %d ms", seed, key, state.End-before, ttl)
		}
	}
	if keys < 300 || forms[limit.FixedWindow] < 100 || forms[limit.TokenBucket] < 100 {
		t.Errorf("only %d keys, by algorithm %v", keys, forms)
	}
	t.Logf("%d answers, causes %v; %d keys, all with a TTL: %v", got.answers, got.causes, keys, forms)
}

// scan returns all keys.
func scan(t *testing.T, redis *redistest.Server) (keys []string) {
	t.Helper()
	seen := map[string]bool{}
	for cursor := "0"; ; {
		page := redis.MustDo(t, "SCAN", cursor, "COUNT", "1000").([]any)
		for _, key := range page[1].([]any) {
			if k := key.(string); !seen[k] {
				seen[k] = true
				keys = append(keys, k)
			}
		}
		if cursor = page[0].(string); cursor == "0" {
			return keys
		}
	}
}

// The rules of TestKillsAmidLoad; a year turns over during a test in one second of it.
const (
	hotLimit   = 100
	killPolicy = `
domain: fleet
defaults: {on_store_failure: closed}
descriptors:
  - key: hot
    rate_limit: {unit: year, requests_per_unit: 100}
  - key: user
    rate_limit: {unit: year, requests_per_unit: 5}
`
)

// TestKillsAmidLoad kills a sidecar and then a durable Redis, which comes back, all amid load: every key has a TTL
// (failure F04), nothing that was acknowledged is forgotten, the other sidecars answer every call and have the
// authority decide again by themselves.
func TestKillsAmidLoad(t *testing.T) {
	long(t)
	redis, policy := redistest.Start(t, redistest.WithAppendOnly()), writePolicy(t, killPolicy)
	instances, nodes := threeInstances(t, redis, policy)
	const callers, calls, users = 24, 100_000, 20 // The calls end long before: when enough keys are there.
	l := (&load{
		nodes: nodes, callers: callers, calls: calls, mayFail: true,
		make: func(caller, call int) (string, *pipeline.Request) {
			if call%4 == 0 {
				return "hot", request("hot=one")
			}
			descriptors := make([]string, users)
			for i := range descriptors {
				descriptors[i] = fmt.Sprintf("user=%d", (caller*calls+call)*users+i)
			}
			return "users", request(descriptors...)
		},
	}).start(t)
	l.more(t, 100)
	instances[0].kill(t)
	l.more(t, 100)
	redis.Kill(t)
	l.until(t, "no answers without the store", func(now outcome) bool { return now.source("fallback") > 20 })
	redis.Restart(t)
	back := l.sofar()
	l.until(t, "the authority does not decide again", func(now outcome) bool {
		return now.sources["authority 1"] > back.sources["authority 1"]+20 &&
			now.sources["authority 2"] > back.sources["authority 2"]+20
	})
	const enough = 10_000
	err := parts.Poll(t.Context(), patience, func() error {
		if n := redis.MustDo(t, "DBSIZE").(int64); n < enough {
			return fmt.Errorf("%d keys, want %d", n, enough)
		}
		if l.sofar().causes["limit"] == 0 {
			return errors.New("the hot rule has not denied yet")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	got := l.end()

	if got.lost == 0 || got.lost > callers/len(nodes) {
		t.Errorf("%d calls were lost, want those that the killed sidecar had and no other", got.lost)
	}
	// One script sees all keys at one instant.
	const withoutTTL = `local keys, n = redis.call('KEYS', '*'), 0
		for _, k in ipairs(keys) do if redis.call('PTTL', k) < 0 then n = n + 1 end end
		return {#keys, n}`
	counts := redis.MustDo(t, "EVAL", withoutTTL, "0").([]any)
	if counts[0].(int64) < enough || counts[1] != int64(0) {
		t.Errorf("%v keys, %v of them without a TTL, want at least %d and none", counts[0], counts[1], enough)
	}
	state := stored(t, redis, storeKeys(t, policy, "hot=one")[0])
	if got.admitted["hot"] > hotLimit || state.Used != hotLimit {
		t.Errorf("admitted %d, stored %d, want at most %d and exactly that", got.admitted["hot"], state.Used, hotLimit)
	}
	for _, n := range nodes[1:] {
		if errs := n.sum(t, "weir_rls_requests_total", `code="error"`); errs != 0 {
			t.Errorf("a sidecar that lived on ended %v calls with an error", errs)
		}
	}
	t.Logf("%d answers, %d lost, %v; %v keys; hot: %d admitted, %d stored; classes %v",
		got.answers, got.lost, got.sources, counts[0], got.admitted["hot"], state.Used, errorClasses(t, nodes[1:]))
}

// errorClasses returns how many requests the store did not decide, by class.
func errorClasses(t *testing.T, nodes []node) map[string]float64 {
	t.Helper()
	counts := map[string]float64{}
	for _, class := range limit.Classes() {
		if n := sumOver(t, nodes, "weir_authority_errors_total", `class="`+class.String()+`"`); n > 0 {
			counts[class.String()] = n
		}
	}
	return counts
}
