package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/envoytest"
)

// remaining is what the x-ratelimit headers of an answer leave.
func remaining(r envoytest.Response) string { return r.Header.Get("x-ratelimit-remaining") }

// A descriptor's own cost comes from the route as a number, beside a descriptor that costs one, and both are debited.
func TestCostFromTheRoute(t *testing.T) {
	w := routes.start(t)
	counted := w.count(t, "closed")
	call := func() envoytest.Response { return w.get(t, "/cost/number", "x-user", name(t)) }
	for _, left := range []string{"2", "1"} { // 10 less 4 and 8, and 3 less 1 and 2, which is the tighter.
		if r := call(); r.Status != 200 || remaining(r) != left {
			t.Errorf("a call that fits: %d with %s left, want 200 with %s", r.Status, remaining(r), left)
		}
	}
	if r := call(); r.Status != 429 || r.Header.Get("retry-after") != "3580" {
		t.Errorf("a cost of 4 into 2: %d %v, want 429 until the hour ends", r.Status, r.Header)
	}
	if r := w.get(t, "/user", "x-user", name(t)); r.Status != 200 || remaining(r) != "0" {
		t.Errorf("the other rule: %d with %s left, want 200 with 0: the denied call took none", r.Status, remaining(r))
	}
	counted(3, 1)
}

// A cost that a request's header gives, as a budget of tokens has it.
func TestCostFromAHeader(t *testing.T) {
	w := routes.start(t)
	counted := w.count(t, "closed")
	for _, c := range []struct {
		cost, left string
		status     int
	}{
		{"7", "3", 200},
		{"0", "3", 200}, // A peek.
		{"3", "0", 200},
		{"0", "0", 200}, // Used up, but not exceeded.
		{"1", "0", 429}, // Its own cost is recorded though it does not fit (overdraw: auto) ...
		{"0", "0", 429}, // ... so that those who pay afterwards are stopped.
	} {
		if r := w.get(t, "/cost/header", "x-user", name(t), "x-cost", c.cost); r.Status != c.status || remaining(r) != c.left {
			t.Errorf("a cost of %s: %d with %s left, want %d with %s", c.cost, r.Status, remaining(r), c.status, c.left)
		}
	}
	counted(4, 2)
}

// A peek (hits_addend 0) reads a budget and neither takes from it nor makes a state.
func TestPeek(t *testing.T) {
	w := routes.start(t)
	counted := w.count(t, "closed")
	user := name(t)
	peek := func(status int, left string) {
		t.Helper()
		for range 3 {
			if r := w.get(t, "/peek", "x-user", user); r.Status != status || remaining(r) != left {
				t.Errorf("a peek: %d with %s left, want %d with %s", r.Status, remaining(r), status, left)
			}
		}
	}
	peek(200, "10")
	counted(3, 0) // They arrived.
	if got := w.stored(t, "e2e", "budget", user); got != nil {
		t.Errorf("after peeks only, Redis holds %q, want nothing", got)
	}
	w.statuses(t, 4, "/spend", "x-user", user)
	before := w.stored(t, "e2e", "budget", user)
	peek(200, "6")
	if got := w.stored(t, "e2e", "budget", user); got != before {
		t.Errorf("Redis holds %q after peeks, want %q as before", got, before)
	}
	if got, want := w.statuses(t, 7, "/spend", "x-user", user), strings.Repeat("200 ", 6)+"429"; got != want {
		t.Errorf("%s, want %s: what peeks saw is all there", got, want)
	}
	peek(200, "0") // At the limit, not beyond it.
	counted(3+4+3+6+3, 1)
}

// A cost that is no number reaches the sidecar as 2^63 (Envoy parses as C does). It denies, is not recorded, and is
// no error, which would open the route.
func TestCostThatIsNoNumber(t *testing.T) {
	for _, from := range []string{"header", "metadata"} {
		t.Run(from, func(t *testing.T) {
			w := routes.start(t)
			counted := w.count(t, "open")
			user := name(t)
			call := func(cost string) envoytest.Response {
				return w.get(t, "/open/cost/"+from, "x-user", user, "x-cost", cost)
			}
			if r := call("4"); r.Status != 200 || remaining(r) != "6" {
				t.Errorf("a cost of 4 = %d with %s left, want 200 with 6", r.Status, remaining(r))
			}
			before := w.stored(t, "e2e", "budget", user)
			for range 5 {
				answered(t, "a cost of nan", call("nan"), 429, map[string]string{
					"content-type":          "application/problem+json",
					"cache-control":         "no-store",
					"x-envoy-ratelimited":   "true",
					"x-ratelimit-limit":     `10, 10;w=3600;name="budget"`,
					"x-ratelimit-remaining": "0",
					"x-ratelimit-reset":     "0", // No wait helps, and Envoy has no way to leave it out.
				}, malformed("budget"))
			}
			counted(1, 5)
			if got := w.stored(t, "e2e", "budget", user); before == nil || got != before {
				t.Errorf("Redis holds %q after costs of nan, want %q as before", got, before)
			}
			if r := call("6"); r.Status != 200 || remaining(r) != "0" {
				t.Errorf("the rest of 6 = %d with %s left, want 200 with 0", r.Status, remaining(r))
			}
			counted(2, 5)
		})
	}
}

// malformed is the body of a request that cannot be counted, with the rule that it named, if any.
func malformed(rule string) string {
	violated := ""
	if rule != "" {
		violated = fmt.Sprintf(`,"violated-policies":[%q]`, rule)
	}
	return `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota exceeded","status":429,` +
		`"detail":"The request cannot be counted."` + violated + `}`
}
