package pipeline_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/weir-rl/weir/pkg/limit"
	"github.com/weir-rl/weir/pkg/pipeline"
)

// TestRandomRequests holds Decide over the embedded store to a second, obvious
// implementation of semantics S1 to S8, S12, S18 and S29 for fixed windows:
// random rules, alone and in lists, random requests of up to six descriptors,
// and a store that fails as a whole or for some keys.
func TestRandomRequests(t *testing.T) {
	seen := map[string]int{}
	for seed := range uint64(120) {
		rng := rand.New(rand.NewPCG(seed, 7))
		w := newWorld(t)
		text := randomPolicy(rng)
		if got := w.load(text); got != "ok\n" {
			t.Fatalf("seed %d: %s\n%s", seed, got, text)
		}
		m := &model{world: w, used: map[string]int64{}}
		for op := range 200 {
			if rng.IntN(10) == 0 {
				w.now += rng.Int64N(45_000)
			}
			w.class, w.layout = limit.ClassNone, nil
			switch rng.IntN(10) {
			case 0:
				w.class = []limit.Class{limit.ClassTimeout, limit.ClassOverloaded}[rng.IntN(2)]
			case 1, 2:
				w.class = limit.ClassLayout
				for _, r := range w.set.Rules() {
					if rng.IntN(4) == 0 {
						w.layout = append(w.layout, r.ID)
					}
				}
			}
			req := randomRequest(rng)
			want := m.decide(&req)
			w.d.Reset()
			w.d.Request = &req
			w.p.Decide(context.Background(), &w.d)
			if got := show(&w.d); got != want {
				t.Fatalf("seed %d, request %d, store %v %v:\n%s\n%+v\n got %s\nwant %s", seed, op, w.class, w.layout, text, req, got, want)
			}
			seen[codeName(w.d.Code)+" "+w.d.Cause.String()]++
		}
	}
	for _, kind := range []string{"OK allowed", "OK peek", "OK allowed_by_mode", "OVER_LIMIT limit", "OVER_LIMIT zero_limit", "OVER_LIMIT unavailable", "OVER_LIMIT too_large", "OVER_LIMIT malformed"} {
		if seen[kind] < 150 {
			t.Errorf("%q came up %d times, which tests too little: %v", kind, seen[kind], seen)
		}
	}
}

const randomKeys = 8

func randomPolicy(rng *rand.Rand) string {
	var b strings.Builder
	b.WriteString("domain: d\ndescriptors:\n")
	pick := func(s ...string) string { return s[rng.IntN(len(s))] }
	for i := range randomKeys {
		fmt.Fprintf(&b, "- key: k%d\n  shadow_mode: %s\n  quota_mode: %s\n", i, pick("true", "false", "false", "false"), pick("true", "false"))
		name := func(i, j int) string { return fmt.Sprintf("n%d_%d", i, j) }
		rateLimit := func(j int) string {
			s := "name: " + name(i, j)
			if rng.IntN(6) == 0 {
				s += ", replaces: [{name: " + name((i+1+rng.IntN(randomKeys-1))%randomKeys, rng.IntN(3)) + "}]"
			}
			if rng.IntN(10) == 0 {
				return s + ", unlimited: true"
			}
			return s + fmt.Sprintf(", unit: %s, requests_per_unit: %s, overdraw: %s, on_store_failure: %s",
				pick("minute", "hour", "day"), pick("0", "1", "2", "3", "5", "8", "8", "13"), pick("auto", "auto", `"on"`, `"off"`), pick("open", "closed"))
		}
		n := rng.IntN(4)
		if n == 0 {
			fmt.Fprintf(&b, "  rate_limit: {%s}\n", rateLimit(0))
			continue
		}
		b.WriteString("  rate_limits:\n")
		for j := range n {
			fmt.Fprintf(&b, "  - {%s%s}\n", rateLimit(j), pick("", "", "", ", shadow_mode: true"))
		}
	}
	return b.String()
}

func randomRequest(rng *rand.Rand) pipeline.Request {
	req := pipeline.Request{Domain: "d", HitsAddend: rng.Uint32N(4), Malformed: rng.IntN(50) == 0}
	for range 1 + rng.IntN(6) {
		d := pipeline.Descriptor{Entries: []limit.Entry{{
			Key:   fmt.Sprintf("k%d", rng.IntN(randomKeys+1)), // the last one has no rule
			Value: []string{"a", "b"}[rng.IntN(2)],
		}}}
		if rng.IntN(2) == 0 {
			d.HasHits, d.Hits = true, rng.Uint64N(10)
			if rng.IntN(30) == 0 {
				d.Hits = 1 << 63
			}
		}
		d.Negative = rng.IntN(10) == 0
		req.Descriptors = append(req.Descriptors, d)
	}
	return req
}
