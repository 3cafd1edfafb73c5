package limit_test

import (
	"maps"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/weir-rl/weir/pkg/limit"
)

// I2: a denied request changes nothing but what refunds and overdrawing denials
// change, and no request touches a key that it only looked at.
func TestOnlyAllowedRequestsTake(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, of := newStore(t), map[byte]*limit.Params{}
		for _, k := range []byte("abcd") {
			of[k] = rules().Draw(t, "rule")
			of[k].Version = rapid.Uint64Range(0, 3).Draw(t, "version")
		}
		planted(t, s)
		a := asks(t, of)
		before := map[limit.Key]string{}
		for k, v := range s.values {
			before[k] = v
		}
		s.decide(t0, a)
		no := denied(a)
		for _, name := range []byte("abcd") {
			k := key(name)
			changes := false
			for i := range a.Checks {
				c := &a.Checks[i]
				if c.Key != k {
					continue
				}
				switch over := c.Verdict.Outcome == limit.Deny; {
				case c.Kind == limit.Refund:
					changes = changes || c.Cost > 0
				case over:
					changes = changes || c.Overdraw && c.Cost > 0
				default:
					changes = changes || !no && c.Cost > 0
				}
				if no && c.Kind == limit.Shadow && c.Verdict.Outcome != limit.NotEvaluated {
					t.Fatalf("a shadow check of a denied request: %s", text(c.Verdict))
				}
				if c.Kind != limit.Shadow && c.Verdict.Outcome != limit.Allow && c.Verdict.Outcome != limit.Deny {
					t.Fatalf("a %s check: %s", c.Kind, text(c.Verdict))
				}
				if c.Kind == limit.Refund && c.Verdict.Outcome != limit.Allow {
					t.Fatalf("a refund: %s", text(c.Verdict))
				}
			}
			if !changes && s.values[k] != before[k] {
				t.Fatalf("key %c: %x became %x, by %v of %+v", name, before[k], s.values[k], verdicts(a), a.Checks)
			}
		}
	})
}

// S18: remaining is the largest cost that fits; retry is the smallest wait
// after which a cost fits; after reset the whole budget is there. And what fits
// now fits later, and with a smaller cost.
func TestNumbersMeanWhatTheySay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, p, now := newStore(t), rules().Draw(t, "rule"), int64(t0)
		for range rapid.IntRange(0, 10).Draw(t, "steps") {
			now += min(waits(p).Draw(t, "wait"), latest-now)
			a := ask([]check{{enforced, 'k', p, costs(p).Draw(t, "cost"), ""}})
			a.Checks[0].Overdraw = rapid.Bool().Draw(t, "overdraw")
			s.decide(now, a)
		}
		st := s.state(key('k'))
		fits := func(now, cost int64) bool {
			_, v := limit.Apply(st, p, now, cost)
			return v.Outcome == limit.Allow
		}
		peekSt, peek := limit.Apply(st, p, now, 0)
		if diff := cmp.Diff(st, peekSt); diff != "" {
			t.Fatalf("a peek changed the state:\n%s", diff)
		}
		if peek.Outcome == limit.Allow {
			if !fits(now, peek.Remaining) || fits(now, peek.Remaining+1) {
				t.Fatalf("remaining is %d, but %d fits: %v, %d fits: %v", peek.Remaining,
					peek.Remaining, fits(now, peek.Remaining), peek.Remaining+1, fits(now, peek.Remaining+1))
			}
			if !fits(now+peek.Reset, p.Budget()) {
				t.Fatalf("after the reset of %d the budget is not whole", peek.Reset)
			}
		}
		cost := costs(p).Draw(t, "cost")
		_, v := limit.Apply(st, p, now, cost)
		switch {
		case v.Cause == limit.CauseTooLarge:
			if cost <= p.Budget() {
				t.Fatalf("%d of %d: too large", cost, p.Budget())
			}
		case v.Outcome == limit.Deny:
			if v.Retry < 1 || !fits(now+v.Retry, cost) || fits(now+v.Retry-1, cost) {
				t.Fatalf("retry of %d after %d: fits %v, one before: %v; %+v", cost, v.Retry, fits(now+v.Retry, cost), fits(now+v.Retry-1, cost), st)
			}
		default:
			later := now + waits(p).Draw(t, "later")
			less := rapid.Int64Range(0, cost).Draw(t, "less")
			if !fits(later, cost) || !fits(now, less) {
				t.Fatalf("%d fits at %d, but at %d: %v; %d fits: %v", cost, now, later, fits(later, cost), less, fits(now, less))
			}
		}
	})
}

// S14: two sidecars on two policy versions share a key. Whatever their numbers,
// the older one never turns the form that the newer one gave, and never
// shortens the key's life.
func TestTwoVersionsNeverFlipAKey(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		old, newer := of(1, rules().Draw(t, "old")), of(2, rules().Draw(t, "new"))
		s, now := newStore(t), int64(t0)
		for range rapid.IntRange(2, 40).Draw(t, "steps") {
			p := rapid.SampledFrom([]*limit.Params{old, newer}).Draw(t, "version")
			now += min(waits(p).Draw(t, "wait"), latest-now)
			before, expiry := s.state(key('k')), s.expiry[key('k')]
			a := ask([]check{{rapid.SampledFrom([]limit.Kind{refund, enforced, enforced}).Draw(t, "kind"), 'k', p, costs(p).Draw(t, "cost"), ""}})
			a.Checks[0].Overdraw = rapid.Bool().Draw(t, "overdraw")
			s.decide(now, a)
			after := s.state(key('k'))
			gone := before.Used == 0 || expiry <= now || before.Algorithm == limit.FixedWindow && before.End <= now
			if gone || after.Used == 0 || p == newer {
				if p == newer && after.Used > 0 && !cmp.Equal(after, before) && (after.Version != 2 || after.Algorithm != newer.Algorithm) {
					t.Fatalf("the newer version left %+v", after)
				}
				continue
			}
			if after.Version < before.Version || after.Algorithm != before.Algorithm || before.Version == 2 && after.Length != before.Length {
				t.Fatalf("the older version made %+v of %+v", after, before)
			}
			if before.Version == 2 && s.expiry[key('k')] < expiry {
				t.Fatalf("the older version shortened the TTL by %d", expiry-s.expiry[key('k')])
			}
		}
	})
}

// S14: what was used is carried over a switch of algorithm, whole: it gives no
// fresh budget.
func TestASwitchGivesNoFreshBudget(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Int64Range(1, limit.MaxCost).Draw(t, "limit")
		from, to := window(n, minute), window(n, minute)
		if rapid.Bool().Draw(t, "from bucket") {
			from = bucket(n, minute, n)
		}
		if rapid.Bool().Draw(t, "to bucket") {
			to = bucket(n, minute, n)
		}
		s, took := newStore(t), rapid.Int64Range(0, n).Draw(t, "took")
		s.take(t0, of(1, from), took)
		if v := s.take(t0, of(2, to), 0); v.Remaining != n-took {
			t.Fatalf("%d of %d used, remaining %d after the switch", took, n, v.Remaining)
		}
	})
}

// plainly is a second, plain opinion of a request at one instant, in hits: what
// each check answers and what is used afterwards (S3, S5, S6, S7, S8, S11).
func plainly(a *limit.Ask, used map[limit.Key]int64) []limit.Outcome {
	over := make([]bool, len(a.Checks))
	room := func(i int, used map[limit.Key]int64) bool {
		c := &a.Checks[i]
		return used[c.Key]+c.Cost <= c.Params.Budget()
	}
	overdraw := func(c *limit.Check) {
		if p := c.Params; p.Algorithm == limit.TokenBucket {
			used[c.Key] = max(used[c.Key], min(used[c.Key]+c.Cost, p.Capacity+p.OverdrawCap))
		} else if used[c.Key] <= p.Limit {
			used[c.Key] += c.Cost
		}
	}
	for i := range a.Checks {
		if c := &a.Checks[i]; c.Kind == limit.Refund {
			used[c.Key] -= min(used[c.Key], c.Cost)
		}
	}
	copied, quotas, full, no := maps.Clone(used), 0, 0, a.Denied
	for i := range a.Checks {
		c := &a.Checks[i]
		if c.Kind != limit.Enforced && c.Kind != limit.Quota {
			continue
		}
		if over[i] = !room(i, copied); !over[i] {
			copied[c.Key] += c.Cost
		}
		if c.Kind == limit.Quota {
			quotas++
			if over[i] {
				full++
			}
		} else if over[i] {
			no = true
		}
	}
	no = no || quotas > 0 && full == quotas
	if !no {
		maps.Copy(used, copied)
	}
	outcomes := make([]limit.Outcome, len(a.Checks))
	for i := range a.Checks {
		c := &a.Checks[i]
		outcomes[i] = limit.Allow
		switch {
		case c.Kind == limit.Shadow && no:
			outcomes[i] = limit.NotEvaluated
			continue
		case c.Kind == limit.Shadow:
			if over[i] = !room(i, used); !over[i] {
				used[c.Key] += c.Cost
			}
		}
		if over[i] {
			outcomes[i] = limit.Deny
			if c.Overdraw {
				overdraw(c)
			}
		}
	}
	return outcomes
}

func TestEvaluateEqualsThePlainRules(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, of, want := newStore(t), map[byte]*limit.Params{}, map[limit.Key]int64{}
		for _, k := range []byte("abcd") {
			of[k] = rules().Draw(t, "rule")
		}
		for range rapid.IntRange(1, 8).Draw(t, "requests") {
			a := asks(t, of)
			outcomes := plainly(a, want)
			s.decide(t0, a)
			for i, o := range outcomes {
				if c := &a.Checks[i]; c.Verdict.Outcome != o {
					t.Fatalf("check %d: %s, want %s, of %+v", i, text(c.Verdict), o, a.Checks)
				}
			}
			for k, hits := range want {
				st := s.state(k)
				if st.Algorithm == limit.TokenBucket {
					hits *= 1000
				}
				if st.Used != hits {
					t.Fatalf("used of %c: %d, want %d, after %+v", k.Digest[0], st.Used, hits, a.Checks)
				}
			}
		}
	})
}
