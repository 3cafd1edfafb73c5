package pipeline_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-rl/weir/pkg/limit"
	"github.com/weir-rl/weir/pkg/memory"
	"github.com/weir-rl/weir/pkg/pipeline"
	"github.com/weir-rl/weir/pkg/policy"
)

const simple = `
domain: d
descriptors:
  - key: five
    rate_limit: {unit: minute, requests_per_unit: 5}
  - key: zero
    rate_limit: {unit: minute, requests_per_unit: 0}
  - key: open
    rate_limit: {unit: minute, requests_per_unit: 5, on_store_failure: open}
  - key: free
    rate_limit: {unlimited: true}
`

func newSimple(t testing.TB) *world {
	t.Helper()
	w := newWorld(t)
	if got := w.load(simple); got != "ok\n" {
		t.Fatal(got)
	}
	return w
}

func request(keys ...string) *pipeline.Request {
	r := &pipeline.Request{Domain: "d"}
	for _, k := range keys {
		r.Descriptors = append(r.Descriptors, pipeline.Descriptor{Entries: []limit.Entry{{Key: k, Value: "x"}}})
	}
	return r
}

func (w *world) decide(r *pipeline.Request) string {
	w.d.Reset()
	w.d.Request = r
	w.p.Decide(context.Background(), &w.d)
	return show(&w.d)
}

// authorityFunc is an authority in a test.
type authorityFunc func(context.Context, *limit.Ask)

func (f authorityFunc) Debit(ctx context.Context, ask *limit.Ask) { f(ctx, ask) }

func newWith(w *world, a pipeline.Authority, cfg pipeline.Config, now func() time.Time) *pipeline.Pipeline {
	return pipeline.New(cfg, pipeline.Deps{
		Policy:    func() *policy.Set { return w.set },
		Authority: a, Registerer: prometheus.NewRegistry(), Now: now,
	})
}

func TestWithoutPolicy(t *testing.T) {
	w := newWorld(t)
	w.d.Request = request("five")
	w.p.Decide(context.Background(), &w.d)
	if w.d.Set != nil || w.d.Code != pipeline.OverLimit || w.d.Cause != limit.CauseNoPolicy || len(w.d.Statuses) != 1 {
		t.Errorf("decision = %+v, want a denial without a set, cause no_policy", w.d)
	}
}

func TestAtMost64Checks(t *testing.T) {
	w := newSimple(t)
	r := request()
	for i := range limit.MaxChecks {
		d := request("five").Descriptors[0]
		d.Entries[0].Value = fmt.Sprint(i)
		r.Descriptors = append(r.Descriptors, d)
	}
	for range 10 {
		r.Descriptors = append(r.Descriptors, request("free", "unknown").Descriptors...)
	}
	if w.decide(r); w.d.Code != pipeline.OK || len(w.d.Checks) != 64 {
		t.Errorf("64 checks and 20 descriptors without one: code %v, %d checks, want OK and 64", w.d.Code, len(w.d.Checks))
	}
	r.Descriptors = append(r.Descriptors, request("five").Descriptors...)
	w.decide(r)
	if w.d.Code != pipeline.OverLimit || w.d.Cause != limit.CauseMalformed || len(w.d.Statuses) != len(r.Descriptors) {
		t.Errorf("65 checks: code %v, cause %v, %d statuses, want a denial as malformed and %d", w.d.Code, w.d.Cause, len(w.d.Statuses), len(r.Descriptors))
	}
	for i := range w.d.Statuses {
		if w.d.Statuses[i].Code != pipeline.OverLimit {
			t.Errorf("65 checks: status %d = %+v, want OVER_LIMIT", i, w.d.Statuses[i])
		}
	}
}

// TestOverrideIgnored: a limit that the request carries is ignored and counted
// whatever its unit; the peer dies of a unit that does not exist.
func TestOverrideIgnored(t *testing.T) {
	w := newSimple(t)
	for unit := range 256 {
		r := request("free")
		r.Descriptors[0].Limit = &pipeline.Override{RequestsPerUnit: 0, Unit: policy.Unit(unit), Multiplier: 1}
		if got := w.decide(r); got != "OK none/unlimited by free | OK 4294967295 left" {
			t.Fatalf("unit %d: %s, want the rule to apply", unit, got)
		}
	}
	if got := value(t, w.reg, "weir_pipeline_overrides_ignored_total"); got != 256 {
		t.Errorf("overrides ignored = %v, want 256", got)
	}
}

func TestDeadline(t *testing.T) {
	w := newSimple(t)
	now := time.Now()
	var got time.Time
	p := newWith(w, authorityFunc(func(_ context.Context, ask *limit.Ask) { got = ask.Deadline }),
		pipeline.Config{}, func() time.Time { return now })
	for name, c := range map[string]struct{ callers, want time.Duration }{
		"no deadline":  {0, 10 * time.Millisecond},
		"a later one":  {20 * time.Millisecond, 10 * time.Millisecond},
		"a near one":   {8 * time.Millisecond, 5 * time.Millisecond},
		"one too near": {2 * time.Millisecond, -time.Millisecond},
	} {
		ctx := context.Background()
		if c.callers != 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithDeadline(ctx, now.Add(c.callers))
			defer cancel()
		}
		w.d.Reset()
		w.d.Request = request("five")
		p.Decide(ctx, &w.d)
		if got.Sub(now) != c.want {
			t.Errorf("%s: deadline in %v, want %v", name, got.Sub(now), c.want)
		}
	}
}

// TestAskIsLeftToTheAuthority: after a class a call may still be on its way and
// read the ask, whatever becomes of the decision.
func TestAskIsLeftToTheAuthority(t *testing.T) {
	w := newSimple(t)
	fail := true
	var asks []*limit.Ask
	p := newWith(w, authorityFunc(func(ctx context.Context, ask *limit.Ask) {
		asks = append(asks, ask)
		if !fail {
			w.store.Debit(ctx, ask)
			return
		}
		for i := range ask.Checks {
			ask.Checks[i].Verdict = limit.Verdict{Class: limit.ClassTimeout}
		}
	}), pipeline.Config{}, nil)
	for _, key := range []string{"five", "open", "open"} {
		w.d.Reset()
		w.d.Request = request(key)
		p.Decide(context.Background(), &w.d)
		fail = false
	}
	if asks[0] == asks[1] || &asks[0].Checks[0] == &asks[1].Checks[0] {
		t.Error("the ask of a failed call was used again")
	}
	five := w.set.Rules()[0]
	if c := asks[0].Checks[0]; c.Params != five.Params || c.Verdict.Class != limit.ClassTimeout {
		t.Errorf("the ask of the failed call = %+v, want it as it was left", c)
	}
	if asks[1] != asks[2] {
		t.Error("the ask of an answered call was not used again")
	}
}

// TestEveryClassAndMode declares the answer of every failure mode to every
// class, for a request of one check.
func TestEveryClassAndMode(t *testing.T) {
	for mode, allows := range map[limit.Mode]bool{
		limit.ModeLocal: false, limit.ModeClosed: false, limit.ModeOpen: true, limit.ModeExempt: false,
	} {
		w := newWorld(t)
		if got := w.load(fmt.Sprintf("domain: d\ndescriptors: [{key: k, rate_limit: {unit: hour, requests_per_unit: 5, on_store_failure: %v}}]", mode)); got != "ok\n" {
			t.Fatal(got)
		}
		w.layout = []string{"k"}
		for _, w.class = range limit.Classes() {
			w.decide(request("k"))
			want := pipeline.Decision{Code: pipeline.OverLimit, Cause: limit.CauseUnavailable, Unavailable: true, Retry: 1000}
			if w.class == limit.ClassOverloaded {
				want.Cause = limit.CauseOverload
			}
			if allows {
				want = pipeline.Decision{Code: pipeline.OK, Cause: limit.CauseAllowedByMode}
			}
			d := &w.d
			if d.Code != want.Code || d.Source != limit.SourceFallback || d.Cause != want.Cause || d.Unavailable != want.Unavailable || d.Retry != want.Retry {
				t.Errorf("%v, %v: %s, want code %v, cause %v, unavailable %v, retry %d",
					mode, w.class, show(d), want.Code, want.Cause, want.Unavailable, want.Retry)
			}
		}
	}
	if _, known := limit.ParseMode((limit.ModeExempt + 1).String()); known {
		t.Error("a mode has no declared answer")
	}
}

// TestEverySourceAndCause declares what a check of every cause does to its
// request. A new cause has no row and fails.
func TestEverySourceAndCause(t *testing.T) {
	type answer struct{ deny, unavailable bool }
	declared := map[limit.Cause]answer{
		limit.CauseAllowed:       {},
		limit.CauseLimit:         {deny: true},
		limit.CauseTooLarge:      {deny: true},
		limit.CauseZeroLimit:     {deny: true},
		limit.CauseConcurrency:   {deny: true},
		limit.CauseUnavailable:   {deny: true, unavailable: true},
		limit.CauseOverload:      {deny: true, unavailable: true},
		limit.CauseShareTooSmall: {deny: true},
		limit.CauseMalformed:     {deny: true},
		limit.CauseExempt:        {},
		limit.CausePeek:          {},
		limit.CauseAllowedByMode: {},
	}
	// What no check of its own is: see the scenarios.
	others := map[limit.Cause]bool{
		limit.CauseNoRule: true, limit.CauseNoPolicy: true, limit.CauseUnlimited: true,
		limit.CauseReplaced: true, limit.CauseShadow: true, limit.CauseRefund: true,
	}
	w := newSimple(t)
	var verdict limit.Verdict
	p := newWith(w, authorityFunc(func(_ context.Context, ask *limit.Ask) { ask.Checks[0].Verdict = verdict }), pipeline.Config{}, nil)
	for _, cause := range limit.Causes() {
		want, ok := declared[cause]
		if !ok {
			if !others[cause] {
				t.Errorf("cause %v has no declared answer", cause)
			}
			continue
		}
		for _, source := range limit.Sources() {
			verdict = limit.Verdict{Outcome: limit.Allow, Source: source, Cause: cause, Remaining: 3, Reset: 1500}
			if want.deny {
				verdict.Outcome, verdict.Retry = limit.Deny, 1500
			}
			w.d.Reset()
			w.d.Request = request("five")
			p.Decide(context.Background(), &w.d)
			d := &w.d
			if (d.Code == pipeline.OverLimit) != want.deny || d.Unavailable != want.unavailable || d.Source != source || d.Cause != cause {
				t.Errorf("%v/%v: %s, want deny %v, unavailable %v", source, cause, show(d), want.deny, want.unavailable)
			}
			if want.deny && d.Retry != 1500 {
				t.Errorf("%v/%v: retry %d, want 1500", source, cause, d.Retry)
			}
		}
	}
}

// TestRemainingIsClamped: a budget above 32 bits must not wrap on its way out.
func TestRemainingIsClamped(t *testing.T) {
	w := newSimple(t)
	p := newWith(w, authorityFunc(func(_ context.Context, ask *limit.Ask) {
		ask.Checks[0].Verdict = limit.Verdict{Outcome: limit.Allow, Source: limit.SourceAuthority, Cause: limit.CauseAllowed, Remaining: 1<<32 + 5}
	}), pipeline.Config{}, nil)
	w.d.Request = request("five")
	p.Decide(context.Background(), &w.d)
	if got := w.d.Statuses[0].Remaining; got != 1<<32-1 {
		t.Errorf("remaining = %d, want %d", got, uint32(1<<32-1))
	}
}

func TestNothingIsAllocated(t *testing.T) {
	w := newSimple(t)
	for name, r := range map[string]*pipeline.Request{
		"no rule":        request("unknown"),
		"unknown domain": {Domain: "nowhere", Descriptors: request("five").Descriptors},
		"local denial":   request("zero", "five"),
		"authority":      request("five", "open", "free"),
	} {
		ctx := context.Background()
		if n := testing.AllocsPerRun(100, func() {
			w.d.Reset()
			w.d.Request = r
			w.p.Decide(ctx, &w.d)
		}); n != 0 {
			t.Errorf("%s: %v allocations, want 0", name, n)
		}
	}
}

// TestConcurrent decides from many goroutines while the set is swapped.
func TestConcurrent(t *testing.T) {
	w := newSimple(t)
	var current atomic.Pointer[policy.Set]
	current.Store(w.set)
	p := pipeline.New(pipeline.Config{Budget: time.Hour}, pipeline.Deps{
		Policy: current.Load, Registerer: prometheus.NewRegistry(),
		Authority: memory.New(memory.Config{}, func() int64 { return t0 }, prometheus.NewRegistry()),
	})
	var admitted atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			var d pipeline.Decision
			r := request("five", "unknown")
			for range 200 {
				d.Reset()
				d.Request = r
				p.Decide(context.Background(), &d)
				if d.Code == pipeline.OK {
					admitted.Add(1)
				}
			}
		})
	}
	for range 20 {
		w.load(simple)
		p.Prepare(w.set)
		current.Store(w.set)
	}
	wg.Wait()
	if admitted.Load() != 5 {
		t.Errorf("admitted = %d, want 5", admitted.Load())
	}
}

func BenchmarkDecide(b *testing.B) {
	w := newSimple(b)
	for name, r := range map[string]*pipeline.Request{
		"no_rule": request("unknown"), "local_denial": request("zero"), "memory_3_checks": request("five", "open", "five"),
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			ctx := context.Background()
			for b.Loop() {
				w.d.Reset()
				w.d.Request = r
				w.p.Decide(ctx, &w.d)
			}
		})
	}
}
