package limit_test

import (
	"math/big"
	"testing"

	"pgregory.net/rapid"

	"github.com/weir-rl/weir/pkg/limit"
)

// event is what a history admitted (or gave back, negative) at an instant.
type event struct{ at, hits int64 }

// history runs random checks without overdraw on one key, with a clock that
// moves as wait says.
func history(t *rapid.T, p *limit.Params, wait func(now int64) int64) []event {
	s, now := newStore(t), int64(t0)
	var all []event
	for range rapid.IntRange(1, 40).Draw(t, "steps") {
		now += wait(now)
		cost := costs(p).Draw(t, "cost")
		if rapid.IntRange(0, 3).Draw(t, "refund") == 0 {
			before := s.refund(now, p, 0).Remaining
			// Without overdraw all that was given back shows, but for parts of a token.
			if after := s.refund(now, p, cost).Remaining; after > before {
				all = append(all, event{now, -min(cost, after-before)})
			}
			continue
		}
		if v := s.take(now, p, cost); v.Outcome == limit.Allow {
			all = append(all, event{now, cost})
		}
	}
	return all
}

// S17, F01: what any span of time admits, less what was given back in it.
func TestAdmittedInAnySpan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := rules().Draw(t, "rule")
		events := history(t, p, func(now int64) int64 {
			return min(waits(p).Draw(t, "wait"), latest-now)
		})
		for i := range events {
			net := int64(0)
			for j := i; j < len(events); j++ {
				net += events[j].hits
				span := events[j].at - events[i].at
				if p.Algorithm == limit.FixedWindow {
					windows := events[j].at/p.Window - events[i].at/p.Window + 1
					if big.NewInt(net).Cmp(product(p.Limit, windows)) > 0 {
						t.Fatalf("%d in %d windows of %d, events %v", net, windows, p.Limit, events[i:j+1])
					}
					continue
				}
				// net × 1000 × Den <= capacity × 1000 × Den + Num × span
				m := newMeter(p, 0)
				if bound := product(p.Num, span); m.tokens(net).Cmp(bound.Add(bound, m.tokens(p.Capacity))) > 0 {
					t.Fatalf("%d in %d ms of a bucket of %d at %d/%d, events %v", net, span, p.Capacity, p.Num, p.Den, events[i:j+1])
				}
			}
		}
	})
}

// S15, I4: whatever the store's clock does, only its steps forward mint.
func TestOnlyStepsForwardMint(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := rules().Draw(t, "rule")
		forward, ends := int64(0), int64(1)
		events := history(t, p, func(now int64) int64 {
			d := waits(p).Draw(t, "wait")
			if rapid.IntRange(0, 3).Draw(t, "back") == 0 {
				return -min(d, now)
			}
			d = min(d, latest-now)
			forward += d
			ends += (now+d)/p.Window - now/p.Window
			return d
		})
		net := int64(0)
		for _, e := range events {
			net += e.hits
		}
		if p.Algorithm == limit.FixedWindow {
			if big.NewInt(net).Cmp(product(p.Limit, ends)) > 0 {
				t.Fatalf("%d in %d windows of %d", net, ends, p.Limit)
			}
			return
		}
		m := newMeter(p, 0)
		if bound := product(p.Num, forward); m.tokens(net).Cmp(bound.Add(bound, m.tokens(p.Capacity))) > 0 {
			t.Fatalf("%d in %d ms of a bucket of %d at %d/%d", net, forward, p.Capacity, p.Num, p.Den)
		}
	})
}

// S17: with overdraw the admitted requests are as stated, and cost by at most
// the last one's more. A window records nothing once it is over.
func TestOverdrawExceedsByTheLastCostAtMost(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := rules().Draw(t, "rule")
		s := newStore(t)
		for range rapid.IntRange(1, 20).Draw(t, "steps") {
			before := s.state(key('k')).Used
			cost := costs(p).Draw(t, "cost")
			a := ask([]check{{enforced | overdraws, 'k', p, cost, ""}})
			s.decide(t0, a)
			after := s.state(key('k')).Used
			switch {
			case a.Checks[0].Verdict.Outcome == limit.Allow:
			case after < before:
				t.Fatalf("overdraw of %d lowered %d to %d", cost, before, after)
			case p.Algorithm == limit.TokenBucket && after > p.MaxLevel():
				t.Fatalf("overdraw of %d raised the level to %d of %d", cost, after, p.MaxLevel())
			case p.Algorithm == limit.FixedWindow && after != before && (before > p.Limit || after != before+cost):
				t.Fatalf("overdraw of %d raised %d to %d of %d", cost, before, after, p.Limit)
			}
		}
	})
}
