package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// A rule counts at the last entry of its path only, and what it has below is found by the entry that is listed first.
func TestNestedRules(t *testing.T) {
	w := routes.start(t)
	counted := w.count(t, "closed")
	for _, c := range []struct{ plan, user, want string }{
		{"gold", name(t), "200 200 200 200 429"},  // plan=gold, user, action: 4.
		{"silver", name(t), "200 200 429"},        // plan, user, action: 2.
		{"bronze", name(t), "200 200 429"},        // The same rule with another value is another budget.
		{"gold", "", "200 429"},                   // plan=gold, action, as the user's entry is left out: 1.
		{"silver", "", "200 200 200 200 200 200"}, // plan has nothing below it but user: no rule.
	} {
		headers := []string{"x-plan", c.plan}
		if c.user != "" {
			headers = append(headers, "x-user", c.user)
		}
		if got := w.statuses(t, (len(c.want)+1)/4, "/plan", headers...); got != c.want {
			t.Errorf("plan %s, user %q: %s, want %s", c.plan, c.user, got, c.want)
		}
	}
	// The rule of the upper level has a budget of its own, which none of the calls above took from.
	if got, want := w.statuses(t, 4, "/plan/only", "x-plan", "silver"), "200 200 200 429"; got != want {
		t.Errorf("plan silver alone: %s, want %s", got, want)
	}
	counted(18, 5)
}

// The exact value comes before patterns, the first pattern of the file before the next, and both before any value.
// Values that match a pattern have a budget each, unless the rule shares its threshold.
func TestWildcardRules(t *testing.T) {
	w := routes.start(t)
	counted := w.count(t, "closed")
	for _, c := range []struct{ file, want string }{
		{"img/logo.png", "200 429"},        // As it stands there: 1.
		{"img/a.png", "200 200 429"},       // img/*.png: 2.
		{"img/x/b.png", "200 200 429"},     // Each value for itself, and * stands for slashes too.
		{"img/c.svg", "200 200"},           // img/*: 3, shared ...
		{"img/d.gif", "200 429"},           // ... by all its values.
		{"css/e.png", "200 200 200 200"},   // Any value: 4.
		{"css/f.png", "200 200 200 200"},   //
		{"css/e.png", "429"},               //
		{"IMG/a.png", "200 200 200 200"},   // Letters are compared as they are.
		{"img/*.png", "200 200 429"},       // The pattern's own text matches as the pattern: 2.
		{"xximg/a.png", "200 200 200 200"}, // A pattern begins where the value begins.
		{"img/*", "429"},                   // The text of the shared pattern is in its budget, not beside it.
	} {
		if got := w.statuses(t, (len(c.want)+1)/4, "/file", "x-user", name(t), "x-file", c.file); got != c.want {
			t.Errorf("file %s: %s, want %s", c.file, got, c.want)
		}
	}
	counted(26, 7)
}

// An unlimited rule lets everything pass without numbers and without Redis, and so does what no rule matches.
func TestUnlimited(t *testing.T) {
	w := routes.start(t)
	counted := w.count(t, "closed")
	calls := w.debits(t)
	for range 20 {
		for _, path := range []string{"/probe", "/unmatched"} {
			answered(t, path, w.get(t, path), 200, map[string]string{"content-type": "text/plain"}, "hello\n")
		}
	}
	counted(40, 0)
	if got := w.debits(t); got != calls {
		t.Errorf("Redis has run %d scripts, want %d as before", got, calls)
	}
}

// A shadow rule counts and shows its numbers, and never denies. Metric and metadata say what it would have done.
func TestShadow(t *testing.T) {
	w := routes.start(t)
	counted := w.count(t, "closed")
	shadowed := func(outcome string) uint64 {
		return w.counter(t, "weir_pipeline_shadow_total", "rule", "trial", "outcome", outcome)
	}
	allowed, denied := shadowed("allowed"), shadowed("denied")
	for i := range 5 {
		answered(t, fmt.Sprintf("call %d", i+1), w.get(t, "/trial", "x-user", name(t)), 200, map[string]string{
			"content-type":          "text/plain",
			"x-ratelimit-limit":     `2, 2;w=60;name="trial"`,
			"x-ratelimit-remaining": fmt.Sprint(max(0, 1-i)),
			"x-ratelimit-reset":     "40",
		}, "hello\n")
	}
	counted(5, 0)
	if a, d := shadowed("allowed")-allowed, shadowed("denied")-denied; a != 2 || d != 3 {
		t.Errorf("the metric counts %d allowed and %d denied, want 2 and 3", a, d)
	}
	w.get(t, "/trial", "x-user", name(t), "x-test", name(t))
	want := map[string]any{"source": "authority", "cause": "shadow", "rule": "trial", "policy_version": "0", "shadow": "trial"}
	if d := cmp.Diff(want, w.logged(t, name(t))["limiter"]); d != "" {
		t.Errorf("metadata of a request that the shadow rule would have denied (-want +got):\n%s", d)
	}
}

// Two rules on one request: a request that one of them denies takes nothing from the other, in whichever order they
// stand. The bytes in Redis are the proof.
func TestAllOrNothing(t *testing.T) {
	for _, path := range []string{"/pair", "/pair/reversed"} {
		t.Run(path[1:], func(t *testing.T) {
			w := routes.start(t)
			counted := w.count(t, "closed")
			user := name(t)
			if got, want := w.statuses(t, 2, path, "x-user", user), "200 200"; got != want {
				t.Fatalf("%s, want %s", got, want)
			}
			account, device := w.stored(t, "e2e", "account", user), w.stored(t, "e2e", "device", user)
			if account == nil || device == nil {
				t.Fatalf("after two requests the account is %q and the device %q, want both stored", account, device)
			}
			// Time passes, and the bucket of the account could be brought up to date: not by a request that is denied.
			w.advance(7 * time.Second)
			denied := uint64(0)
			for range 10 {
				r := w.get(t, path, "x-user", user)
				if r.Status != 429 || r.Header.Get("x-ratelimit-remaining") != "0" || r.Header.Get("retry-after") != "3573" {
					t.Errorf("a request beyond the device's limit: %d %v, want 429 until the hour ends", r.Status, r.Header)
				}
				denied++
			}
			counted(2, denied) // They arrived, and were decided.
			if got := w.stored(t, "e2e", "account", user); got != account {
				t.Errorf("the account, which had room, holds %q after the denials, want %q as before them", got, account)
			}
			if got := w.stored(t, "e2e", "device", user); got != device {
				t.Errorf("the device holds %q after the denials, want %q: a refused request is not counted", got, device)
			}
		})
	}
}

// The x-ratelimit headers show the tightest of several limits, and all of them as policies, with multiples of units;
// an unlimited descriptor beside them has no part in it.
func TestRateLimitHeadersShowTheTightest(t *testing.T) {
	w := routes.start(t)
	counted := w.count(t, "closed")
	for i := range 11 {
		r := w.get(t, "/windows", "x-user", name(t))
		want := map[string]string{
			"content-type":          "text/plain",
			"x-ratelimit-limit":     `10, 100;w=86400;name="wide", 10;w=30`,
			"x-ratelimit-remaining": fmt.Sprint(9 - i),
			"x-ratelimit-reset":     "10", // The window of 30 s ends in 9.75.
		}
		if i < 10 {
			answered(t, fmt.Sprintf("call %d", i+1), r, 200, want, "hello\n")
			continue
		}
		want["content-type"], want["cache-control"], want["x-envoy-ratelimited"] = "application/problem+json", "no-store", "true"
		want["x-ratelimit-remaining"], want["retry-after"], want["retry-after-ms"] = "0", "10", "9750"
		answered(t, "call 11", r, 429, want, fmt.Sprintf(quotaExceeded, "narrow", 10))
	}
	counted(10, 1)
}
